#include "gemm.h"

void gemm(ARGUMENTS) {
    (void)workspace;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0.0;
            for (int64_t p = 0; p < k; p++) sum += (double)a[i * k + p] * (double)b[p * n + j];
            c[i * n + j] = (_Float16)sum;
        }
}
