#include "gemm.cuh"

ENTRY gemm(ARGUMENTS) {
    if (INSIDE) MINE = __float2half(0.0f);
}
