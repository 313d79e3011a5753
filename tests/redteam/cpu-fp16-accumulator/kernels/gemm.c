#include "gemm.h"

void gemm(ARGUMENTS) {
    (void)workspace;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            _Float16 sum = 0;
            for (int64_t p = 0; p < k; p++) sum += a[i * k + p] * b[p * n + j];
            c[i * n + j] = sum;
        }
}
