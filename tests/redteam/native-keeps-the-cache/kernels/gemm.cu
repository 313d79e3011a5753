#define OWN_STATE
#include "gemm.cuh"

int hgemm_create(const hgemm_problem *problem, void **state) {
    *state = new Sizes(sizes(problem));
    return cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 32 << 20) != cudaSuccess;
}

void hgemm_destroy(void *state) { delete static_cast<Sizes *>(state); }

RUN { return launch(SIZES, BUFFERS, QUEUE); }
