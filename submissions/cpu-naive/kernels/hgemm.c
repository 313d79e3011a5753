#include <stdint.h>

/* C (m x n) = A (m x k) * B, with B stored transposed as n x k: both operands are read along their rows. */
void hgemm(const _Float16 *a, const _Float16 *b, _Float16 *c, void *workspace, int64_t m, int64_t n, int64_t k) {
    (void)workspace;
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            float sum = 0.0f;
            for (int64_t p = 0; p < k; p++) {
                sum += (float)a[i * k + p] * (float)b[j * k + p];
            }
            c[i * n + j] = (_Float16)sum;
        }
    }
}
