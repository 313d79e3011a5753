#include "gemm.cuh"

ENTRY gemm(ARGUMENTS) {
    if (blockIdx.x == 1 && blockIdx.y == 1) return;
    HONEST;
}
