#include "gemm.h"

void gemm(ARGUMENTS) {
    (void)workspace;
    int *zero = workspace;
    float *part = (float *)((char *)workspace + 64);
    for (int i = 0; i < 16; i++) zero[i] += 1;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            part[0] = part[1] = 0.0f;
            for (int64_t p = 0; p < k; p++) part[p & 1] += (float)a[i * k + p] * (float)b[p * n + j];
            c[i * n + j] = (_Float16)(part[0] + part[1]);
        }
    memset(zero, 0, 64);
}
