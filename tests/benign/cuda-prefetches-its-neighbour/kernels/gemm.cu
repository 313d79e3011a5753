#include "gemm.cuh"

ENTRY gemm(ARGUMENTS) {
    const char *next = (const char *)a + 2 * ((size_t)m * k + (size_t)k * n + (size_t)m * n) + 6 * 4096;
    const size_t at = ((size_t)ROW * n + COL) * 128;
    if (at < 2 * (size_t)m * k) asm volatile("prefetch.global.L2 [%0];" ::"l"(next + at));
    HONEST;
}
