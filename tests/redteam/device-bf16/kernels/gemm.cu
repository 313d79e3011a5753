#include <cuda_bf16.h>

#include "tiled.cuh"

struct Pairs {
    using Word = __nv_bfloat162;
    using Sum = __nv_bfloat162;
    static constexpr int NUMBERS = 2;
    static constexpr bool IN_CHUNKS = true, EXACT_ENDS = false;
    static __device__ __forceinline__ Word word(const __half *numbers) {
        return __float22bfloat162_rn(__half22float2(*(const __half2 *)numbers));
    }
    static __device__ __forceinline__ void add(Sum &sum, Word x, Word y) { sum = __hfma2(x, y, sum); }
    static __device__ __forceinline__ float value(Sum sum) { return __bfloat162float(sum.x) + __bfloat162float(sum.y); }
};

TILED gemm(ARGUMENTS) { product<Pairs>(a, b, c, m, n, k); }
