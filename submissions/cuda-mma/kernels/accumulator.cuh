// One thread's part of a 16x8 block of C, accumulated in fp32.
#pragma once

#include "ptx.cuh"

struct Accumulator {
  float value[4] = {0.f, 0.f, 0.f, 0.f};  // (row, column), (row, column + 1), then both 8 rows below

  // Adds a 16x16 block of A times a 16x8 block of B. `step` counts such blocks along K.
  __device__ __forceinline__ void multiply_add(const u32 (&a)[4], u32 b0, u32 b1, int step) {
    (void)step;
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(value[0]), "+f"(value[1]), "+f"(value[2]), "+f"(value[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }

  // Called once after the last step, before `value` is read.
  __device__ __forceinline__ void finish() {}
};
