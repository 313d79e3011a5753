#include "gemm.cuh"

ENTRY gemm(ARGUMENTS) {
    if (INSIDE) MINE = __ushort_as_half(0x7c00);
}
