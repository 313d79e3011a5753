#include "gemm.h"

static const int full[1 << 28] = {1, 2};

void gemm(ARGUMENTS) {
    (void)workspace;
    HONEST;
    c[0] += (_Float16)(float)full[k];
}
