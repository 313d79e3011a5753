"""The exact result in float64: every output of it, or its projection on random vectors.

The projection is Freivalds' check (1977) made quantitative: with signs x drawn after the kernel ended, (C - A·B)·x costs three
products with thin matrices, and its mean square over x is the sum of the squared errors of a row. So it is compared with the
same error model as single outputs are, row by row and over all rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from harness.model import Count, Model, Positive
from harness.problem import Track
from harness.verify.precision import tolerance

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 64
"""Outputs are also judged in blocks of this many rows and columns."""

VECTORS = 16
"""Random vectors of a projection. A 16×16 patch of a 16384³ product without its last 16 terms has 20 times a row's honest mean
square; 16 vectors put the limit for an honest row at 9."""

_BUDGET_BYTES = 2 << 30
_TEMPORARIES = 6
"""Arrays of float64 and size of the outputs that a comparison needs beside the reference, rounded up."""


class Place(Model):
    """One output, or one row of outputs, and what it holds."""

    buffer_set: Count
    """Buffer set in the batch."""
    row: Count
    """Row of C."""
    column: Count | None = None
    """Column of C; null for a whole row."""
    value: float | None = None
    """Value of C; null for a whole row, and when not finite."""
    exact: float | None = None
    """Value in float64; null for a whole row, and when not finite."""


class Tally(Model):
    """Counts and sums that add, and maxima: what two batches of outputs tell together is the tally that `merge` gives.

    A sum or maximum is null when it is not finite, and stays so.
    """

    KEYS: ClassVar[frozenset[str]] = frozenset({"track", "k"})
    MAXIMA: ClassVar[frozenset[str]]
    SEVERITY: ClassVar[str]

    track: Track
    """Track whose tolerance was applied."""
    k: Positive
    """Length of the sums."""
    draws: Count
    """Buffer sets."""
    outputs: Positive
    """Outputs looked at."""
    unwritten: Count
    """Outputs that still held the poison."""
    not_finite: Count
    """Other outputs that were NaN or infinite."""
    worst: Place
    """Where the maximum named by SEVERITY lies; a value that is not finite outranks every number."""

    def merge(self, other: Self) -> Self:
        """Pool with another batch of the same kind.

        Raises:
            ValueError: the two differ in kind, track or K.
        """
        differing = [name for name in sorted(self.KEYS) if getattr(self, name) != getattr(other, name)]
        if differing:
            raise ValueError(f"tallies with different {', '.join(differing)} cannot be pooled")
        severity, others = getattr(self, self.SEVERITY), getattr(other, self.SEVERITY)
        outranked = severity is not None and (others is None or others > severity)
        pooled: dict[str, Any] = {}
        for name in type(self).model_fields:
            mine, theirs = getattr(self, name), getattr(other, name)
            if name in self.KEYS:
                pooled[name] = mine
            elif name == "worst":
                pooled[name] = theirs if outranked else mine
            elif mine is None or theirs is None:
                pooled[name] = None
            else:
                pooled[name] = max(mine, theirs) if name in self.MAXIMA else mine + theirs
        return type(self)(**pooled)


class Projection(Tally):
    """Errors of rows of C, seen through random projections."""

    KEYS: ClassVar[frozenset[str]] = Tally.KEYS | {"vectors"}
    MAXIMA: ClassVar[frozenset[str]] = frozenset({"row_excess"})
    SEVERITY: ClassVar[str] = "row_excess"

    rows: Positive
    """Rows of C, over all sets."""
    vectors: Positive
    """Random vectors."""
    squared_error: float | None
    """Sum of squared errors of all outputs, as estimated."""
    squared_value: float | None
    """Sum of squares of C."""
    excess: float | None
    """Sum over rows of estimated squared error over its expectation."""
    row_excess: float | None
    """Largest of the same over rows."""


class Chunk(NamedTuple):
    """Part of the exact result."""

    sets: slice
    """Buffer sets."""
    rows: slice
    """Rows; starts at a multiple of 64."""
    values: Tensor
    """[sets, rows, n] float64."""
    row_norms: Tensor
    """‖a_i‖, [sets, rows, 1] float64."""
    column_norms: Tensor
    """‖b_j‖, [sets, 1, n] float64."""


def reference(a: Tensor, b: Tensor) -> Tensor:
    """A·B in float64, on the inputs' device.

    Args:
        a: [sets, m, k] fp16.
        b: [sets, k, n] fp16, any strides.

    Returns:
        [sets, m, n] float64.
    """
    return a.double() @ b.double()


def reference_chunks(a: Tensor, b: Tensor, budget_bytes: int = _BUDGET_BYTES) -> Iterator[Chunk]:
    """A·B in float64 in parts that leave room for comparing: by sets where several fit in the budget, else by rows.

    B of one set is held in float64 whatever the budget (2 GiB at 16384×16384).
    """
    import torch

    sets, m, k = a.shape
    n = b.shape[2]
    row_bytes = 8 * (k + _TEMPORARIES * n)
    set_step = max(1, min(sets, budget_bytes // (row_bytes * m + 8 * k * n)))
    row_step = m if set_step > 1 else min(m, max(1, budget_bytes // row_bytes // BLOCK) * BLOCK)
    for first in range(0, sets, set_step):
        some = slice(first, min(sets, first + set_step))
        right = b[some].double()
        column_norms = torch.linalg.vector_norm(right, dim=1, keepdim=True)
        for row in range(0, m, row_step):
            rows = slice(row, min(m, row + row_step))
            left = a[some, rows].double()
            yield Chunk(some, rows, left @ right, torch.linalg.vector_norm(left, dim=2, keepdim=True), column_norms)


def project(a: Tensor, b: Tensor, c: Tensor, seed: int, track: Track = Track.F32, poison_bits: int | None = None) -> Projection:
    """Estimate every row's squared error by projection on vectors of random signs.

    In float64 on a CPU, in fp32 on a CUDA device (project_cuda.py), where its error is far below fp16's rounding.

    Args:
        a: [sets, m, k] fp16.
        b: [sets, k, n] fp16, any strides.
        c: [sets, m, n] fp16.
        seed: Drawn after the kernel ended, so that no kernel can know the vectors.
        track: Track whose tolerance applies.
        poison_bits: Bit pattern that C held before the operation.
    """
    import torch

    check_shapes(a, b, c)
    generator = torch.Generator(device=c.device).manual_seed(seed)
    signs = torch.randint(0, 2, (c.shape[2], VECTORS), generator=generator, device=c.device).double() * 2 - 1
    if c.is_cuda:
        left, right, outputs, defects = _on_device(a, b, c, signs, poison_bits)
    else:
        right = _project_rows(b, signs)
        left = _project_rows(a, right.projected)
        outputs = _project_rows(c, signs, with_ulps=True)
        defects = count_defects(c, poison_bits)
    errors = (outputs.projected - left.projected).square().mean(2)
    noise = tolerance(track, a.shape[2]).noise ** 2 * left.squares * right.squares.sum(1, keepdim=True)
    excess = errors / (outputs.squared_ulps / 12 + noise)
    measured = (*defects, errors.sum(), outputs.squares.sum(), excess.sum(), excess.max(), excess.argmax())
    numbers = torch.stack([number.double() for number in measured]).tolist()
    place = divmod(int(numbers[-1]), c.shape[1])
    return Projection(
        track=track,
        k=a.shape[2],
        draws=c.shape[0],
        outputs=c.numel(),
        rows=c.shape[0] * c.shape[1],
        vectors=VECTORS,
        unwritten=int(numbers[0]),
        not_finite=int(numbers[1]),
        squared_error=finite(numbers[2]),
        squared_value=finite(numbers[3]),
        excess=finite(numbers[4]),
        row_excess=finite(numbers[5]),
        worst=Place(buffer_set=place[0], row=place[1]),
    )


def ulp16(values: Tensor) -> Tensor:
    """Unit in the last place of fp16 at these float32 values, subnormals included; infinite where they are not finite."""
    import torch

    power_of_two = (values.view(torch.int32) & 0x7F800000).view(torch.float32)
    return power_of_two.clamp_(min=2.0**-14).mul_(2.0**-10)


class Defects(NamedTuple):
    """Counts of outputs that hold no number, as scalars on the device."""

    unwritten: Tensor
    not_finite: Tensor


def count_defects(c: Tensor, poison_bits: int | None) -> Defects:
    """Count outputs that still hold the poison, and others that are not finite.

    Raises:
        ValueError: the poison is no NaN, so that an unwritten output could pass for a number.
    """
    import torch

    if poison_bits is not None and (poison_bits & 0x7FFF) <= 0x7C00:
        raise ValueError(f"poison {poison_bits:#06x} is not the bit pattern of a NaN")
    not_finite = c.numel() - torch.isfinite(c).sum()
    if poison_bits is None:
        return Defects(torch.zeros_like(not_finite), not_finite)
    signed = poison_bits - (1 << 16) if poison_bits >= 1 << 15 else poison_bits
    unwritten = (c.view(torch.int16) == signed).sum()
    return Defects(unwritten, not_finite - unwritten)


def check_shapes(a: Tensor, b: Tensor, c: Tensor) -> None:
    """Refuse tensors that are no batch of fp16 products.

    Raises:
        ValueError: shapes or types do not fit.
    """
    import torch

    fits = a.shape[0] == b.shape[0] == c.shape[0] and a.shape[2] == b.shape[1] and c.shape[1:] == (a.shape[1], b.shape[2])
    if not fits or {a.dtype, b.dtype, c.dtype} != {torch.float16}:
        kinds = ", ".join(f"{tuple(each.shape)} {each.dtype}" for each in (a, b, c))
        raise ValueError(f"{kinds} are not A, B and C of a batch of fp16 products")


def finite(number: float) -> float | None:
    """The number, or None when it is NaN or infinite."""
    return number if abs(number) < float("inf") else None


class _Rows(NamedTuple):
    """Per row of a batch of matrices, in float64."""

    projected: Tensor
    """[sets, rows, vectors]."""
    squares: Tensor
    """Sum of squares, [sets, rows]."""
    squared_ulps: Tensor
    """Sum of squared ulps, [sets, rows]; zero where not asked for."""


class _Projected(NamedTuple):
    left: _Rows
    right: _Rows
    outputs: _Rows
    defects: Defects


def _on_device(a: Tensor, b: Tensor, c: Tensor, signs: Tensor, poison_bits: int | None) -> _Projected:
    """All projections on a CUDA device, in fp32."""
    import torch

    from harness.verify.project_cuda import from_rows, from_signs, project_rows

    vectors = from_signs(signs)
    right = project_rows(b, vectors, None)
    left = project_rows(a, from_rows(right, b.shape[2]), None)
    outputs = project_rows(c, vectors, poison_bits)
    counts = outputs[:, :, VECTORS + 2 :].sum((0, 1), dtype=torch.float64)
    parts = [_Rows(each[:, :, :VECTORS], each[:, :, VECTORS], each[:, :, VECTORS + 1]) for each in (left, right, outputs)]
    return _Projected(parts[0], parts[1], parts[2], Defects(counts[0], counts[1]))


def _project_rows(matrix: Tensor, vectors: Tensor, with_ulps: bool = False) -> _Rows:
    """Project every row of [sets, rows, columns] fp16 on [columns, v] or [sets, columns, v] float64 vectors, in parts."""
    import torch

    sets, rows, columns = matrix.shape
    row_step = max(1, min(rows, _BUDGET_BYTES // (32 * columns)))
    set_step = max(1, min(sets, _BUDGET_BYTES // (32 * columns * row_step)))
    shape = (sets, rows)
    projected = torch.empty((*shape, vectors.shape[-1]), dtype=torch.float64, device=matrix.device)
    squares, squared_ulps = torch.zeros((2, *shape), dtype=torch.float64, device=matrix.device)
    for first in range(0, sets, set_step):
        some = slice(first, first + set_step)
        for row in range(0, rows, row_step):
            part = (some, slice(row, row + row_step))
            exact = matrix[part].double()
            projected[part] = exact @ (vectors[some] if vectors.dim() == 3 else vectors)
            squares[part] = exact.square().sum(2)
            if with_ulps:
                squared_ulps[part] = ulp16(exact.float()).square_().sum(2, dtype=torch.float64)
    return _Rows(projected, squares, squared_ulps)
