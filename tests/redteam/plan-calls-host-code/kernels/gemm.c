void gemm(void) {}
