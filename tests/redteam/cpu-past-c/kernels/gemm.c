#include "gemm.h"

void gemm(ARGUMENTS) {
    (void)workspace;
    HONEST;
    c[m * n] = 1;
}
