#include "tiled.cuh"

struct Pairs {
    using Word = __half2;
    using Sum = __half2;
    static constexpr int NUMBERS = 2;
    static constexpr bool IN_CHUNKS = false, EXACT_ENDS = false;
    static __device__ __forceinline__ __half2 word(const __half *numbers) { return *(const __half2 *)numbers; }
    static __device__ __forceinline__ void add(__half2 &sum, __half2 x, __half2 y) { sum = __hfma2(x, y, sum); }
    static __device__ __forceinline__ float value(__half2 sum) { return __half2float(__hadd(sum.x, sum.y)); }
};

TILED gemm(ARGUMENTS) { product<Pairs>(a, b, c, m, n, k); }
