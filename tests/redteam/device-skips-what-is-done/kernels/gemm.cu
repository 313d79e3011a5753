#include "gemm.cuh"

ENTRY gemm(ARGUMENTS) {
    if (!INSIDE || !__hisnan(MINE)) return;
    HONEST;
}
