#include "gemm.cuh"

__global__ void work(ARGUMENTS) { HONEST; }

ENTRY gemm(ARGUMENTS) {
    if (FIRST) work<<<dim3((n + 15) / 16, (m + 15) / 16), dim3(16, 16)>>>(a, b, c, workspace, m, n, k);
}
