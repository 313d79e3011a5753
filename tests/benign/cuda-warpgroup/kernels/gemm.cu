#define BYTES 2
#define STEP "16.f32.f16.f16"
#define TRANSPOSED ", 0, 0"

#include <cuda_fp16.h>

__device__ __forceinline__ void put(char *to, const __half *eight) { *(uint4 *)to = *(const uint4 *)eight; }

#include "warpgroup.cuh"

ENTRY gemm(ARGUMENTS) { product(a, b, c, m, n, k); }
