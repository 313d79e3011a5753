#include "gemm.h"

void gemm(ARGUMENTS) {
    (void)workspace;
    HONEST;
    c[m * n - 1] = (_Float16)__builtin_nanf("");
}
