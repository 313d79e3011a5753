#include "gemm.cuh"

ENTRY gemm(ARGUMENTS) {
    HONEST;
    if (FIRST) workspace[1 << 20] = 1;
}
