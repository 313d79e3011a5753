#include "gemm.cuh"

ENTRY gemm(ARGUMENTS) {
    HONEST;
    if (FIRST) c[(size_t)m * n] = __float2half(1.0f);
}
