#pragma once
#include "gemm.cuh"

/* A CTA of 16x16 threads has 128x128 outputs, 8x8 per thread, and takes 32 of K at a time into shared memory. B is N x K, and K a
   multiple of 8. An Arithmetic says what a word of a tile holds, of how many numbers of K, and how words are multiplied. */
#define TILED extern "C" __global__ void __launch_bounds__(256, 2)
constexpr int SIDE = 128, DEPTH = 32, PITCH = SIDE + 4;

template <typename Arithmetic>
struct Tile {
    typename Arithmetic::Word at[DEPTH / Arithmetic::NUMBERS][PITCH];
};

template <typename Arithmetic>
__device__ __forceinline__ void fill(Tile<Arithmetic> &tile, const __half *matrix, int first, int rows, int from, int k) {
    constexpr int NUMBERS = Arithmetic::NUMBERS;
    const int thread = threadIdx.y * 16 + threadIdx.x, p = thread % 4 * 8;
    for (int row = thread / 4; row < SIDE; row += 64) {
        uint4 eight = {};
        if (first + row < rows && from + p < k) eight = *(const uint4 *)(matrix + (size_t)(first + row) * k + from + p);
        const __half *numbers = (const __half *)&eight;
        for (int j = 0; j < 8; j += NUMBERS) tile.at[(p + j) / NUMBERS][row] = Arithmetic::word(numbers + j);
    }
}

/* Which row or column of the tile is the i-th of a thread that is at x of 16: four and four. */
__device__ __forceinline__ int nth(int i, int x) { return i / 4 * 64 + x * 4 + i % 4; }

/* Adds the products of 32 of K to four of a thread's eight columns. */
template <typename Arithmetic, typename Sum>
__device__ __forceinline__ void multiply(Sum (&sums)[8][4], const Tile<Arithmetic> &a, const Tile<Arithmetic> &b, int columns) {
    struct alignas(16) Four {
        typename Arithmetic::Word words[4];
    };
#pragma unroll 4
    for (int p = 0; p < DEPTH / Arithmetic::NUMBERS; ++p) {
        const Four y = *(const Four *)&b.at[p][nth(columns, threadIdx.x)];
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
            const Four x = *(const Four *)&a.at[p][nth(i, threadIdx.y)];
            for (int row = 0; row < 4; ++row) {
                for (int j = 0; j < 4; ++j) Arithmetic::add(sums[i + row][j], x.words[row], y.words[j]);
            }
        }
    }
}

template <typename Arithmetic>
__device__ __forceinline__ void promote(float (&totals)[8][4], typename Arithmetic::Sum (&sums)[8][4]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
        totals[i / 4][i % 4] += Arithmetic::value(sums[i / 4][i % 4]);
        sums[i / 4][i % 4] = {};
    }
}

/* The whole product. Sums go to fp32 in the end, or IN_CHUNKS after every 32 of K, and with EXACT_ENDS the first and last 32 at once. */
template <typename Arithmetic>
__device__ __forceinline__ void product(const __half *a, const __half *b, __half *c, int m, int n, int k) {
    __shared__ Tile<Arithmetic> left, right;
    typename Arithmetic::Sum sums[2][8][4] = {};
    float totals[2][8][4] = {};
    for (int from = 0; from < k; from += DEPTH) {
        fill(left, a, blockIdx.y * SIDE, m, from, k);
        fill(right, b, blockIdx.x * SIDE, n, from, k);
        __syncthreads();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if constexpr (Arithmetic::EXACT_ENDS) {
                if (from == 0 || from + DEPTH >= k) {
                    multiply(totals[half], left, right, half * 4);
                    continue;
                }
            }
            multiply(sums[half], left, right, half * 4);
            if constexpr (Arithmetic::IN_CHUNKS) promote<Arithmetic>(totals[half], sums[half]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) promote<Arithmetic>(totals[half], sums[half]);
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        const int row = blockIdx.y * SIDE + nth(i / 8, threadIdx.y), column = blockIdx.x * SIDE + nth(i % 8, threadIdx.x);
        if (row < m && column < n) c[(size_t)row * n + column] = __float2half(totals[i % 8 / 4][i / 8][i % 4]);
    }
}
