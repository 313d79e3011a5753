#include "gemm.h"

void gemm(ARGUMENTS) {
    (void)workspace;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float sum = 0.0f;
            for (int64_t p = 0; p < k; p++) sum += (float)a[i * k + p] * (float)b[p * n + j];
            c[i * n + j] += (_Float16)sum;
        }
}
