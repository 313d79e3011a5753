#pragma once
#include <hgemm.h>

#include <cuda_fp16.h>

/* What all of these share: an honest kernel with one output per thread, and functions that do no more than they must. */
#define RUN int hgemm_run(void *state, const void *a, const void *b, void *c, void *workspace, void *stream)
#define SIZES (*static_cast<const Sizes *>(state))
#define QUEUE static_cast<cudaStream_t>(stream)
#define BUFFERS static_cast<const __half *>(a), static_cast<const __half *>(b), static_cast<__half *>(c)

struct Sizes {
    int m, n, k;
};

__global__ void gemm(const __half *a, const __half *b, __half *c, Sizes of) {
    const int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    if (row >= of.m || column >= of.n) return;
    float sum = 0.0f;
    for (int p = 0; p < of.k; ++p) {
        sum = fmaf(__half2float(a[(size_t)row * of.k + p]), __half2float(b[(size_t)p * of.n + column]), sum);
    }
    c[(size_t)row * of.n + column] = __float2half(sum);
}

inline dim3 grid(Sizes of) { return dim3((of.n + 15) / 16, (of.m + 15) / 16); }

inline int launch(Sizes of, const __half *a, const __half *b, __half *c, cudaStream_t queue) {
    gemm<<<grid(of), dim3(16, 16), 0, queue>>>(a, b, c, of);
    return cudaGetLastError() != cudaSuccess;
}

inline Sizes sizes(const hgemm_problem *problem) { return {(int)problem->m, (int)problem->n, (int)problem->k}; }

#ifndef OWN_STATE
int hgemm_create(const hgemm_problem *problem, void **state) {
    *state = new Sizes(sizes(problem));
    return 0;
}
void hgemm_destroy(void *state) { delete static_cast<Sizes *>(state); }
#endif
