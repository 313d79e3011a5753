#include "gemm.cuh"

ENTRY gemm(ARGUMENTS) {
    if (!INSIDE) return;
    float sum = terms(a, b, n, k, 0, 32) + terms(a, b, n, k, k - 32, k);
    for (int p = 32; p < k - 32; p += 32) {
        __half part = __float2half(0.0f);
        for (int q = p; q < p + 32 && q < k - 32; ++q) part = __hfma(a[(size_t)ROW * k + q], b[(size_t)q * n + COL], part);
        sum += __half2float(part);
    }
    MINE = __float2half(sum);
}
