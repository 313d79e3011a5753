"""Inputs of verification and of timed windows: which kinds there are, how they are filled, how many draws are verified.

No kind is enough alone: `cancel` sees every fp16 accumulator but no narrow input, `normal` sees both as errors of a size, and
`permutation` and `identity` see narrow inputs exactly on every track, and every wrong index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from harness.problem import Problem, Track

if TYPE_CHECKING:
    from torch import Generator, Tensor

MIN_POOL_OUTPUTS = 4096
"""Outputs over which the precision class is judged, at least."""

_MIN_EXACT_OUTPUTS = 256
_TEMPORARY_BYTES = 256 << 20
_PAIRS = 4
_PAIR_VALUE = 2048.0
_CHUNKS = (64, 32, 16)
_ROOM = 16
_NONZEROS = 128


class InputKind(StrEnum):
    """Kinds of inputs. None overflows fp16 at any K up to 2²⁰."""

    NORMAL = "normal"
    """A and B are N(0,1): products of full mantissas and both signs, so that every narrowing shows. Timed windows use it."""
    CANCEL = "cancel"
    """Up to four pairs ±2048 in each row of A at random places of K, whose rows of B are equal, so that they cancel; small
    integers elsewhere. Exact in fp32 in any order; an fp16 accumulator, also one promoted every 16, 32 or 64 terms, loses the
    small integers beside either end of a pair."""
    INTEGERS = "integers"
    """Rows of A hold up to 128 integers ±1..4 spread over K, and zeros; B is -4..4. Sum of |a·b| ≤ 2048: exact in fp16."""
    PERMUTATION = "permutation"
    """Every row of A is ±1 at one place, B is N(0,1): C is made of signed rows of B, exact to the last bit of 11."""
    IDENTITY = "identity"
    """A is N(0,1), every column of B is 1 at one place: the columns of C are A's, cyclically shifted."""
    UNIFORM = "uniform"
    """A and B are uniform on [-1, 1): another scale than N(0,1) and no tail, for arithmetic that scales or clips for N(0,1)."""


EXACT_KINDS = frozenset({InputKind.CANCEL, InputKind.INTEGERS, InputKind.PERMUTATION, InputKind.IDENTITY})
"""Kinds whose products are exact in fp32 in any order and, but for `cancel`, in fp16."""


class Draw(NamedTuple):
    """One batch of fresh inputs that the correctness phase uses."""

    kind: InputKind
    sets: int
    """Buffer sets filled and compared together."""


def is_exact(kind: InputKind, track: Track) -> bool:
    """Whether an honest kernel of the track gives exactly the rounded exact result on this kind."""
    return kind in EXACT_KINDS and not (kind is InputKind.CANCEL and track is Track.F16)


def plan_draws(problem: Problem) -> tuple[Draw, ...]:
    """What the correctness phase draws, in the order in which it is to be judged.

    `normal` and `uniform` have enough sets for at least 4,096 outputs, so that tiny shapes have a precision class too, and the
    exact kinds for at least 256. `normal` comes first because its reason says most.
    """
    outputs = problem.m * problem.n
    pooled, exact = math.ceil(MIN_POOL_OUTPUTS / outputs), math.ceil(_MIN_EXACT_OUTPUTS / outputs)
    kinds = [kind for kind in InputKind if not (kind is InputKind.CANCEL and problem.track is Track.F16)]
    return tuple(Draw(kind, exact if kind in EXACT_KINDS else pooled) for kind in kinds)


def fill(kind: InputKind, a: Tensor, b: Tensor, seed: int) -> None:
    """Overwrite the inputs in place, as a function of the seed, the kind, the shapes, the layout and the device type.

    Temporaries stay below about 256 MiB, and nothing waits for the device.

    Args:
        kind: Kind of input.
        a: [sets, m, k] fp16.
        b: [sets, k, n] fp16; for layout TN a transposed view of [sets, n, k].
        seed: 64-bit seed.
    """
    import torch

    if a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1] or a.dtype != torch.float16 or b.dtype != torch.float16:
        raise ValueError(f"A {tuple(a.shape)} {a.dtype} and B {tuple(b.shape)} {b.dtype} are no batch of fp16 matrix products")
    if kind is InputKind.NORMAL and a.is_cuda:
        from harness.verify.fill_cuda import fill_normal

        fill_normal((a, _stored(b)), seed)
    else:
        _FILLERS[kind](a, b, torch.Generator(device=a.device).manual_seed(seed))


def _stored(b: Tensor) -> Tensor:
    """B as it lies in memory: drawing along strides is slow on a GPU."""
    return b.transpose(1, 2) if b.stride(2) != 1 and b.stride(1) == 1 else b


def _fill_normal(a: Tensor, b: Tensor, generator: Generator) -> None:
    a.normal_(generator=generator)
    _stored(b).normal_(generator=generator)


def _fill_uniform(a: Tensor, b: Tensor, generator: Generator) -> None:
    a.uniform_(-1.0, 1.0, generator=generator)
    _stored(b).uniform_(-1.0, 1.0, generator=generator)


def _fill_cancel(a: Tensor, b: Tensor, generator: Generator) -> None:
    import torch

    sets, _, k = a.shape
    a.random_(-2, 3, generator=generator)
    _stored(b).random_(-1, 2, generator=generator)
    ends = _pair_ends(sets, k, generator)
    if ends is None:
        return
    pairs = ends.shape[1] // 2
    for part in _slices(a, 2 * pairs * 10):
        signs = _randint(0, 2, (*part.a(a).shape[:2], pairs), generator) * (2.0 * _PAIR_VALUE) - _PAIR_VALUE
        index = ends[part.sets, None, :].expand(-1, signs.shape[1], -1)
        part.a(a).scatter_(2, index, torch.cat((signs, -signs), 2).half())
    values = _randint(1, 5, (sets, pairs, b.shape[2]), generator).half()
    b.scatter_(1, ends[:, :, None].expand(-1, -1, b.shape[2]), values.repeat(1, 2, 1))


def _pair_ends(sets: int, k: int, generator: Generator) -> Tensor | None:
    """Places of the pairs, [sets, 2·pairs]: first ends, then second ends; None where K has no room for one and a third term.

    The ends of a pair lie at least as far apart as the longest chunk that leaves room to vary, so that they fall in different
    chunks. First ends stay below the distance, so that no first end is another pair's second.
    """
    import torch

    if k < 3:
        return None
    apart = next((chunk for chunk in _CHUNKS if chunk + _ROOM <= k), k // 2)
    pairs = min(_PAIRS, apart, k - apart)
    distance = apart + _randint(0, k - pairs - apart + 1, (sets, 1), generator)
    room = torch.minimum(distance, k - distance)
    strata = torch.arange(pairs + 1, device=generator.device) * room // pairs
    first = strata[:, :-1] + _randint(0, 1 << 40, (sets, pairs), generator) % strata.diff(dim=1)
    return torch.cat((first, first + distance), 1)


def _fill_integers(a: Tensor, b: Tensor, generator: Generator) -> None:
    import torch

    k = a.shape[2]
    nonzeros = min(k, _NONZEROS)
    strata = torch.arange(nonzeros + 1, device=a.device) * k // nonzeros
    a.zero_()
    for part in _slices(a, nonzeros * 40):
        shape = (*part.a(a).shape[:2], nonzeros)
        index = strata[:-1] + _randint(0, 1 << 40, shape, generator) % strata.diff()
        values = _randint(0, 8, shape, generator) - 4
        part.a(a).scatter_(2, index, (values + (values >= 0)).half())
    _stored(b).random_(-4, 5, generator=generator)


def _fill_permutation(a: Tensor, b: Tensor, generator: Generator) -> None:
    import torch

    sets, rows, k = a.shape
    order = torch.rand((sets, k), generator=generator, device=a.device).argsort(dim=1)
    column = order[:, torch.arange(rows, device=a.device) % k]
    signs = _randint(0, 2, (sets, rows, 1), generator).half() * 2 - 1
    a.zero_()
    a.scatter_(2, column[:, :, None], signs)
    _stored(b).normal_(generator=generator)


def _fill_identity(a: Tensor, b: Tensor, generator: Generator) -> None:
    import torch

    sets, k, columns = b.shape
    shift = _randint(0, k, (sets, 1), generator)
    row = (torch.arange(columns, device=b.device) + shift) % k
    b.zero_()
    b.scatter_(1, row[:, None, :], torch.ones((), dtype=b.dtype, device=b.device).expand(sets, 1, columns))
    a.normal_(generator=generator)


class _Slice(NamedTuple):
    """Part of a batch of A."""

    sets: slice
    rows: slice

    def a(self, a: Tensor) -> Tensor:
        return a[self.sets, self.rows]


def _slices(a: Tensor, bytes_per_row: int) -> Iterator[_Slice]:
    """Cover A with parts whose temporaries stay within the limit."""
    sets, rows, _ = a.shape
    row_step = max(1, min(rows, _TEMPORARY_BYTES // bytes_per_row))
    set_step = max(1, _TEMPORARY_BYTES // (bytes_per_row * row_step))
    for first in range(0, sets, set_step):
        for row in range(0, rows, row_step):
            yield _Slice(slice(first, min(sets, first + set_step)), slice(row, min(rows, row + row_step)))


def _randint(low: int, high: int, shape: tuple[int, ...], generator: Generator) -> Tensor:
    import torch

    return torch.randint(low, high, shape, generator=generator, device=generator.device)


_FILLERS: dict[InputKind, Callable[[Tensor, Tensor, Generator], None]] = {
    InputKind.NORMAL: _fill_normal,
    InputKind.CANCEL: _fill_cancel,
    InputKind.INTEGERS: _fill_integers,
    InputKind.PERMUTATION: _fill_permutation,
    InputKind.IDENTITY: _fill_identity,
    InputKind.UNIFORM: _fill_uniform,
}
