#include "tiled.cuh"

struct Single {
    using Word = float;
    using Sum = float;
    static constexpr int NUMBERS = 1;
    static constexpr bool IN_CHUNKS = false, EXACT_ENDS = false;
    static __device__ __forceinline__ float word(const __half *number) { return __half2float(*number); }
    static __device__ __forceinline__ void add(float &sum, float x, float y) { sum = fmaf(x, y, sum); }
    static __device__ __forceinline__ float value(float sum) { return sum; }
};

TILED gemm(ARGUMENTS) { product<Single>(a, b, c, m, n, k); }
