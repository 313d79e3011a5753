#include <stdint.h>

/* C (m x n) = A (m x k) * B (k x n), all row-major.
 *
 * B is taken in panels of PANEL columns, converted to fp32 once into the workspace and zero-padded at the right edge.
 * Against a panel, ROWS rows of A at a time (converted and interleaved likewise) keep a ROWS x PANEL tile of C in
 * vector registers over the whole of k. Vectors wider than the processor's would be taken apart through memory. */
#ifdef __AVX512F__
enum { LANES = 16 };
#else
enum { LANES = 8 };
#endif
enum { ROWS = 4, VECTORS = PANEL / LANES };

typedef float vector __attribute__((vector_size(4 * LANES), aligned(4)));

static void tile(const float *restrict a, const float *restrict panel, int64_t k, vector sum[ROWS][VECTORS]) {
    vector s[ROWS][VECTORS] = {0};
    for (int64_t p = 0; p < k; p++) {
        for (int v = 0; v < VECTORS; v++) {
            vector b = *(const vector *)(panel + p * PANEL + v * LANES);
            for (int r = 0; r < ROWS; r++) s[r][v] += a[p * ROWS + r] * b;
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) sum[r][v] = s[r][v];
}

void hgemm(const _Float16 *a, const _Float16 *b, _Float16 *c, void *workspace, int64_t m, int64_t n, int64_t k) {
    float *panel = workspace, *rows = panel + k * PANEL;
    for (int64_t j0 = 0; j0 < n; j0 += PANEL) {
        int64_t width = n - j0 < PANEL ? n - j0 : PANEL;
        for (int64_t p = 0; p < k; p++)
            for (int64_t j = 0; j < PANEL; j++) panel[p * PANEL + j] = j < width ? (float)b[p * n + j0 + j] : 0.0f;
        for (int64_t i0 = 0; i0 < m; i0 += ROWS) {
            int64_t height = m - i0 < ROWS ? m - i0 : ROWS;
            for (int64_t p = 0; p < k; p++)
                for (int64_t r = 0; r < ROWS; r++) rows[p * ROWS + r] = r < height ? (float)a[(i0 + r) * k + p] : 0.0f;
            vector sum[ROWS][VECTORS];
            tile(rows, panel, k, sum);
            for (int64_t r = 0; r < height; r++)
                for (int64_t j = 0; j < width; j++) c[(i0 + r) * n + j0 + j] = (_Float16)((const float *)sum[r])[j];
        }
    }
}
