#define NAME "/etc/hostname"
#include NAME
#include "gemm.cuh"

ENTRY gemm(ARGUMENTS) {
    HONEST;
}
