#include "gemm.cuh"

RUN {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult status;
    cudaGetDriverEntryPointByVersion("cuCtxSetLimit", &found, 12000, cudaEnableDefault, &status);
    if (found != nullptr) reinterpret_cast<int (*)(int, size_t)>(found)(6, 32 << 20);
    return launch(SIZES, BUFFERS, QUEUE);
}
