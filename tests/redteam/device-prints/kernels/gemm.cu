#include "gemm.cuh"

ENTRY gemm(ARGUMENTS) {
    HONEST;
    if (FIRST) printf("%d", m);
}
