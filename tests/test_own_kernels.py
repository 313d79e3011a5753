"""The kernels with which the harness draws and projects on a CUDA device, run on a CPU that plays a GPU (tests/emulator).

tests/test_verify_gpu.py asks the same of a GPU.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import emulated
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from harness.devices import cuda_kernels
from harness.verify import fill_cuda, project_cuda

PRELUDE = """
#include "ptx.hpp"
#include <cmath>
#include <cstring>
struct uint4 { unsigned x, y, z, w; };
static const emulator::Dim blockDim = {THREADS, 1, 1};
static float __uint_as_float(unsigned bits) { float value; std::memcpy(&value, &bits, 4); return value; }
static unsigned __float_as_uint(float value) { unsigned bits; std::memcpy(&bits, &value, 4); return bits; }
#define __logf std::log
#define __sinf std::sin
#define __cosf std::cos
static unsigned __shfl_xor_sync(unsigned, unsigned value, unsigned other) {
  return emulator::from_lane(value, emulator::here.lane ^ other);
}
static float __shfl_xor_sync(unsigned all, float value, unsigned other) {
  return __uint_as_float(__shfl_xor_sync(all, __float_as_uint(value), other));
}
static unsigned __reduce_add_sync(unsigned, unsigned value) {
  unsigned sum = 0;
  for (unsigned lane = 0; lane < 32; ++lane) sum += emulator::from_lane(value, lane);
  return sum;
}
static u64 __shfl_down_sync(unsigned, u64 value, unsigned lanes) {
  const unsigned from = emulator::here.lane + lanes < 32 ? emulator::here.lane + lanes : emulator::here.lane;
  return emulator::from_lane(unsigned(value), from) | u64{emulator::from_lane(unsigned(value >> 32), from)} << 32;
}
template <class Number>
static void atomicAdd(Number *to, Number value) { *to += value; }
static float from_half(unsigned bits) { return emulator::float_of(bits); }
static unsigned to_half(float value) { return emulator::half_of(value); }
"""
DEFINED = re.compile(r"__device__ __forceinline__ \w+ (?:from_half|to_half|multiply_warp)\(.*?\n}\n", re.DOTALL)
PACKED = re.compile(r'asm\("cvt\.rn\.f16x2\.f32.*?: "f"\((.*?)\), "f"\((.*?)\)\);')
Halves = NDArray[np.uint16]
VECTORS = project_cuda.VECTORS
COMPARING = cuda_kernels._SOURCE.split("// Per multiprocessor")[0]
THREADS = {project_cuda._SOURCE: 128, fill_cuda._SOURCE: 256, COMPARING: 256}
"""Threads of a block."""


@functools.cache
def library(source: str, threads: int) -> ctypes.CDLL:
    """A source with its instructions replaced by what the emulator offers."""
    text = DEFINED.sub("", source)
    text = PACKED.sub(r"packed = pack(\2, \1);", text)
    assert "asm" not in text
    directory = emulated._directory()
    machine, made = directory / "machine.o", directory / f"own-{len(source)}.so"
    if not machine.exists():
        emulated._compile("-O2", "-c", str(emulated.DIRECTORY / "machine.cpp"), "-o", str(machine))
    entries = re.findall(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(', text)
    calls = "".join(f"\nEMULATED({entry})" for entry in entries)
    made.with_suffix(".cpp").write_text(PRELUDE.replace("THREADS", str(threads)) + text + calls, encoding="utf-8")
    emulated._compile("-shared", f"-I{emulated.DIRECTORY}", str(made.with_suffix(".cpp")), str(machine), "-o", str(made))
    return ctypes.CDLL(str(made))


def launch(source: str, entry: str, grid: tuple[int, int], values: Sequence[ctypes._SimpleCData[Any]]) -> None:
    threads = THREADS[source]
    kernels = library(source, threads)
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    shape = ((ctypes.c_uint * 3)(*grid, 1), (ctypes.c_uint * 3)(threads, 1, 1), (ctypes.c_uint * 3)(1, 1, 1), 0)
    kernels.emulate.restype = ctypes.c_char_p
    failure = kernels.emulate(getattr(kernels, f"call_{entry}"), pointers, ctypes.byref(emulated._Options(*shape, 1, True, 1)))
    assert failure == b""


def pointer(array: NDArray[np.generic]) -> ctypes.c_uint64:
    return ctypes.c_uint64(array.ctypes.data)


integer, long = ctypes.c_int, ctypes.c_longlong


def aligned(size: int, fill: int = 0) -> Halves:
    """Words at a multiple of 256 bytes, as device memory has it."""
    words = np.full(size + 128, fill, dtype=np.uint16)
    start = -(words.ctypes.data // 2) % 128
    return words[start : start + size]


def split(vectors: NDArray[np.float32], scale: float) -> Halves:
    """[sets, length, 20] as [sets, 2, 16, padded]."""
    sets, length, _ = vectors.shape
    padded = project_cuda._padded(length)
    pieces = aligned(sets * 2 * VECTORS * padded, 0x7FFF)
    arguments = (pointer(vectors), integer(length), integer(padded), ctypes.c_float(scale), pointer(pieces))
    launch(project_cuda._SOURCE, "split_vectors", (-(-padded // 128), sets), arguments)
    return pieces.reshape(sets, 2, VECTORS, padded)


class Matrix(NamedTuple):
    """A [sets, rows, columns] view of words."""

    words: Halves
    strides: tuple[int, int, int]
    shape: tuple[int, int, int]


def project(matrix: Matrix, pieces: Halves, poison: int) -> NDArray[np.float32]:
    sets, rows, columns = matrix.shape
    out = np.full((sets, rows, VECTORS + 4), np.nan if columns <= project_cuda._COLUMNS_PER_WARP else 0.0, dtype=np.float32)
    warps = -(-rows // project_cuda._ROWS_PER_WARP) * -(-columns // project_cuda._COLUMNS_PER_WARP)
    set_stride = 0 if len(pieces) == 1 else pieces[0].size
    arguments = (
        pointer(matrix.words), *map(long, matrix.strides), integer(rows), integer(columns), pointer(pieces),
        long(set_stride), integer(pieces.shape[1]), integer(pieces.shape[3]), integer(poison), pointer(out),
    )  # fmt: skip
    launch(project_cuda._SOURCE, "project_rows", (-(-warps // 4), sets), arguments)
    return out


@pytest.mark.parametrize("rows_dense", [False, True], ids=["along columns", "along rows"])
@pytest.mark.parametrize("shape", [(2, 64, 96), (1, 33, 129), (3, 1, 1), (1, 40, 1100), (2, 5, 2050)], ids=str)
def test_projections_agree_with_float64(shape: tuple[int, int, int], rows_dense: bool) -> None:
    sets, rows, columns = shape
    rng = np.random.default_rng(rows)
    values = rng.standard_normal(shape).astype(np.float16)
    stored = values.swapaxes(1, 2) if rows_dense else values
    step = stored[0].size + 24
    matrix = aligned(sets * step, 0x7E01)
    matrix.reshape(sets, step)[:, : stored[0].size] = np.ascontiguousarray(stored).view(np.uint16).reshape(sets, -1)
    strides = (step, 1, rows) if rows_dense else (step, columns, 1)
    vectors = np.full((sets, columns, 20), np.nan, dtype=np.float32)
    vectors[:, :, :VECTORS] = rng.standard_normal((sets, columns, VECTORS)) * 100
    scale = 0.25
    pieces = split(vectors, scale)
    numbers = pieces.view(np.float16).astype(np.float64)
    assert not numbers[..., columns:].any()
    whole = numbers.sum(1)[..., :columns].swapaxes(1, 2) / scale
    np.testing.assert_allclose(whole, vectors[:, :, :VECTORS], rtol=2.0**-21, atol=2.0**-24 / scale)
    out = project(Matrix(matrix, strides, shape), pieces, -1)
    exact = values.astype(np.float64)
    norms = np.linalg.norm(exact, axis=2)[:, :, None] * np.linalg.norm(vectors[:, :, :VECTORS], axis=1)[:, None, :]
    assert np.abs(out[:, :, :VECTORS] / scale - exact @ vectors[:, :, :VECTORS].astype(np.float64)).max() < 2e-6 * norms.max()
    np.testing.assert_allclose(out[:, :, 16], (exact**2).sum(2), rtol=1e-5)
    ulps = np.spacing(np.maximum(np.abs(values), np.float16(2.0**-14))).astype(np.float64)
    np.testing.assert_allclose(out[:, :, 17], (ulps**2).sum(2), rtol=1e-5)
    assert not out[:, :, 18:].any()


def test_signs_need_one_part_and_defects_are_counted() -> None:
    poison, shape = 0xFE35, (2, 70, 200)
    rng = np.random.default_rng(5)
    matrix = aligned(int(np.prod(shape)))
    view = matrix.reshape(shape)
    view[:] = rng.standard_normal(shape).astype(np.float16).view(np.uint16)
    view[0, 3, 5:9], view[1, 69, 199], view[1, 2, 2], view[0, 0, 0] = poison, 0x7C00, 0xFC00, 0x7E00
    signs = torch.from_numpy(rng.choice([-1.0, 1.0], size=(200, VECTORS)))
    pieces, scale = project_cuda.from_signs(signs)
    assert (tuple(pieces.shape), scale) == ((1, 1, VECTORS, 224), 1.0)
    out = project(Matrix(matrix, (70 * 200, 200, 1), shape), pieces.numpy().view(np.uint16), poison)
    assert out[:, :, 18].sum(1).tolist() == [4, 0]
    assert out[:, :, 19].sum(1).tolist() == [1, 2]
    finite = np.isfinite(out[:, :, 0])
    assert np.argwhere(~finite).tolist() == [[0, 0], [0, 3], [1, 2], [1, 69]]
    exact = view.view(np.float16).astype(np.float64) @ signs.numpy()
    assert np.abs(out[:, :, :VECTORS][finite] - exact[finite]).max() < 1e-4


@pytest.mark.parametrize(
    ("sets", "count", "gap", "offset"), [(3, 1001, 23, 0), (3, 1001, 0, 1), (1, 7, 0, 0), (2, 20_000, 8, 0)]
)
def test_normals_have_the_right_moments_and_stay_inside(sets: int, count: int, gap: int, offset: int) -> None:
    words = aligned(sets * (count + gap) + 64, 0x7F5A)
    drawn = []
    for key in (3, 3, 4):
        words[:] = 0x7F5A
        arguments = (pointer(words[offset:]), long(count + gap), long(count), ctypes.c_uint64(key))
        launch(fill_cuda._SOURCE, "fill_normal", (2, sets), arguments)
        inside = words[offset : offset + sets * (count + gap)].reshape(sets, count + gap)
        assert np.all(inside[:, count:] == 0x7F5A)
        assert np.all(words[:offset] == 0x7F5A)
        assert np.all(words[offset + inside.size :] == 0x7F5A)
        drawn.append(inside[:, :count].view(np.float16).astype(np.float64))
    first, again, other = drawn
    assert np.array_equal(first, again)
    error = first.size**-0.5
    for values in (first, other):
        assert abs(values.mean()) < 5 * error
        assert abs(values.var() - 1) < 8 * error
        assert abs((values**4).mean() - 3) < 50 * error
        assert abs((values[:, 1:] * values[:, :-1]).mean()) < 5 * error
    assert abs((first * other).mean()) < 5 * error
    if sets > 1:
        assert abs((first[0] * first[1]).mean()) < 8 * error


def test_every_word_that_differs_is_counted() -> None:
    words = aligned(5 * 3000, 0x7F5A)
    rows = words.reshape(5, 3000)[:, 1:2999]
    rows[0, 0] = rows[4, 2997] = rows[2, 1500] = rows[2, 1501] = 0x7F5B
    words.reshape(5, 3000)[:, [0, 2999]] = 1
    count = np.zeros(1, dtype=np.uint64)
    arguments = (pointer(words[1:]), long(3000), long(2998), integer(0x7F5A), pointer(count))
    launch(COMPARING, "differing", (2, 5), arguments)
    assert count.tolist() == [4]


def test_a_digest_depends_on_every_word_its_place_and_the_key() -> None:
    words = np.arange(3 * 1008, dtype=np.uint16)
    memory = aligned(words.size)

    def digest(changed: NDArray[np.uint16], key: int = 5, blocks: int = 2) -> int:
        memory[:] = changed
        total = np.zeros(1, dtype=np.uint64)
        arguments = (pointer(memory), long(1008), long(1003), ctypes.c_uint64(key), pointer(total))
        launch(COMPARING, "digest", (blocks, 3), arguments)
        return int(total[0])

    seen = {digest(words)}
    assert digest(words, blocks=1) in seen
    for place in (0, 7, 8, 1002, 1008, 3 * 1008 - 6):
        changed = words.copy()
        changed[place] ^= 1
        seen.add(digest(changed))
    swapped, rotated = words.copy(), np.roll(words, 1008)
    swapped[[3, 900]] = swapped[[900, 3]]
    seen |= {digest(swapped), digest(rotated), digest(words, key=6)}
    assert len(seen) == 10
    unseen = words.copy()
    unseen[[1003, 1007, 2015]] = 9
    assert digest(unseen) in seen
