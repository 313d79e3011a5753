"""The harness's own kernels, compiled by CuPy once per machine: digest of inputs, clock probe, delay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.verify.cupy_kernels import stream_of

if TYPE_CHECKING:
    import torch

_SOURCE = r"""
typedef unsigned long long u64;

// Adds up a keyed mix of every 16-bit word and its place; equal memory gives equal sums in any order.
extern "C" __global__ void digest(const unsigned short* base, long long set_stride, long long count, u64 key, u64* out) {
    const unsigned short* p = base + (long long)blockIdx.y * set_stride;
    u64 sum = 0, salt = key + (u64)blockIdx.y * 0x9e3779b97f4a7c15ull;
    const long long step = (long long)gridDim.x * blockDim.x;
    const long long words = count / 8;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < words; i += step) {
        const uint4 v = ((const uint4*)p)[i];
        u64 x = (((u64)v.y << 32) | v.x) ^ salt, y = (((u64)v.w << 32) | v.z) + salt;
        x = (x + (u64)i) * 0xff51afd7ed558ccdull; x ^= x >> 33;
        y = (y ^ (u64)i) * 0xc4ceb9fe1a85ec53ull; y ^= y >> 29;
        sum += x * y + (x ^ (y << 7));
    }
    for (long long i = words * 8 + blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += step) {
        u64 x = (p[i] ^ salt) * 0xff51afd7ed558ccdull + (u64)i; x ^= x >> 33;
        sum += x * 0xc4ceb9fe1a85ec53ull;
    }
    for (int lane = 16; lane > 0; lane >>= 1) sum += __shfl_down_sync(~0u, sum, lane);
    if (threadIdx.x % 32 == 0) atomicAdd(out, sum);
}

// Counts 16-bit words of rows that are not the one given.
extern "C" __global__ void differing(const unsigned short* base, long long row_stride, long long columns, int bits, u64* out) {
    const unsigned short* row = base + (long long)blockIdx.y * row_stride;
    unsigned found = 0;
    const long long step = (long long)gridDim.x * blockDim.x;
    #pragma unroll 8
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < columns; i += step) found += row[i] != bits;
    found = __reduce_add_sync(~0u, found);
    if (threadIdx.x % 32 == 0 && found) atomicAdd(out, (u64)found);
}

// Per multiprocessor: its cycle counter and the device-wide nanosecond timer.
extern "C" __global__ void probe(u64* out) {
    unsigned sm; u64 cycles, nanoseconds;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles));
    out[2 * sm] = cycles; out[2 * sm + 1] = nanoseconds;
}

// Occupies one multiprocessor for a number of nanoseconds, whatever the clock.
extern "C" __global__ void spin(long long wanted) {
    u64 start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do { asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); } while ((long long)(now - start) < wanted);
}
"""


class Kernels:
    """The compiled kernels; everything goes onto one stream."""

    def __init__(self, stream: int, sm_count: int) -> None:
        import cupy
        import cupyx
        import numpy

        self._cupy = cupy
        self._stream = stream_of(stream)
        module = cupy.RawModule(code=_SOURCE)
        self._digest = module.get_function("digest")
        self._differing = module.get_function("differing")
        self._probe = module.get_function("probe")
        self._spin = module.get_function("spin")
        self._sm_count = sm_count
        # In the host's memory, where the device writes to it: a clock is read after every window.
        self._probes = cupyx.zeros_pinned((2, 4 * sm_count, 2), dtype=numpy.int64)
        with self._stream:
            self._sum = cupy.zeros(1, dtype=cupy.uint64)

    def digest(self, tensors: Sequence[torch.Tensor], key: int) -> int:
        """Keyed hash of fp16 tensors [sets, rows, columns] whose sets are dense, along rows or columns."""
        with self._stream:
            self._sum.fill(0)
            for place, tensor in enumerate(each if each.stride(2) == 1 else each.transpose(1, 2) for each in tensors):
                sets, rows, columns = tensor.shape
                count = rows * columns
                blocks = max(1, min(512, -(-count // 8 // 256)))
                salt = self._u64((key + place * 0x9E3779B97F4A7C15) % (1 << 64))
                arguments = (tensor.data_ptr(), self._i64(tensor.stride(0)), self._i64(count), salt, self._sum)
                self._digest((blocks, sets), (256,), arguments)
            return int(self._sum.get()[0])

    def holds(self, words: Sequence[torch.Tensor], bits: int) -> bool:
        """Whether all words of these int16 views [rows, columns], whose rows are dense, have these bits."""
        import numpy

        with self._stream:
            self._sum.fill(0)
            for view in words:
                rows, columns = view.shape
                blocks = max(1, min(256, -(-columns // 256 // 8)))
                arguments = (view.data_ptr(), self._i64(view.stride(0)), self._i64(columns), numpy.int32(bits), self._sum)
                self._differing((blocks, rows), (256,), arguments)
            return int(self._sum.get()[0]) == 0

    def probe(self, which: int) -> None:
        """Read all multiprocessors' clocks, at the start (0) or the end (1) of a window."""
        with self._stream:
            self._probe((self._sm_count * 2,), (32,), (self._probes[which].ctypes.data,))

    def clock_mhz(self) -> int | None:
        """Median clock between the two probes, once both are done; None where they lie too close together for the timer."""
        start, end = self._probes
        both = (start[:, 1] > 0) & (end[:, 1] > start[:, 1])
        elapsed = (end - start)[both]
        if len(elapsed) == 0 or int(elapsed[:, 1].min()) < 100_000:
            return None
        ratio = elapsed[:, 0] / elapsed[:, 1] * 1000.0
        ratio.partition(len(ratio) // 2)
        return round(float(ratio[len(ratio) // 2]))

    def spin(self, delay_ns: int) -> None:
        """Occupy one multiprocessor for so many nanoseconds."""
        with self._stream:
            self._spin((1,), (32,), (self._i64(delay_ns),))

    def _i64(self, value: int) -> Any:
        import numpy

        return numpy.int64(value)

    def _u64(self, value: int) -> Any:
        import numpy

        return numpy.uint64(value)
