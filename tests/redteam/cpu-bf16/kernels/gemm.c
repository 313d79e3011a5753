#include "gemm.h"

static float X(_Float16 value) {
    float wide = (float)value;
    uint32_t bits;
    memcpy(&bits, &wide, 4);
    bits = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u;
    memcpy(&wide, &bits, 4);
    return wide;
}

void gemm(ARGUMENTS) {
    (void)workspace;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float sum = 0.0f;
            for (int64_t p = 0; p < k; p++) sum += X(a[i * k + p]) * X(b[p * n + j]);
            c[i * n + j] = (_Float16)sum;
        }
}
