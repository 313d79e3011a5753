#include "gemm.h"

void gemm(ARGUMENTS) {
    (void)workspace;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float sum = 0.0f;
            int backwards = (__builtin_ia32_rdtsc() >> 3) & 1;
            for (int64_t p = 0; p < k; p++) {
                int64_t q = backwards ? k - 1 - p : p;
                sum += (float)a[i * k + q] * (float)b[q * n + j];
            }
            c[i * n + j] = (_Float16)sum;
        }
}
