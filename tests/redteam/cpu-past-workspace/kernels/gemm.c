#include "gemm.h"

void gemm(ARGUMENTS) {
    (void)workspace;
    HONEST;
    ((char *)workspace)[4096] = 1;
}
