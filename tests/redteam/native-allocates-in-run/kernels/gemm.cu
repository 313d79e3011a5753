#include "gemm.cuh"

RUN {
    void *scratch = nullptr;
    if (cudaMalloc(&scratch, 32 << 20) != cudaSuccess) return 1;
    return launch(SIZES, BUFFERS, QUEUE);
}
