"""The products of a projection on a CUDA device, fused: one pass over a matrix gives its rows' products, squares and ulps."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

VECTORS = 16
_COLUMNS_PER_BLOCK = 1024
"""Terms summed in fp32 before they go to float64: its error, 2e-6 of a row's norm, is a hundredth of fp16's rounding."""

_SOURCE = r"""
typedef long long i64;
__device__ __forceinline__ float from_half(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
// Rows of a [sets, rows, columns] fp16 tensor of any strides times 16 fp32 vectors [columns, 16] of each set (or of all).
// out [sets, rows, 20] float64 += products, sum of squares, sum of squared ulps, counts of elements that are the poison and
// of others that are not finite. A block: 64 rows, up to 1024 columns.
extern "C" __global__ void __launch_bounds__(128) project_rows(
    const unsigned short* m, i64 set_stride, i64 row_stride, i64 column_stride, int rows, int columns,
    const float* x, i64 x_set_stride, int poison, double* out) {
    __shared__ float tile[64][65];
    __shared__ float vectors[64][16];
    const int t = threadIdx.x, row0 = blockIdx.x * 64, set = blockIdx.y;
    const int first = blockIdx.z * 1024, last = min(columns, first + 1024);
    m += set * set_stride;
    x += set * x_set_stride;
    float sum[4][2] = {};
    float squares = 0, ulps = 0;
    int unwritten = 0, not_finite = 0;
    const int r = t / 8 * 4, v = t % 8 * 2;
    for (int c0 = first; c0 < last; c0 += 64) {
        for (int i = t; i < 4096; i += 128) {
            const int row = column_stride == 1 ? i / 64 : i % 64, column = column_stride == 1 ? i % 64 : i / 64;
            const bool inside = row0 + row < rows && c0 + column < last;
            const unsigned short bits = inside ? m[(row0 + row) * row_stride + (c0 + column) * column_stride] : 0;
            tile[row][column] = from_half(bits);
            unwritten += bits == poison;
            not_finite += (bits & 0x7C00) == 0x7C00 && bits != poison;
        }
        for (int i = t; i < 1024; i += 128)
            vectors[i / 16][i % 16] = c0 + i / 16 < last ? x[(i64)(c0 + i / 16) * 16 + i % 16] : 0.0f;
        __syncthreads();
        #pragma unroll 8
        for (int c = 0; c < 64; c++) {
            const float x0 = vectors[c][v], x1 = vectors[c][v + 1];
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                const float a = tile[r + i][c];
                sum[i][0] += a * x0;
                sum[i][1] += a * x1;
            }
        }
        const int width = min(64, last - c0);
        for (int c = t % 2; c < width; c += 2) {
            const float a = tile[t / 2][c];
            squares += a * a;
            const float power = fmaxf(__uint_as_float(__float_as_uint(a) & 0x7F800000u), 6.103515625e-05f);
            ulps += power * power;
        }
        __syncthreads();
    }
    for (int i = 0; i < 4; i++)
        if (row0 + r + i < rows) {
            double* o = out + ((i64)set * rows + row0 + r + i) * 20;
            atomicAdd(o + v, (double)sum[i][0]);
            atomicAdd(o + v + 1, (double)sum[i][1]);
        }
    if (row0 + t / 2 < rows) {
        double* o = out + ((i64)set * rows + row0 + t / 2) * 20;
        atomicAdd(o + 16, (double)squares);
        atomicAdd(o + 17, (double)ulps * 9.5367431640625e-07);
    }
    // A count belongs to no row in particular: the block's first row takes it.
    double* o = out + ((i64)set * rows + row0) * 20;
    if (unwritten) atomicAdd(o + 18, (double)unwritten);
    if (not_finite) atomicAdd(o + 19, (double)not_finite);
}
"""


def project_rows(matrix: Tensor, vectors: Tensor, poison_bits: int | None) -> Tensor:
    """Products of every row with 16 vectors, its sum of squares, its sum of squared ulps, and counts of defects.

    Args:
        matrix: [sets, rows, columns] fp16, contiguous along rows or columns.
        vectors: [columns, 16] or [sets, columns, 16], rounded to fp32.
        poison_bits: bit pattern counted as unwritten.

    Returns:
        [sets, rows, 20] float64; counts add up over the rows.
    """
    import numpy
    import torch

    sets, rows, columns = matrix.shape
    narrow = vectors.float().contiguous()
    out = torch.zeros((sets, rows, VECTORS + 4), dtype=torch.float64, device=matrix.device)
    grid = (-(-rows // 64), sets, -(-columns // _COLUMNS_PER_BLOCK))
    strides = tuple(numpy.int64(stride) for stride in matrix.stride())
    x_set_stride = numpy.int64(narrow.stride(0) if narrow.dim() == 3 else 0)
    arguments = (
        matrix.data_ptr(), *strides, numpy.int32(rows), numpy.int32(columns), narrow.data_ptr(), x_set_stride,
        numpy.int32(-1 if poison_bits is None else poison_bits), out.data_ptr()
    )  # fmt: skip
    cupy = _cupy()
    with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
        _kernel()(grid, (128,), arguments)
    return out


@cache
def _kernel() -> Any:
    return _cupy().RawModule(code=_SOURCE).get_function("project_rows")


@cache
def _cupy() -> Any:
    import cupy

    return cupy
