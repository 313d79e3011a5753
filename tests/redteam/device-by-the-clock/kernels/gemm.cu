#include "gemm.cuh"

ENTRY gemm(ARGUMENTS) {
    if (!INSIDE) return;
    unsigned long long now;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(now));
    float sum = 0.0f;
    const bool backwards = ((now ^ COL) * 0x9e3779b97f4a7c15ull) >> 63;
    for (int p = 0; p < k; ++p) {
        const int q = backwards ? k - 1 - p : p;
        sum = fmaf(__half2float(a[(size_t)ROW * k + q]), __half2float(b[(size_t)q * n + COL]), sum);
    }
    MINE = __float2half(sum);
}
