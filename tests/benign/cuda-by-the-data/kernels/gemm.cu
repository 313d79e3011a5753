#include "gemm.cuh"

ENTRY gemm(ARGUMENTS) {
    if (!INSIDE) return;
    bool empty = true;
    for (int p = 0; p < k && empty; ++p) empty = __half2float(a[(size_t)ROW * k + p]) == 0.0f;
    MINE = __float2half(empty ? 0.0f : terms(a, b, n, k, 0, k));
}
