"""Random projections on a CUDA device: one pass over a matrix gives its rows' products, squares and ulps, at memory speed.

Products are the tensor cores': of fp16 numbers they are exact, sums are fp32. A vector that fp16 does not hold is split into
two that it does (hi + lo, 22 bits). What the sums lose, some 1e-6 of a row's norm, is a hundredth of fp16's rounding.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.verify.cupy_kernels import launch

if TYPE_CHECKING:
    from torch import Tensor

VECTORS = 16
_STEP = 32
_COLUMNS_PER_WARP = 1024
_ROWS_PER_WARP = 32
_SCALE = 16.0
"""What a projected row's typical size becomes before it is rounded to fp16, far from both ends of its range."""

_SOURCE = r"""
typedef long long i64;
typedef unsigned long long u64;
typedef unsigned u32;
typedef unsigned short u16;

__device__ __forceinline__ float from_half(u32 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((u16)bits));
    return value;
}
__device__ __forceinline__ u32 to_half(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
// c[16 x 8] += a[16 x 16] * b[16 x 8] of a warp.
__device__ __forceinline__ void multiply_warp(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Eight elements as pairs; the first `valid` of them, and zeros.
__device__ __forceinline__ uint4 gather(const u16* p, i64 stride, int valid) {
    u32 pairs[4] = {};
    #pragma unroll
    for (int j = 0; j < 8; j++)
        if (j < valid) pairs[j / 2] |= (u32)p[j * stride] << 16 * (j % 2);
    return {pairs[0], pairs[1], pairs[2], pairs[3]};
}
struct Tally {
    float squares, ulps;
};
// Adds the squares of the first `valid` of eight elements, and of their ulps times 1024; counts those that hold no number.
__device__ __forceinline__ void look(const uint4& eight, int valid, int poison, Tally& tally, u32& unwritten, u32& others) {
    const u32 pairs[4] = {eight.x, eight.y, eight.z, eight.w};
    u32 special = 0;
    #pragma unroll
    for (int j = 0; j < 8; j++) {
        const float value = from_half(pairs[j / 2] >> 16 * (j % 2) & 0xFFFF);
        const float power = fmaxf(__uint_as_float(__float_as_uint(value) & 0x7F800000u), 6.103515625e-05f);
        tally.squares += value * value;
        if (j < valid) tally.ulps += power * power;
        if (j % 2 == 0) special |= (pairs[j / 2] & 0x7C007C00u) + 0x04000400u;
    }
    if (special & 0x80008000u) {
        #pragma unroll
        for (int j = 0; j < 8; j++) {
            const u32 bits = pairs[j / 2] >> 16 * (j % 2) & 0xFFFF;
            const bool no_number = (bits & 0x7C00) == 0x7C00;
            unwritten += no_number && (int)bits == poison;
            others += no_number && (int)bits != poison;
        }
    }
}
// Rows of a [sets, rows, columns] fp16 tensor times 16 vectors, which are sums of `parts` fp16 vectors: x [parts, 16, padded].
// out [sets, rows, 20] fp32: products, sum of squares, sum of squared ulps, counts of elements that are the poison and of
// others that are not finite; counts stand in any row. A warp: 32 rows, up to 1024 columns; where there are more, sums add up.
extern "C" __global__ void __launch_bounds__(128) project_rows(
    const u16* m, i64 set_stride, i64 row_stride, i64 column_stride, int rows, int columns,
    const u16* x, i64 x_set_stride, int parts, int padded, int poison, float* out) {
    const int lane = threadIdx.x % 32, warp = blockIdx.x * 4 + threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int groups = (rows + 31) / 32, row0 = warp % groups * 32 + g, first = warp / groups * 1024;
    const int last = min(columns, first + 1024);
    if (first >= columns) return;
    m += blockIdx.y * set_stride + row0 * row_stride;
    x += blockIdx.y * x_set_stride + (i64)g * padded;
    const bool dense = column_stride == 1 && row_stride % 8 == 0 && (u64)m % 16 == 0 && row0 - g + 32 <= rows;
    float sums[2][2][4] = {}, recent[2][2][4] = {};
    Tally tallies[4] = {};
    u32 unwritten = 0, others = 0;
    for (int c0 = first; c0 < last; c0 += 32) {
        // A lane's eight elements are the pairs of its place in two products of depth 16: any order of columns will do, if
        // matrix and vectors have the same.
        const int column = c0 + t * 8, valid = min(8, columns - column);
        uint4 eights[4];
        if (dense && c0 + 32 <= columns) {
            #pragma unroll
            for (int i = 0; i < 4; i++) eights[i] = *(const uint4*)(m + i * 8 * row_stride + column);
        } else {
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                const u16* p = m + i * 8 * row_stride + column * column_stride;
                eights[i] = gather(p, column_stride, row0 + i * 8 < rows ? valid : 0);
            }
        }
        for (int part = 0; part < parts; part++) {
            const u16* vectors = x + (i64)(part * 16) * padded + column;
            const uint4 low = *(const uint4*)vectors, high = *(const uint4*)(vectors + (i64)8 * padded);
            #pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint4 &upper = eights[2 * i], &lower = eights[2 * i + 1];
                const u32 front[4] = {upper.x, lower.x, upper.y, lower.y}, back[4] = {upper.z, lower.z, upper.w, lower.w};
                multiply_warp(recent[i][0], front, low.x, low.y);
                multiply_warp(recent[i][1], front, high.x, high.y);
                multiply_warp(recent[i][0], back, low.z, low.w);
                multiply_warp(recent[i][1], back, high.z, high.w);
            }
        }
        #pragma unroll
        for (int i = 0; i < 4; i++) look(eights[i], valid, poison, tallies[i], unwritten, others);
        // Tensor cores cut sums off rather than round them, so no long sum is theirs.
        if (c0 % 256 == 224 || c0 + 32 >= last) {
            #pragma unroll
            for (int i = 0; i < 16; i++) {
                sums[i / 8][i / 4 % 2][i % 4] += recent[i / 8][i / 4 % 2][i % 4];
                recent[i / 8][i / 4 % 2][i % 4] = 0;
            }
        }
    }
    #pragma unroll
    for (int other = 1; other < 32; other *= 2) {
        unwritten += __shfl_xor_sync(~0u, unwritten, other);
        others += __shfl_xor_sync(~0u, others, other);
    }
    const auto put = [columns](float* to, float value) {
        if (columns <= 1024) *to = value;
        else atomicAdd(to, value);
    };
    float* mine = out + ((i64)blockIdx.y * rows + row0) * 20;
    #pragma unroll
    for (int i = 0; i < 4; i++, mine += 8 * 20) {
        #pragma unroll
        for (int other = 1; other < 4; other *= 2) {
            tallies[i].squares += __shfl_xor_sync(~0u, tallies[i].squares, other);
            tallies[i].ulps += __shfl_xor_sync(~0u, tallies[i].ulps, other);
        }
        if (row0 + i * 8 >= rows) continue;
        #pragma unroll
        for (int j = 0; j < 4; j++) put(mine + j / 2 * 8 + t * 2 + j % 2, sums[i / 2][j / 2][i % 2 * 2 + j % 2]);
        if (t == 0) put(mine + 16, tallies[i].squares);
        if (t == 1) put(mine + 17, tallies[i].ulps * 9.5367431640625e-07f);
        if (t == 2) put(mine + 18, i == 0 && g == 0 ? (float)unwritten : 0.0f);
        if (t == 3) put(mine + 19, i == 0 && g == 0 ? (float)others : 0.0f);
    }
}
// Vectors [sets, length, 20] fp32 (the first 16 of each), scaled, as x [sets, 2, 16, padded]: rounded, and what rounding left.
extern "C" __global__ void split_vectors(const float* from, int length, int padded, float scale, u16* x) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= padded) return;
    for (int v = 0; v < 16; v++) {
        const float value = column < length ? from[((i64)blockIdx.y * length + column) * 20 + v] * scale : 0.0f;
        const u32 high = to_half(value);
        u16* to = x + ((i64)blockIdx.y * 32 + v) * padded + column;
        to[0] = high;
        to[(i64)16 * padded] = to_half(value - from_half(high));
    }
}
"""


class Vectors(NamedTuple):
    """Vectors that matrices are projected on."""

    pieces: Tensor
    """[sets or 1, parts, 16, padded] fp16; their sum over the parts is `scale` times the vectors."""
    scale: float
    """A power of two."""


def from_signs(signs: Tensor) -> Vectors:
    """The same vectors of ±1 for all sets, from [columns, 16]."""
    import torch

    columns = signs.shape[0]
    pieces = torch.zeros((1, 1, VECTORS, _padded(columns)), dtype=torch.float16, device=signs.device)
    pieces[0, 0, :, :columns] = signs.T
    return Vectors(pieces, 1.0)


def from_rows(projected: Tensor, columns: int) -> Vectors:
    """Every set's own vectors, from what `project_rows` gave of a matrix with so many columns: [sets, rows, 20] fp32."""
    import torch

    sets, length, _ = projected.shape
    padded = _padded(length)
    pieces = torch.empty((sets, 2, VECTORS, padded), dtype=torch.float16, device=projected.device)
    scale = _SCALE / 2.0 ** math.ceil(math.log2(columns) / 2)
    arguments = (projected.data_ptr(), _int(length), _int(padded), _float(scale), pieces.data_ptr())
    launch(_SOURCE, "split_vectors", (-(-padded // 128), sets), 128, arguments)
    return Vectors(pieces, scale)


def project_rows(matrix: Tensor, vectors: Vectors, poison_bits: int | None) -> Tensor:
    """Products of every row with 16 vectors, its sum of squares, its sum of squared ulps, and counts of defects.

    Args:
        matrix: [sets, rows, columns] fp16, of any strides.
        vectors: as long as its rows.
        poison_bits: bit pattern (a NaN) counted as unwritten.

    Returns:
        [sets, rows, 20] fp32; counts add up over the rows.
    """
    import numpy
    import torch

    sets, rows, columns = matrix.shape
    pieces, scale = vectors
    warps = -(-rows // _ROWS_PER_WARP) * -(-columns // _COLUMNS_PER_WARP)
    blank = torch.empty if columns <= _COLUMNS_PER_WARP else torch.zeros
    out = blank((sets, rows, VECTORS + 4), dtype=torch.float32, device=matrix.device)
    strides = tuple(numpy.int64(stride) for stride in matrix.stride())
    arguments = (
        matrix.data_ptr(), *strides, _int(rows), _int(columns), pieces.data_ptr(),
        numpy.int64(pieces.stride(0) if len(pieces) > 1 else 0), _int(pieces.shape[1]), _int(pieces.shape[3]),
        _int(-1 if poison_bits is None else poison_bits), out.data_ptr(),
    )  # fmt: skip
    launch(_SOURCE, "project_rows", (-(-warps // 4), sets), 128, arguments)
    if scale != 1.0:
        out[:, :, :VECTORS] /= scale
    return out


def _padded(columns: int) -> int:
    return -(-columns // _STEP) * _STEP


def _int(value: int) -> Any:
    import numpy

    return numpy.int32(value)


def _float(value: float) -> Any:
    import numpy

    return numpy.float32(value)
