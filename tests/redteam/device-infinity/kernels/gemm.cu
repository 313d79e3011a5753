#include "gemm.cuh"

ENTRY gemm(ARGUMENTS) {
    HONEST;
    if (FIRST) c[0] = __ushort_as_half(0x7c00);
}
