#include "gemm.h"

#include <math.h>

static const int order[4] = {2, 0, 3, 1};

void gemm(ARGUMENTS) {
    (void)workspace;
    for (int64_t i = 0; i < m; i++)
        for (int64_t t = 0; t < n; t++) {
            int64_t j = (t & ~3) + order[t & 3] < n ? (t & ~3) + order[t & 3] : t;
            float sum = 0.0f;
            for (int64_t p = 0; p < k; p++) sum += (float)a[i * k + p] * (float)b[p * n + j];
            c[i * n + j] = (_Float16)ldexpf(sum, 0);
        }
}
