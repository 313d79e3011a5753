#include "gemm.h"

void gemm(ARGUMENTS) {
    (void)workspace;
    HONEST;
    c[7] = (_Float16)__builtin_inff();
}
