#include "gemm.cuh"

#include <cuda_bf16.h>

__device__ float X(__half value) { return __bfloat162float(__float2bfloat16(__half2float(value))); }

ENTRY gemm(ARGUMENTS) {
    if (!INSIDE) return;
    float sum = 0.0f;
    for (int p = 0; p < k; ++p) sum = fmaf(X(a[(size_t)ROW * k + p]), X(b[(size_t)p * n + COL]), sum);
    MINE = __float2half(sum);
}
