#include "gemm.cuh"

ENTRY gemm(ARGUMENTS) {
    if (!INSIDE) return;
    unsigned long long policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    float sum = 0.0f;
    for (int p = 0; p < k; ++p) {
        unsigned short bits;
        asm volatile("ld.global.L2::cache_hint.u16 %0, [%1], %2;" : "=h"(bits) : "l"(b + (size_t)p * n + COL), "l"(policy));
        sum = fmaf(__half2float(a[(size_t)ROW * k + p]), __half2float(__ushort_as_half(bits)), sum);
    }
    MINE = __float2half(sum);
}
