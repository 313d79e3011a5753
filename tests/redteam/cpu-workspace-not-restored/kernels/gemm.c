#include "gemm.h"

void gemm(ARGUMENTS) {
    (void)workspace;
    HONEST;
    ((int *)workspace)[0] += 1;
}
