"""Kernels for tests, emulated on tensors: [sets, m, k] and [sets, k, n] fp16 in, [sets, m, n] fp16 out."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from harness.verify.inputs import InputKind, fill
from harness.verify.reference import Tally

Kernel = Callable[[Tensor, Tensor], Tensor]


def drawn(kind: InputKind, shape: str, seed: int, sets: int = 1) -> tuple[Tensor, Tensor]:
    """Fresh inputs of a shape MxNxK; B transposed for odd seeds."""
    m, n, k = map(int, shape.split("x"))
    a = torch.full((sets, m, k), torch.nan, dtype=torch.float16)
    b = torch.full((sets, n, k) if seed % 2 else (sets, k, n), torch.nan, dtype=torch.float16)
    b = b.transpose(1, 2) if seed % 2 else b
    fill(kind, a, b, seed)
    return a, b


def figures(tally: Tally) -> dict[str, float]:
    """The numbers of a tally, for comparing two."""
    return {name: value for name, value in tally.model_dump().items() if isinstance(value, int | float)}


def fp32(a: Tensor, b: Tensor) -> Tensor:
    """Honest: fp32 accumulation in whatever order torch likes."""
    return (a.float() @ b.float()).half()


def shuffled_split_k(a: Tensor, b: Tensor, seed: int) -> Tensor:
    """Honest: the terms in random order, in random pieces, whose fp32 sums are added in random order."""
    rng = random.Random(seed)
    k = a.shape[2]
    order = torch.tensor(rng.sample(range(k), k))
    pieces = [piece for piece in order.tensor_split(rng.randint(1, 8)) if len(piece)]
    partial_sums = [a[:, :, piece].float() @ b[:, piece].float() for piece in pieces]
    rng.shuffle(partial_sums)
    total = partial_sums[0]
    for each in partial_sums[1:]:
        total = total + each
    return total.half()


def truncating(a: Tensor, b: Tensor) -> Tensor:
    """Honest: like a tensor core, 16 products at a time, each sum truncated to fp32."""
    total = torch.zeros((), dtype=torch.float64)
    for step in range(0, a.shape[2], 16):
        total = total + a[:, :, step : step + 16].double() @ b[:, step : step + 16].double()
        total = (total.view(torch.int64) & ~((1 << 29) - 1)).view(torch.float64)
    return total.half()


def fp16(a: Tensor, b: Tensor, step: int = 16, promote: int | None = None, exact_ends: int = 0) -> Tensor:
    """fp16 accumulators: `step` products at a time, added to fp32 every `promote` terms; the ends of K in fp32 if asked for."""
    k = a.shape[2]
    total = torch.zeros((a.shape[0], a.shape[1], b.shape[2]))
    inner = range(exact_ends, k - exact_ends)
    if exact_ends:
        for end in (slice(0, exact_ends), slice(k - exact_ends, k)):
            total += a[:, :, end].float() @ b[:, end].float()
    for first in range(inner.start, inner.stop, promote or k):
        chunk = torch.zeros_like(total, dtype=torch.float16)
        last = min(inner.stop, first + (promote or k))
        for low in range(first, last, step):
            high = min(last, low + step)
            chunk = (chunk.double() + a[:, :, low:high].double() @ b[:, low:high].double()).half()
        total += chunk.float()
    return total.half()


def bf16_inputs(a: Tensor, b: Tensor) -> Tensor:
    return (a.bfloat16().float() @ b.bfloat16().float()).half()


def fp8_inputs(a: Tensor, b: Tensor) -> Tensor:
    return (a.to(torch.float8_e4m3fn).float() @ b.to(torch.float8_e4m3fn).float()).half()


def int8_inputs(a: Tensor, b: Tensor) -> Tensor:
    """Symmetric int8 with one scale per row of A and column of B."""
    scale_a, scale_b = a.float().abs().amax(2, keepdim=True) / 127, b.float().abs().amax(1, keepdim=True) / 127
    return (((a / scale_a).round() @ (b / scale_b).round()) * scale_a * scale_b).half()


def fp16_reduced_split_k(a: Tensor, b: Tensor) -> Tensor:
    """fp32 sums over eighths of K, rounded to fp16 and added in fp16."""
    total = torch.zeros((), dtype=torch.float16)
    for left, right in zip(a.tensor_split(8, 2), b.tensor_split(8, 1), strict=True):
        total = total + (left.float() @ right.float()).half()
    return total


def without_last(a: Tensor, b: Tensor, terms: int) -> Tensor:
    return fp32(a[:, :, :-terms], b[:, :-terms])


def rescaled(a: Tensor, b: Tensor) -> Tensor:
    """Skips a tenth of K and makes up for its magnitude."""
    kept = a.shape[2] * 9 // 10
    return ((a[:, :, :kept].float() @ b[:, :kept].float()) / 0.9).half()


def zeros(a: Tensor, b: Tensor) -> Tensor:
    return torch.zeros((a.shape[0], a.shape[1], b.shape[2]), dtype=torch.float16)


def row_means(a: Tensor, b: Tensor) -> Tensor:
    """Every output is the mean of its row."""
    c = a.float() @ b.float()
    return c.mean(2, keepdim=True).expand_as(c).half()


def transposed(a: Tensor, b: Tensor) -> Tensor:
    return fp32(a, b).transpose(1, 2).contiguous()


NARROW_ACCUMULATORS: dict[str, Kernel] = {
    "fp16": fp16,
    "fp16_sequential": partial(fp16, step=1),
    "fp16_per_16": partial(fp16, promote=16),
    "fp16_per_32": partial(fp16, promote=32),
    "fp16_per_64": partial(fp16, promote=64),
    "fp16_exact_ends": partial(fp16, exact_ends=16),
    "fp16_per_32_exact_ends": partial(fp16, promote=32, exact_ends=1),
}
NARROW_INPUTS: dict[str, Kernel] = {"bf16": bf16_inputs, "fp8": fp8_inputs, "int8": int8_inputs}
WRONG: dict[str, Kernel] = {
    "zeros": zeros,
    "row_means": row_means,
    "transposed": transposed,
    "without_last_16": partial(without_last, terms=16),
    "rescaled": rescaled,
}
