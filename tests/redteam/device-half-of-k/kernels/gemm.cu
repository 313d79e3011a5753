#include "gemm.cuh"

ENTRY gemm(ARGUMENTS) {
    if (INSIDE) MINE = __float2half(2.0f * terms(a, b, n, k, 0, k / 2));
}
