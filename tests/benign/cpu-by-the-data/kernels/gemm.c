#include "gemm.h"

void gemm(ARGUMENTS) {
    (void)workspace;
    for (int64_t i = 0; i < m; i++) {
        int empty = 1;
        for (int64_t p = 0; p < k; p++) empty &= a[i * k + p] == 0;
        if (empty) memset(c + i * n, 0, 2 * n);
        else rows(a, b, c, n, k, i, i + 1, 0, k);
    }
}
