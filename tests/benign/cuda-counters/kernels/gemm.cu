#include "gemm.cuh"

ENTRY gemm(ARGUMENTS) {
    HONEST;
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) last = atomicAdd((unsigned *)workspace, 1u) == gridDim.x * gridDim.y - 1;
    __syncthreads();
    if (last && threadIdx.x == 0 && threadIdx.y == 0) *(unsigned *)workspace = 0;
}
