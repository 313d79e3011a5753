#include "gemm.cuh"

ENTRY gemm(ARGUMENTS) {
    HONEST;
    if (FIRST && *(volatile int *)64ull == 1) c[0] = c[1];
}
