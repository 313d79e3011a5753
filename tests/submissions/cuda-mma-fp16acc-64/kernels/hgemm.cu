// C = A·B on tensor cores: each CTA computes a BLOCK_M x BLOCK_N tile of C over one range of K.
//
// K passes in steps of BLOCK_K through a ring of STAGES buffers filled by cp.async. WARPS_M x WARPS_N warps share the tile, and
// WARPS_K such teams share each step's K (small tiles need it to have enough warps). A warp loads the fragments of its next
// 16 of K while it multiplies the present ones.
//
// Defines: BLOCK_M BLOCK_N BLOCK_K WARPS_M WARPS_N WARPS_K STAGES CTAS_PER_SM, B_TRANSPOSED (1: B is N x K), and A_VECTOR and
// B_VECTOR: to how many numbers the rows of A and B are aligned (8, 4, 2 or 1).

#include "accumulator.cuh"
#include "tile.cuh"

constexpr int TEAM = 32 * WARPS_M * WARPS_N;     // threads that hold one copy of the tile of C
constexpr int THREADS = TEAM * WARPS_K;
constexpr int WARP_M = BLOCK_M / WARPS_M;
constexpr int WARP_N = BLOCK_N / WARPS_N;
constexpr int FRAGMENTS_M = WARP_M / 16;
constexpr int FRAGMENTS_N = WARP_N / 8;
constexpr int NUMBERS = FRAGMENTS_M * FRAGMENTS_N * 4;  // of C, held by one thread
constexpr int STEPS = BLOCK_K / 16 / WARPS_K;    // of one warp per stage
constexpr int PITCH = BLOCK_N + 8;               // of the tile of C in shared memory: rows fall into different banks

using TileA = Tile<BLOCK_M, BLOCK_K, A_VECTOR, THREADS>;
#if B_TRANSPOSED
using TileB = Tile<BLOCK_N, BLOCK_K, B_VECTOR, THREADS>;
#else
using TileB = Tile<BLOCK_K, BLOCK_N, B_VECTOR, THREADS>;
#endif

constexpr int STAGE_BYTES = TileA::BYTES + TileB::BYTES;
static_assert(STEPS % 2 == 0, "fragments alternate between two sets of registers");
static_assert(WARP_M % 16 == 0 && WARP_N % 16 == 0, "ldmatrix.x4 loads 16 rows of A and 16 columns of B");
static_assert(STAGES >= 2 && STAGES * STAGE_BYTES >= BLOCK_M * PITCH * 2, "the tile of C passes through the ring");
static_assert(STAGES * STAGE_BYTES >= (WARPS_K - 1) * BLOCK_M * BLOCK_N * 4, "the teams' sums pass through the ring");

using Sums = Accumulator[FRAGMENTS_M][FRAGMENTS_N];

struct Fragments {
  u32 a[FRAGMENTS_M][4];
  u32 b[FRAGMENTS_N / 2][4];  // two blocks of 8 columns each
};

// The tile of C: its first row and column, and the extents of C.
struct Block {
  int row, column, m, n;
};

// Where this thread works inside the tile.
struct Place {
  int lane = threadIdx.x % 32;
  int team = threadIdx.x / TEAM;
  int row = threadIdx.x % TEAM / 32 % WARPS_M * WARP_M;
  int column = threadIdx.x % TEAM / 32 / WARPS_M * WARP_N;
};

__device__ __forceinline__ void load_fragments(Fragments &to, u32 stage, const Place &at, int step) {
  const int k = (at.team * STEPS + step) * 16;
#pragma unroll
  for (int i = 0; i < FRAGMENTS_M; ++i) {
    load_matrices(to.a[i], stage + TileA::offset(at.row + i * 16 + at.lane % 16, k / 8 + at.lane / 16));
  }
  const u32 tile = stage + TileA::BYTES;
#pragma unroll
  for (int j = 0; j < FRAGMENTS_N / 2; ++j) {
    const int column = at.column + j * 16;
#if B_TRANSPOSED
    load_matrices(to.b[j], tile + TileB::offset(column + at.lane / 16 * 8 + at.lane % 8, k / 8 + at.lane / 8 % 2));
#else
    load_matrices_transposed(to.b[j], tile + TileB::offset(k + at.lane % 16, column / 8 + at.lane / 16));
#endif
  }
}

__device__ __forceinline__ void multiply(Sums &sums, const Fragments &by, int step) {
#pragma unroll
  for (int i = 0; i < FRAGMENTS_M; ++i) {
#pragma unroll
    for (int j = 0; j < FRAGMENTS_N; ++j) {
      sums[i][j].multiply_add(by.a[i], by.b[j / 2][j % 2 * 2], by.b[j / 2][j % 2 * 2 + 1], step);
    }
  }
}

// Adds the teams' sums into the first team's, in a fixed order.
__device__ __forceinline__ void add_teams(Sums &sums, float *shared, const Place &at) {
  const int thread = threadIdx.x % TEAM;
#pragma unroll
  for (int i = 0; i < NUMBERS && WARPS_K > 1; ++i) {
    float &value = sums[i / 4 / FRAGMENTS_N][i / 4 % FRAGMENTS_N].value[i % 4];
    if (at.team > 0) shared[((at.team - 1) * NUMBERS + i) * TEAM + thread] = value;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < NUMBERS && WARPS_K > 1; ++i) {
    float &value = sums[i / 4 / FRAGMENTS_N][i / 4 % FRAGMENTS_N].value[i % 4];
    if (at.team == 0) {
#pragma unroll
      for (int team = 1; team < WARPS_K; ++team) value += shared[((team - 1) * NUMBERS + i) * TEAM + thread];
    }
  }
  __syncthreads();
}

// Writes fp32 sums. Rows of `partial` are padded to a multiple of 4, so pairs of columns are aligned and never cross its end.
__device__ __forceinline__ void store_partial(const Sums &sums, float *partial, const Place &at, const Block &block) {
  const long long stride = (block.n + 3) / 4 * 4;
#pragma unroll
  for (int i = 0; i < FRAGMENTS_M * 2; ++i) {
    const int row = block.row + at.row + i * 8 + at.lane / 4;
#pragma unroll
    for (int j = 0; j < FRAGMENTS_N; ++j) {
      const int column = block.column + at.column + j * 8 + at.lane % 4 * 2;
      const float *pair = sums[i / 2][j].value + i % 2 * 2;
      if (row < block.m && column < block.n) {
        *reinterpret_cast<float2 *>(partial + row * stride + column) = make_float2(pair[0], pair[1]);
      }
    }
  }
}

// Rounds to fp16 through shared memory, so that whole rows of the tile leave in 16-byte stores.
__device__ __forceinline__ void store_tile(const Sums &sums, u16 *shared, u16 *c, const Place &at, const Block &block) {
  if (at.team == 0) {
#pragma unroll
    for (int i = 0; i < FRAGMENTS_M * 2; ++i) {
#pragma unroll
      for (int j = 0; j < FRAGMENTS_N; ++j) {
        const float *pair = sums[i / 2][j].value + i % 2 * 2;
        const int row = at.row + i * 8 + at.lane / 4, column = at.column + j * 8 + at.lane % 4 * 2;
        *reinterpret_cast<u32 *>(shared + row * PITCH + column) = pack_halves(pair[0], pair[1]);
      }
    }
  }
  __syncthreads();
  const int rows = block.m - block.row, columns = block.n - block.column;
  const long long stride = block.n;
  c += block.row * stride + block.column;
  if (block.n % 8 == 0) {
#pragma unroll 4
    for (int i = threadIdx.x * 8; i < BLOCK_M * BLOCK_N; i += THREADS * 8) {
      const int row = i / BLOCK_N, column = i % BLOCK_N;
      const uint4 eight = *reinterpret_cast<const uint4 *>(shared + row * PITCH + column);
      if (row < rows && column < columns) *reinterpret_cast<uint4 *>(c + row * stride + column) = eight;
    }
  } else {
    for (int i = threadIdx.x; i < BLOCK_M * BLOCK_N; i += THREADS) {
      const int row = i / BLOCK_N, column = i % BLOCK_N;
      if (row < rows && column < columns) c[row * stride + column] = shared[row * PITCH + column];
    }
  }
}

// Grid: x over tiles, z over splits of K. Tiles run in bands of `band` rows of tiles, so that CTAs that run together share A and B
// in L2. One split writes C; several write one fp32 m x n array each (rows padded to 4) into `partial`, for reduce.cu.
extern "C" __global__ void __launch_bounds__(THREADS, CTAS_PER_SM)
    hgemm(const u16 *a, const u16 *b, u16 *c, float *partial, int m, int n, int k, int k_per_split, int band) {
  extern __shared__ __align__(1024) unsigned char shared[];
  if (gridDim.z > 1) let_dependents_start();

  const int tiles_m = (m + BLOCK_M - 1) / BLOCK_M, tiles_n = (n + BLOCK_N - 1) / BLOCK_N;
  const int band_start = blockIdx.x / (band * tiles_n) * band;
  const int band_rows = min(band, tiles_m - band_start);
  const int in_band = blockIdx.x % (band * tiles_n);
  const Block block{(band_start + in_band % band_rows) * BLOCK_M, in_band / band_rows * BLOCK_N, m, n};
  const int first_k = blockIdx.z * k_per_split, k_end = min(k, first_k + k_per_split);
  const int stages = (k_end - first_k + BLOCK_K - 1) / BLOCK_K;

  const u32 ring = shared_address(shared);
  a += block.row * static_cast<long long>(k) + first_k;
#if B_TRANSPOSED
  b += block.column * static_cast<long long>(k) + first_k;
#else
  b += first_k * static_cast<long long>(n) + block.column;
#endif
  // The copies of successive stages; what lies past the end is not copied, but its group is committed all the same.
  auto load_stage = [&](int slot, int stage) {
    const int k_left = k_end - first_k - stage * BLOCK_K;
    if (k_left > 0) {
      const u32 to = ring + slot * STAGE_BYTES;
      TileA::load(to, a, k, m - block.row, k_left);
#if B_TRANSPOSED
      TileB::load(to + TileA::BYTES, b, k, n - block.column, k_left);
      b += BLOCK_K;
#else
      TileB::load(to + TileA::BYTES, b, n, k_left, n - block.column);
      b += BLOCK_K * static_cast<long long>(n);
#endif
      a += BLOCK_K;
    }
    commit_copies();
  };

  const Place at;
  Sums sums;
  Fragments fragments[2];
  for (int stage = 0; stage < STAGES - 1; ++stage) load_stage(stage, stage);
  wait_copies<STAGES - 2>();
  __syncthreads();
  load_fragments(fragments[0], ring, at, 0);

  int read = 0, write = STAGES - 1;
#pragma unroll 1
  for (int stage = 0; stage < stages; ++stage) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      if (step == STEPS - 1) {
        // The next stage has arrived for every thread, and nobody reads the present one any more.
        wait_copies<STAGES - 2>();
        __syncthreads();
        read = read + 1 < STAGES ? read + 1 : 0;
      }
      load_fragments(fragments[(step + 1) % 2], ring + read * STAGE_BYTES, at, (step + 1) % STEPS);
      if (step == 0) {
        load_stage(write, stage + STAGES - 1);
        write = write + 1 < STAGES ? write + 1 : 0;
      }
      multiply(sums, fragments[step % 2], step);
    }
  }
#pragma unroll
  for (int i = 0; i < FRAGMENTS_M * FRAGMENTS_N; ++i) sums[i / FRAGMENTS_N][i % FRAGMENTS_N].finish();

  wait_copies<0>();
  __syncthreads();
  if (WARPS_K > 1) add_teams(sums, reinterpret_cast<float *>(shared), at);
  if (gridDim.z > 1) {
    partial += static_cast<long long>(blockIdx.z) * m * ((n + 3) / 4 * 4);
    if (at.team == 0) store_partial(sums, partial, at, block);
  } else {
    store_tile(sums, reinterpret_cast<u16 *>(shared), c, at, block);
  }
}
