#include "gemm.cuh"

ENTRY gemm(ARGUMENTS) {
    long long now;
    do { asm volatile("mov.u64 %0, %%clock64;" : "=l"(now)); } while (now != 0);
    HONEST;
}
