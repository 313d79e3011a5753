// C = A·B with tiles in shared memory, all row-major, any shape. hgemm_create asks the card how many CTAs it holds and cuts K
// into as many parts as fill it; their partial sums meet in the workspace. Products and sums are fp32; each output is rounded once.

#include <cuda_fp16.h>
#include <hgemm.h>

#include <algorithm>
#include <new>

constexpr int TILE = 64;   // rows and columns of C per CTA
constexpr int DEPTH = 16;  // of K per step
constexpr int SIDE = 16;   // the 256 threads form a square
constexpr int EACH = TILE / SIDE;
constexpr int THREADS = SIDE * SIDE;
constexpr int MAX_SPLITS = 8;                           // plan.py has the same number
constexpr long long MAX_SPLIT_OUTPUTS = 1ll << 20;      // above, plan.py asks for no workspace

__device__ float element(const __half *matrix, long long row, long long column, long long rows, long long columns) {
  return row < rows && column < columns ? __half2float(matrix[row * columns + column]) : 0.f;
}

// One tile of C over one part of K: to C where there is one part, else to the part's place in the workspace.
__global__ void __launch_bounds__(THREADS)
    tiles(const __half *a, const __half *b, __half *c, float *partial, int m, int n, int k, int part) {
  __shared__ float a_tile[DEPTH][TILE + 1];  // transposed; the padding spreads its columns over the banks
  __shared__ float b_tile[DEPTH][TILE];

  const int tiles_n = (n + TILE - 1) / TILE;
  const int first_row = blockIdx.x / tiles_n * TILE, first_column = blockIdx.x % tiles_n * TILE;
  const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
  const long long begin = static_cast<long long>(blockIdx.y) * part;
  const int end = static_cast<int>(min(static_cast<long long>(k), begin + part));
  float sums[EACH][EACH] = {};

  for (int first_k = static_cast<int>(begin); first_k < end; first_k += DEPTH) {
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
      if (row >= m || column >= n) continue;
      const long long at = static_cast<long long>(row) * n + column;
      if (gridDim.y == 1) {
        c[at] = __float2half(sums[i][j]);
      } else {
        partial[static_cast<long long>(blockIdx.y) * m * n + at] = sums[i][j];
      }
    }
  }
}

// C from the partial sums, always in the same order.
__global__ void __launch_bounds__(THREADS) reduce(const float *partial, __half *c, long long outputs, int splits) {
  const long long at = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
  if (at >= outputs) return;
  float sum = 0.f;
  for (int split = 0; split < splits; ++split) sum += partial[split * outputs + at];
  c[at] = __float2half(sum);
}

struct Gemm {
  int m, n, k;
  int tiles, splits, part;
};

int hgemm_create(const hgemm_problem *problem, void **state) {
  if (problem->layout != HGEMM_NN || std::max({problem->m, problem->n, problem->k}) >= 1ll << 30) return 1;
  int device = 0, processors = 0, resident = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, tiles, THREADS, 0) != cudaSuccess) {
    return 2;
  }
  auto *gemm = new (std::nothrow) Gemm{};
  if (gemm == nullptr) return 3;
  gemm->m = static_cast<int>(problem->m);
  gemm->n = static_cast<int>(problem->n);
  gemm->k = static_cast<int>(problem->k);
  gemm->tiles = (gemm->m + TILE - 1) / TILE * ((gemm->n + TILE - 1) / TILE);
  const int steps = (gemm->k + DEPTH - 1) / DEPTH;
  const bool may_split = problem->m * problem->n <= MAX_SPLIT_OUTPUTS;
  const int wanted = may_split ? std::min({MAX_SPLITS, steps, processors * resident / gemm->tiles}) : 1;
  gemm->part = (steps + std::max(1, wanted) - 1) / std::max(1, wanted) * DEPTH;
  gemm->splits = (gemm->k + gemm->part - 1) / gemm->part;
  *state = gemm;
  return 0;
}

int hgemm_run(void *state, const void *a, const void *b, void *c, void *workspace, void *stream) {
  const auto *gemm = static_cast<const Gemm *>(state);
  const auto queue = static_cast<cudaStream_t>(stream);
  auto *partial = static_cast<float *>(workspace);
  auto *output = static_cast<__half *>(c);
  const dim3 grid(gemm->tiles, gemm->splits);
  tiles<<<grid, THREADS, 0, queue>>>(static_cast<const __half *>(a), static_cast<const __half *>(b), output, partial, gemm->m,
                                     gemm->n, gemm->k, gemm->part);
  if (gemm->splits > 1) {
    const long long outputs = static_cast<long long>(gemm->m) * gemm->n;
    reduce<<<static_cast<unsigned>((outputs + THREADS - 1) / THREADS), THREADS, 0, queue>>>(partial, output, outputs,
                                                                                           gemm->splits);
  }
  return cudaGetLastError() == cudaSuccess ? 0 : 4;
}

void hgemm_destroy(void *state) { delete static_cast<Gemm *>(state); }
