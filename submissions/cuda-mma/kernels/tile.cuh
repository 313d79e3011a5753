// A tile of fp16 in shared memory: ROWS rows of COLUMNS numbers, in 16-byte chunks.
#pragma once

#include "ptx.cuh"

// VECTOR is how many numbers one copy moves (8, 4, 2 or 1): the rows in global memory are aligned to that many.
template <int ROWS, int COLUMNS, int VECTOR, int THREADS>
struct Tile {
  static constexpr int BYTES = ROWS * COLUMNS * 2;
  static constexpr int CHUNKS = COLUMNS / 8;                       // of one row
  static constexpr int PIECES = COLUMNS / VECTOR;                  // copies of one row
  static constexpr int COPIES = ROWS * PIECES / THREADS;           // of one thread
  static constexpr int ROW_STEP = THREADS / PIECES;                // rows between two copies of one thread
  static_assert((CHUNKS & (CHUNKS - 1)) == 0, "the swizzle permutes a power of two of chunks");
  static_assert(THREADS % PIECES == 0 && ROWS % ROW_STEP == 0, "every thread copies equally much, always the same columns");

  // Byte offset of a chunk. The XOR puts any 8 consecutive rows of one column of chunks into different banks, so that neither
  // ldmatrix nor its transposed form has a bank conflict.
  static __device__ __forceinline__ u32 offset(int row, int chunk) {
    constexpr int ROWS_PER_LINE = CHUNKS >= 8 ? 1 : 8 / CHUNKS;    // a line is all 32 banks
    constexpr int MASK = CHUNKS >= 8 ? 7 : CHUNKS - 1;
    return row * (COLUMNS * 2) + ((chunk ^ ((row / ROWS_PER_LINE) & MASK)) << 4);
  }

  // Copies the block of a row-major matrix that starts at `source`; what lies past `rows_left` or `columns_left` becomes zero.
  static __device__ __forceinline__ void load(u32 tile, const u16 *source, long long stride, int rows_left, int columns_left) {
    const int first_row = threadIdx.x / PIECES;
    const int column = threadIdx.x % PIECES * VECTOR;
    const bool column_valid = column < columns_left;
    source += first_row * stride + column;
    if constexpr (VECTOR > 1) {
#pragma unroll
      for (int i = 0; i < COPIES; ++i) {
        const int row = first_row + i * ROW_STEP;
        copy_async<2 * VECTOR>(tile + offset(row, column / 8) + column % 8 * 2, source, column_valid && row < rows_left);
        source += ROW_STEP * stride;
      }
    } else {
      // cp.async moves at least 4 bytes, so odd rows pass through registers, a few at a time to overlap their latencies.
      constexpr int BATCH = COPIES < 8 ? COPIES : 8;
      static_assert(COPIES % BATCH == 0, "whole batches");
#pragma unroll 1
      for (int first = 0; first < COPIES; first += BATCH) {
        u16 values[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
          const int row = first_row + (first + i) * ROW_STEP;
          values[i] = column_valid && row < rows_left ? *source : u16(0);
          source += ROW_STEP * stride;
        }
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
          const int row = first_row + (first + i) * ROW_STEP;
          store_shared(tile + offset(row, column / 8) + column % 8 * 2, values[i]);
        }
      }
    }
  }
};
