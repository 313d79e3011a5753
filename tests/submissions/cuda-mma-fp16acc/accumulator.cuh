// One thread's part of a 16x8 block of C, accumulated in fp16 and added to fp32 sums every PROMOTE_EVERY of K (0: at the end).
#pragma once

#include "ptx.cuh"

struct Accumulator {
  float value[4] = {0.f, 0.f, 0.f, 0.f};
  u32 chunk[2] = {0u, 0u};  // the same four places in fp16

  __device__ __forceinline__ void multiply_add(const u32 (&a)[4], u32 b0, u32 b1, int step) {
    asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
        : "+r"(chunk[0]), "+r"(chunk[1])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    if (PROMOTE_EVERY > 0 && (step + 1) * 16 % (PROMOTE_EVERY > 0 ? PROMOTE_EVERY : 1) == 0) promote();
  }

  __device__ __forceinline__ void finish() { promote(); }

  __device__ __forceinline__ void promote() {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const u16 half = static_cast<u16>(chunk[i / 2] >> (i % 2 * 16));
      float wide;
      asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(half));
      value[i] += wide;
    }
    chunk[0] = chunk[1] = 0u;
  }
};
