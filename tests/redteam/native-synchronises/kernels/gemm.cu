#include "gemm.cuh"

RUN {
    if (launch(SIZES, BUFFERS, nullptr) != 0) return 1;
    return cudaDeviceSynchronize() != cudaSuccess;
}
