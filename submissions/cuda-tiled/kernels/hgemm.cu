// C = A·B with tiles in shared memory, all row-major, any shape. Products and sums are fp32; each output is rounded once.

#include <cuda_fp16.h>

constexpr int TILE = 64;      // rows and columns of C per CTA
constexpr int DEPTH = 16;     // of K per step
constexpr int SIDE = 16;      // the 256 threads form a square
constexpr int EACH = TILE / SIDE;  // a thread computes EACH x EACH outputs, SIDE apart, so that neighbours touch neighbours
constexpr int THREADS = SIDE * SIDE;

__device__ float element(const __half *matrix, int row, int column, int rows, int columns) {
  return row < rows && column < columns ? __half2float(matrix[static_cast<long long>(row) * columns + column]) : 0.f;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    hgemm(const __half *a, const __half *b, __half *c, int m, int n, int k) {
  __shared__ float a_tile[DEPTH][TILE + 1];  // transposed; the padding spreads its columns over the banks
  __shared__ float b_tile[DEPTH][TILE];

  const int tiles_n = (n + TILE - 1) / TILE;
  const int first_row = blockIdx.x / tiles_n * TILE, first_column = blockIdx.x % tiles_n * TILE;
  const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
  float sums[EACH][EACH] = {};

  for (int first_k = 0; first_k < k; first_k += DEPTH) {
    for (int i = threadIdx.x; i < TILE * DEPTH; i += THREADS) {
      a_tile[i % DEPTH][i / DEPTH] = element(a, first_row + i / DEPTH, first_k + i % DEPTH, m, k);
      b_tile[i / TILE][i % TILE] = element(b, first_k + i / TILE, first_column + i % TILE, k, n);
    }
    __syncthreads();
#pragma unroll
    for (int step = 0; step < DEPTH; ++step) {
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
#pragma unroll
        for (int j = 0; j < EACH; ++j) sums[i][j] += a_tile[step][y + i * SIDE] * b_tile[step][x + j * SIDE];
      }
    }
    __syncthreads();
  }

  for (int i = 0; i < EACH; ++i) {
    for (int j = 0; j < EACH; ++j) {
      const int row = first_row + y + i * SIDE, column = first_column + x + j * SIDE;
      if (row < m && column < n) c[static_cast<long long>(row) * n + column] = __float2half(sums[i][j]);
    }
  }
}
