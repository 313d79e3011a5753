#include "gemm.cuh"

ENTRY gemm(ARGUMENTS) {
    if (blockIdx.x % 4 == 1) return;
    HONEST;
}
