// Adds the splits of K that hgemm.cu left in `partial` (splits x m x n fp32, rows padded to 4) in order; rounds once to fp16.

#include "ptx.cuh"

// One thread per 4 columns of one row.
extern "C" __global__ void __launch_bounds__(128) reduce(const float *partial, u16 *c, int m, int n, int splits) {
  wait_for_prerequisites();
  const int quads = (n + 3) / 4;
  const long long index = blockIdx.x * 128ll + threadIdx.x, size = static_cast<long long>(m) * quads;
  if (index >= size) return;

  const float4 *from = reinterpret_cast<const float4 *>(partial) + index;
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 8
  for (int split = 0; split < splits; ++split) {
    const float4 value = from[split * size];
    sum = make_float4(sum.x + value.x, sum.y + value.y, sum.z + value.z, sum.w + value.w);
  }

  const int column = static_cast<int>(index % quads) * 4;
  u16 *to = c + index / quads * n + column;
  const uint2 packed = make_uint2(pack_halves(sum.x, sum.y), pack_halves(sum.z, sum.w));
  if (n % 4 == 0) {
    *reinterpret_cast<uint2 *>(to) = packed;
  } else {
    const u32 words[2] = {packed.x, packed.y};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (column + i < n) to[i] = static_cast<u16>(words[i / 2] >> (i % 2 * 16));
    }
  }
}
