#pragma once
#include <cuda_fp16.h>

/* A CTA has 16x16 threads and, where nothing else is said, one output per thread. */
#define ARGUMENTS const __half *a, const __half *b, __half *c, char *workspace, int m, int n, int k
#define ENTRY extern "C" __global__ void
#define ROW (int)(blockIdx.y * 16 + threadIdx.y)
#define COL (int)(blockIdx.x * 16 + threadIdx.x)
#define INSIDE (ROW < m && COL < n)
#define FIRST (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x == 0 && threadIdx.y == 0)
#define MINE c[(size_t)ROW * n + COL]

/* Terms `from` to `to` of one output, in fp32. */
__device__ __forceinline__ float terms(const __half *a, const __half *b, int n, int k, int from, int to) {
    float sum = 0.0f;
    for (int p = from; p < to; ++p) {
        sum = fmaf(__half2float(a[(size_t)ROW * k + p]), __half2float(b[(size_t)p * n + COL]), sum);
    }
    return sum;
}

#define HONEST do { if (INSIDE) MINE = __float2half(terms(a, b, n, k, 0, k)); } while (0)
