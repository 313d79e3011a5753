"""Standard normals in fp16 on a CUDA device, as fast as memory takes them: drawing inputs is most of verifying a window.

Bits come from SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) at a place of its sequence that the seed decides; each 64 of
them give two normals (Box and Muller, Annals of Mathematical Statistics 29, 1958), of up to 6.7 standard deviations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.verify.cupy_kernels import launch

if TYPE_CHECKING:
    from torch import Tensor

_SOURCE = r"""
typedef unsigned long long u64;
typedef long long i64;

__device__ __forceinline__ u64 mix(u64 x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

// Two normals, rounded to fp16 and packed, from the counter-th 64 bits of the sequence.
__device__ __forceinline__ unsigned two_normals(u64 key, u64 counter) {
    const u64 bits = mix(key + (counter + 1) * 0x9e3779b97f4a7c15ull);
    const float uniform = ((float)(unsigned)(bits >> 32) + 0.5f) * 2.3283064365386963e-10f;
    const float angle = (float)(unsigned)bits * 1.4629180792671596e-09f;
    const float radius = sqrtf(fmaxf(0.0f, -2.0f * __logf(uniform)));
    unsigned packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(radius * __sinf(angle)), "f"(radius * __cosf(angle)));
    return packed;
}

// Fills sets of `count` fp16 words, eight at a time where the addresses allow it.
extern "C" __global__ void __launch_bounds__(256) fill_normal(unsigned short* base, i64 set_stride, i64 count, u64 key) {
    unsigned short* out = base + (i64)blockIdx.y * set_stride;
    const i64 groups = (count + 7) / 8, step = (i64)gridDim.x * blockDim.x;
    const bool aligned = (u64)out % 16 == 0;
    for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < groups; i += step) {
        const u64 counter = ((u64)blockIdx.y * (u64)groups + (u64)i) * 4;
        const uint4 eight = {two_normals(key, counter), two_normals(key, counter + 1), two_normals(key, counter + 2),
                             two_normals(key, counter + 3)};
        if (aligned && i * 8 + 8 <= count) {
            ((uint4*)out)[i] = eight;
        } else {
            const unsigned pairs[4] = {eight.x, eight.y, eight.z, eight.w};
            #pragma unroll
            for (int j = 0; j < 8; j++)
                if (i * 8 + j < count) out[i * 8 + j] = (unsigned short)(pairs[j / 2] >> 16 * (j % 2));
        }
    }
}
"""

_MOST_BLOCKS = 4096


def fill_normal(batches: Sequence[Tensor], seed: int) -> None:
    """Fill with independent N(0, 1), on the current stream; nothing waits.

    Args:
        batches: [sets, rows, columns] fp16 on a CUDA device, every set dense.
        seed: 64-bit seed.

    Raises:
        ValueError: a set is not dense.
    """
    import numpy

    for place, batch in enumerate(batches):
        sets, rows, columns = batch.shape
        if batch.stride(2) != 1 or (rows > 1 and batch.stride(1) != columns):
            raise ValueError(f"sets with strides {batch.stride()} are not dense")
        blocks = max(1, min(-(-rows * columns // 8 // 256), _MOST_BLOCKS // min(sets, _MOST_BLOCKS)))
        key = numpy.frombuffer(hashlib.blake2b(f"{seed}/{place}".encode(), digest_size=8).digest(), numpy.uint64)[0]
        arguments = (batch.data_ptr(), numpy.int64(batch.stride(0)), numpy.int64(rows * columns), key)
        launch(_SOURCE, "fill_normal", (blocks, sets), 256, arguments)
