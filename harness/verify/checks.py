"""What outputs must satisfy: a device compares them with float64 and reports tallies; whoever holds those judges them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from harness.model import Count
from harness.problem import Track
from harness.record import DrawStats, Reason
from harness.verify.inputs import InputKind, is_exact
from harness.verify.precision import (
    GROSS_DEVIATION,
    RAISED_EXCESS,
    ROUNDING_RMS,
    SPREAD_FRACTION,
    ULP_BOUND,
    WRONG_RMS,
    classify,
    excess_limit,
    has_class,
    tolerance,
)
from harness.verify.reference import (
    BLOCK,
    Chunk,
    Place,
    Projection,
    Tally,
    check_shapes,
    count_defects,
    finite,
    reference_chunks,
    ulp16,
)

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Errors", "Finding", "Projection", "compare", "judge"]

_LARGEST_HALF = 65504.0
_TINY = 1e-30
_COUNTS = ("unwritten", "not_finite", "inexact", "unusable", "over_bound", "raised")


class Finding(NamedTuple):
    """Why outputs are not accepted."""

    reason: Reason
    """Reason for the record."""
    detail: str
    """One sentence with numbers."""
    place: Place
    """The worst output or row."""


class Errors(Tally):
    """Errors of every output of some draws of one kind of input, against float64."""

    KEYS: ClassVar[frozenset[str]] = Tally.KEYS | {"kind"}
    MAXIMA: ClassVar[frozenset[str]] = frozenset(
        {"bound_ratio", "accumulation_units", "deviation", "block_excess", "block_squared_error"}
    )
    SEVERITY: ClassVar[str] = "bound_ratio"

    kind: InputKind
    """Kind of input."""
    unusable: Count
    """Exact results that no fp16 holds: A or B are no longer what was drawn."""
    inexact: Count
    """Outputs that differ from the exact result rounded to fp16, on kinds that are exact for the track."""
    over_bound: Count
    """Outputs beyond the element-wise bound."""
    raised: Count
    """Outputs whose squared error is over nine times its expectation."""
    squared_error: float | None
    """Sum of squared errors."""
    squared_reference: float | None
    """Sum of squared exact results."""
    squared_rounding: float | None
    """Sum of ulp²/12: what rounding alone gives."""
    excess: float | None
    """Sum of squared error over its expectation."""
    block_excess: float | None
    """Largest mean of the same over a block of at most 64×64, over the limit for as many outputs."""
    block_squared_error: float | None
    """Largest mean squared error of a block."""
    bound_ratio: float | None
    """Largest |error| over its bound."""
    accumulation_units: float | None
    """Largest |error| beyond 0.51 ulp, in units u·‖a_i‖·‖b_j‖ with the track's unit roundoff u: the c that the bound needs."""
    deviation: float | None
    """Largest |error| over the typical size of an output, ‖a_i‖·‖b_j‖/√K."""

    @property
    def rms_relative(self) -> float | None:
        """Root mean square error over root mean square exact result."""
        return _root_ratio(self.squared_error, self.squared_reference)

    @property
    def precision_class(self) -> str:
        """Name of the class that the errors fall in, whatever the inputs' distribution: judged against rounding alone."""
        ratio = _root_ratio(self.squared_error, self.squared_rounding)
        return classify(None if ratio is None else ratio * ROUNDING_RMS, self.k)

    def stats(self) -> DrawStats:
        """The part of it that a record keeps."""
        mean_reference = None if self.squared_reference is None else self.squared_reference / self.outputs
        return DrawStats(
            inputs=self.kind.value,
            draws=self.draws,
            outputs=self.outputs,
            rms_relative=self.rms_relative,
            block_rms_relative=_root_ratio(self.block_squared_error, mean_reference),
            bound_ratio=self.bound_ratio,
            inexact=self.inexact,
            accumulation_units=self.accumulation_units,
        )


def compare(
    a: Tensor, b: Tensor, c: Tensor, kind: InputKind, track: Track = Track.F32, poison_bits: int | None = None
) -> Errors:
    """Compare every output with float64, on the device, with one transfer at the end.

    Beside the tensors it needs at most about 4.5 GiB (16384³: B in float64 and a part of the rows).

    Args:
        a: [sets, m, k] fp16.
        b: [sets, k, n] fp16, any strides.
        c: [sets, m, n] fp16.
        kind: What A and B were filled with.
        track: Track whose tolerance applies.
        poison_bits: Bit pattern (a NaN) that C held before the operation.
    """
    import torch

    check_shapes(a, b, c)
    parts, rows = [], []
    for chunk in reference_chunks(a, b):
        outputs = c[chunk.sets, chunk.rows]
        measured = _measure(chunk, outputs, track, a.shape[2])
        defects = count_defects(outputs, poison_bits)
        inexact = (outputs != chunk.values.half()).sum() if is_exact(kind, track) else torch.zeros_like(defects.unwritten)
        measured |= {"unwritten": defects.unwritten, "not_finite": defects.not_finite, "inexact": inexact}
        parts.append(_Part(chunk.sets.start, chunk.rows.start, *outputs.shape))
        rows.append(torch.stack([number.double() for number in measured.values()]))
    pooled: Errors | None = None
    for part, row in zip(parts, torch.stack(rows).tolist(), strict=True):
        numbers = dict(zip(measured, row, strict=True))
        tally = part.errors(numbers, kind, track, a.shape[2])
        pooled = tally if pooled is None else pooled.merge(tally)
    assert pooled is not None
    return pooled


def judge(evidence: Errors | Projection, track: Track) -> Finding | None:
    """Why the outputs are not accepted on this track, or None if they are. More accurate than needed is always accepted.

    Raises:
        ValueError: the outputs were compared by another track's tolerance.
    """
    if evidence.track is not track:
        raise ValueError(f"outputs compared for track {evidence.track} cannot be judged for track {track}")
    finding = _judge_defects(evidence)
    if finding is not None:
        return finding
    return _judge_errors(evidence) if isinstance(evidence, Errors) else _judge_projection(evidence)


def _judge_defects(evidence: Errors | Projection) -> Finding | None:
    where = f"the first seen is {_name(evidence.worst)}"
    total = f"of {evidence.outputs} outputs"
    if evidence.unwritten:
        return Finding(Reason.UNWRITTEN, f"{evidence.unwritten} {total} still hold the poison; {where}.", evidence.worst)
    if evidence.not_finite:
        detail = f"{evidence.not_finite} {total} are NaN or infinite where the exact result is finite; {where}."
        return Finding(Reason.NOT_FINITE, detail, evidence.worst)
    unusable = evidence.unusable if isinstance(evidence, Errors) else int(evidence.row_excess is None)
    if unusable:
        detail = "A·B is not finite in fp16 although every input that is drawn gives a finite one, so A or B was changed."
        return Finding(Reason.INPUT_MODIFIED, detail, evidence.worst)
    return None


def _judge_errors(errors: Errors) -> Finding | None:
    exact = is_exact(errors.kind, errors.track)
    mean_excess = _over(errors.excess, errors.outputs)
    in_class = not has_class(errors.k) or (
        _within(mean_excess, excess_limit(float(errors.outputs))) and _within(errors.block_excess, 1.0)
    )
    if errors.over_bound == 0 and _within(errors.bound_ratio, 1.0) and (errors.inexact == 0 if exact else in_class):
        return None
    gross = not _within(errors.deviation, GROSS_DEVIATION) or not (exact or _within(errors.rms_relative, WRONG_RMS))
    few = not exact and errors.over_bound and errors.raised < SPREAD_FRACTION * errors.outputs
    if gross or few:
        detail = (
            f"{errors.over_bound} of {errors.outputs} outputs on {errors.kind} inputs exceed the error bound, the worst "
            f"{_show(errors.bound_ratio)} times: {_name(errors.worst)}."
        )
        return Finding(Reason.WRONG_RESULT, detail, errors.worst)
    if exact:
        detail = (
            f"{errors.inexact} of {errors.outputs} outputs differ on {errors.kind} inputs, whose products are exact on track "
            f"{errors.track}; {_name(errors.worst)}."
        )
        return Finding(Reason.INEXACT, detail, errors.worst)
    detail = (
        f"rms relative error {_show(errors.rms_relative)} on {errors.kind} inputs is that of {errors.precision_class}: squared "
        f"errors are {_show(mean_excess)} times what track {errors.track} may have, and {errors.over_bound} of "
        f"{errors.outputs} outputs exceed the error bound; {_name(errors.worst)}."
    )
    return Finding(Reason.PRECISION_CLASS, detail, errors.worst)


def _judge_projection(projection: Projection) -> Finding | None:
    mean = _over(projection.excess, projection.rows)
    mean_limit = excess_limit(float(projection.rows * projection.vectors)) if has_class(projection.k) else math.inf
    row_limit = excess_limit(float(projection.vectors))
    if _within(mean, mean_limit) and _within(projection.row_excess, row_limit):
        return None
    rms = _root_ratio(projection.squared_error, projection.squared_value)
    # Where arithmetic is too narrow all rows show it alike: projected on 16 vectors, the worst of 1e9 is 6 times the mean.
    alike = _within(projection.row_excess, math.inf if mean is None else excess_limit(float(projection.vectors)) * mean)
    narrow = alike and not _within(mean, mean_limit) and _within(rms, WRONG_RMS)
    blame = f"is that of {classify(rms, projection.k)}" if narrow else "is no rounding error"
    detail = (
        f"by random projections of {projection.rows} rows, rms relative error {_show(rms)} {blame}: squared errors are "
        f"{_show(mean)} times what track {projection.track} may have, and {_show(projection.row_excess)} times in "
        f"{_name(projection.worst)}."
    )
    return Finding(Reason.PRECISION_CLASS if narrow else Reason.WRONG_RESULT, detail, projection.worst)


class _Part(NamedTuple):
    """Where a chunk of outputs lies, and its shape."""

    first_set: int
    first_row: int
    sets: int
    rows: int
    columns: int

    def errors(self, numbers: dict[str, float], kind: InputKind, track: Track, k: int) -> Errors:
        """The chunk's tally; buffer sets count where their first row is."""
        index, value, exact = (numbers.pop(name) for name in ("index", "value", "exact"))
        in_set, column = divmod(int(index), self.columns)
        buffer_set, row = divmod(in_set, self.rows)
        counts = {name: int(numbers.pop(name)) for name in _COUNTS}
        sizes: dict[str, Any] = {name: finite(number) for name, number in numbers.items()}
        return Errors(
            kind=kind,
            track=track,
            k=k,
            draws=self.sets if self.first_row == 0 else 0,
            outputs=self.sets * self.rows * self.columns,
            worst=Place(
                buffer_set=self.first_set + buffer_set,
                row=self.first_row + row,
                column=column,
                value=finite(value),
                exact=finite(exact),
            ),
            **counts,
            **sizes,
        )


def _measure(chunk: Chunk, outputs: Tensor, track: Track, k: int) -> dict[str, Tensor]:
    """Scalars on the device. NaN and infinity in C go through sums and maxima unmasked, so that they fail every comparison.

    The difference is taken in float64; what follows needs a few digits only, and float32 halves its memory traffic.
    """
    allowed = tolerance(track, k)
    unit = 2.0**-24 if track is Track.F32 else 2.0**-11
    exact, signed = chunk.values.float(), (outputs - chunk.values).float()
    ulps = ulp16(exact)
    scale = (chunk.row_norms.float() * chunk.column_norms.float()).clamp_(min=_TINY)
    size, squares = signed.abs(), signed.square_()
    ratio = size / (ulps * ULP_BOUND).add_(scale, alpha=allowed.bound)
    accumulated = size.sub(ulps, alpha=ULP_BOUND).div_(scale).amax()
    deviation = size.div_(scale).amax()
    rounding = ulps.square_().div_(12)
    excess = squares / scale.square_().mul_(allowed.noise**2).add_(rounding)
    block_outputs = _block_outputs(outputs)
    index = ratio.argmax()
    return {
        "unusable": exact.numel() - (exact.abs() <= _LARGEST_HALF).sum(),
        "over_bound": ratio.numel() - (ratio <= 1.0).sum(),
        "raised": (excess > RAISED_EXCESS).sum(),
        "squared_error": _sum(squares),
        "squared_reference": _sum(exact.square()),
        "squared_rounding": _sum(rounding),
        "excess": _sum(excess),
        "block_excess": (_block_sums(excess) / block_outputs / excess_limit(block_outputs)).amax(),
        "block_squared_error": (_block_sums(squares) / block_outputs).amax(),
        "bound_ratio": ratio.amax(),
        "accumulation_units": accumulated.clamp(min=0.0) / unit,
        "deviation": deviation * math.sqrt(k),
        "index": index,
        "value": outputs.take(index),
        "exact": exact.take(index),
    }


def _sum(values: Tensor) -> Tensor:
    import torch

    return values.sum(dtype=torch.float64)


def _block_sums(values: Tensor) -> Tensor:
    """Sums over blocks of the last two dimensions; those at the edges may be smaller."""
    return _fold(_fold(values, -1), -2)


def _block_outputs(outputs: Tensor) -> Tensor:
    """Outputs in every block, [blocks of rows, blocks of columns] float32."""
    import torch

    ones = [torch.ones(size, device=outputs.device) for size in outputs.shape[1:]]
    return _fold(ones[0], -1)[:, None] * _fold(ones[1], -1)


def _fold(values: Tensor, dim: int) -> Tensor:
    import torch

    whole, rest = divmod(values.shape[dim], BLOCK)
    sums = torch.unflatten(values.narrow(dim, 0, whole * BLOCK), dim, (whole, BLOCK)).sum(dim)
    if rest == 0:
        return sums
    edge: Tensor = values.narrow(dim, whole * BLOCK, rest).sum(dim, keepdim=True)
    return torch.cat((sums, edge), dim)


def _within(value: float | None, limit: float) -> bool:
    """Whether a value is known and at most the limit; NaN is not."""
    return value is not None and value <= limit


def _over(total: float | None, count: int) -> float | None:
    return None if total is None else total / count


def _root_ratio(numerator: float | None, denominator: float | None) -> float | None:
    """Square root of a quotient; None where either is unknown, and for a non-zero over zero."""
    if numerator is None or denominator is None or (denominator == 0.0 and numerator > 0.0):
        return None
    return math.sqrt(numerator / denominator) if numerator else 0.0


def _show(value: float | None) -> str:
    return "infinitely many" if value is None else f"{value:.3g}"


def _name(place: Place) -> str:
    if place.column is None:
        return f"row {place.row} of set {place.buffer_set}"
    value, exact = ("not finite" if each is None else f"{each:.6g}" for each in (place.value, place.exact))
    return f"C[{place.row}, {place.column}] of set {place.buffer_set} is {value}, exactly {exact}"
