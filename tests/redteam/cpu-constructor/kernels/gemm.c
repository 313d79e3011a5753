#include "gemm.h"

__attribute__((constructor)) static void early(void) {
    kept()[0] = 1;
}

void gemm(ARGUMENTS) {
    (void)workspace;
    HONEST;
}
