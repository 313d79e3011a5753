"""Compare two runs: what differs around them first, then per shape how the times differ and whether that is noise.

Only windows of one round share their drift, so times of two runs differ by more than the submissions do: on an H200 at a
constant reported clock one kernel read 7.2 µs in one second and 7.8 µs in the next. Both runs therefore are measured
against what they share: per round, the submission's log time per launch minus the mean of the log times of those baselines
that chose the same in both runs (their description and layout are equal). Rounds of one run are tested against rounds of
the other (`harness.timing.two_sample`). Without a shared baseline the submissions' own times are, and the shape says so.

A difference that all rounds of a run share (the day, the card) is a difference to this test.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, NamedTuple

from pydantic import Field

from harness.model import Count, DataError, Document, Model, Name
from harness.recheck import SampleTable, sample_table
from harness.record import SUBMISSION, Interval, Measure, Record, Status, Timing
from harness.run import Run, SampleLine
from harness.timing.statistics import geomean_interval
from harness.timing.two_sample import benjamini_hochberg, mann_whitney, shift

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

FALSE_DISCOVERY_RATE = 0.05
"""Expected share of the flagged shapes that do not differ, at most."""

SMALLEST_P_VALUE = 1e-12
"""What is told from 0: a p-value is a difference of doubles near 1, 1.1e-16 apart, times at most the number of shapes."""

Fraction = Annotated[float, Field(ge=0, le=1)]


class Importance(StrEnum):
    """What a difference around two runs means for comparing them."""

    FORBIDS = "forbids"
    """Times mean something else; compared only when forced."""
    MATTERS = "matters"
    """May change times."""
    NOTED = "noted"
    """Worth knowing."""


class Difference(Model):
    """Something around the submissions that differs between two runs."""

    field: str
    """What, such as `device.driver`."""
    a: str
    """In the first run; empty where it has none."""
    b: str
    """In the second run."""
    importance: Importance
    """What it means."""


class RunIdentity(Model):
    """A run as a comparison names it."""

    run: str
    """Name of the run."""
    submission: Name
    """Name of the submission."""
    version: str
    """Its version."""
    tree_sha256: str
    """Its identity."""


class ShapeComparison(Model):
    """One shape in one measure."""

    shape: str
    """As MxNxK."""
    time_ratio: Annotated[float, Field(gt=0)]
    """A's median time per launch over B's: above 1, B is faster. Drift between the runs is in it."""
    relative_ratio: Interval
    """The same with both times taken relative to the shared baselines, with its 95 % interval."""
    shared_baselines: tuple[Name, ...]
    """Baselines that chose the same in both runs; without any the times stand alone."""
    p_value: Fraction
    """Probability of so large a difference by chance, of this shape alone."""
    adjusted_p_value: Fraction
    """The same adjusted for the number of shapes."""
    significant: bool
    """Whether the adjusted value is at most the false discovery rate."""


class MeasureComparison(Model):
    """All shapes of one measure."""

    measure: Measure
    """What was timed."""
    shapes: tuple[ShapeComparison, ...]
    """Those that both runs verified, in the order of the first run."""
    geomean: Interval
    """Geometric mean of `relative_ratio` with its 95 % interval: above 1, B is faster."""
    faster: Count
    """Shapes at which B is significantly faster."""
    slower: Count
    """Shapes at which B is significantly slower."""


class Comparison(Document):
    """What `hgemm compare --json` prints."""

    a: RunIdentity
    """The first run."""
    b: RunIdentity
    """The second run."""
    differences: tuple[Difference, ...]
    """What differs around the submissions, the gravest first."""
    forced: bool
    """Whether a difference that forbids comparing was overruled."""
    false_discovery_rate: Fraction = FALSE_DISCOVERY_RATE
    """Expected share of the flagged shapes that do not differ, at most."""
    only_a: tuple[str, ...]
    """Shapes that only the first run verified."""
    only_b: tuple[str, ...]
    """Shapes that only the second run verified."""
    measures: tuple[MeasureComparison, ...]
    """Per measure that both runs have."""


def compare(a: Run, b: Run, force: bool = False) -> Comparison:
    """Compare two runs, from their raw samples.

    Raises:
        DataError: they were measured by different protocols or on different devices and `force` is not set; they share no
            verified shape; samples are missing or damaged.
    """
    differing = differences(a, b)
    forbidding = [each for each in differing if each.importance is Importance.FORBIDS]
    if forbidding and not force:
        which = ", ".join(f"{each.field} ({each.a or 'none'}, {each.b or 'none'})" for each in forbidding[:3])
        raise DataError(f"the runs differ in {which}, so their times do not compare; --force compares them all the same.")
    mine, others = _verified(a), _verified(b)
    common = [shape for shape in mine if shape in others]
    if not common:
        raise DataError("no shape is verified in both runs, so there is nothing to compare.")
    return Comparison(
        a=_identity(a),
        b=_identity(b),
        differences=tuple(differing),
        forced=bool(forbidding),
        only_a=tuple(shape for shape in mine if shape not in others),
        only_b=tuple(shape for shape in others if shape not in mine),
        measures=tuple(_measures(_Side(mine, sample_table(a)), _Side(others, sample_table(b)), common)),
    )


def differences(a: Run, b: Run) -> list[Difference]:
    """What differs around the submissions of two runs, the gravest first."""
    first, second = _surroundings(a), _surroundings(b)
    found = [
        Difference(field=field, a=first.get(field, ""), b=second.get(field, ""), importance=_importance(field))
        for field in dict.fromkeys([*first, *second])
        if first.get(field, "") != second.get(field, "")
    ]
    return sorted(found, key=lambda each: list(Importance).index(each.importance))


BothSamples = tuple[Mapping[str, SampleLine], Mapping[str, SampleLine]]
"""Samples by contender of one shape in one measure, from both runs."""


class _Side(NamedTuple):
    """One of the two runs."""

    records: Mapping[str, Record]
    """Verified records by shape."""
    samples: SampleTable


class _Pair(NamedTuple):
    """One shape in one measure, from both runs, before its p-value is adjusted."""

    shape: str
    time_ratio: float
    relative: Interval
    shared: tuple[str, ...]
    p_value: float


def _measures(a: _Side, b: _Side, common: Sequence[str]) -> Iterator[MeasureComparison]:
    pairs: dict[Measure, list[_Pair]] = {}
    for shape in common:
        others = {timing.measure: timing for timing in b.records[shape].timings}
        for timing in a.records[shape].timings:
            if timing.measure in others:
                windows = (_lines(a, shape, timing), _lines(b, shape, others[timing.measure]))
                pairs.setdefault(timing.measure, []).append(_pair(shape, (timing, others[timing.measure]), windows))
    for measure, those in pairs.items():
        adjusted = benjamini_hochberg([pair.p_value for pair in those])
        shapes = tuple(_compared(pair, value) for pair, value in zip(those, adjusted, strict=True))
        yield MeasureComparison(
            measure=measure,
            shapes=shapes,
            geomean=geomean_interval([shape.relative_ratio for shape in shapes]),
            faster=sum(shape.significant and shape.relative_ratio.value > 1 for shape in shapes),
            slower=sum(shape.significant and shape.relative_ratio.value < 1 for shape in shapes),
        )


def p_value_text(p_value: float) -> str:
    """A p-value for a person."""
    return f"{p_value:.1e}" if p_value >= SMALLEST_P_VALUE else f"< {SMALLEST_P_VALUE:.0e}"


def _compared(pair: _Pair, adjusted: float) -> ShapeComparison:
    return ShapeComparison(
        shape=pair.shape,
        time_ratio=pair.time_ratio,
        relative_ratio=pair.relative,
        shared_baselines=pair.shared,
        p_value=pair.p_value,
        adjusted_p_value=adjusted,
        significant=adjusted <= FALSE_DISCOVERY_RATE,
    )


def _pair(
    shape: str, timings: tuple[Timing, Timing], lines: tuple[Mapping[str, SampleLine], Mapping[str, SampleLine]]
) -> _Pair:
    import numpy as np

    shared = shared_baselines(timings, lines)
    first, second = (relative_logs(each, shared) for each in lines)
    own = [float(np.median(log_times(each[SUBMISSION]))) for each in lines]
    return _Pair(
        shape=shape,
        time_ratio=math.exp(own[0] - own[1]),
        relative=shift(first, second),
        shared=shared,
        p_value=mann_whitney(first, second),
    )


def shared_baselines(timings: tuple[Timing, Timing], lines: BothSamples) -> tuple[str, ...]:
    """Baselines that chose the same in both runs and were timed in the submission's rounds."""
    first, second = timings
    names = []
    for name in first.speedups.keys() & second.speedups.keys():
        one, other = first.contenders[name], second.contenders[name]
        paired = all(len(each[name].window_ns) == len(each[SUBMISSION].window_ns) for each in lines)
        if paired and (one.description, one.layout) == (other.description, other.layout):
            names.append(name)
    return tuple(sorted(names))


def relative_logs(lines: Mapping[str, SampleLine], shared: Sequence[str]) -> Floats:
    """Per round the submission's log time per launch, minus the mean of the shared baselines'."""
    mine = log_times(lines[SUBMISSION])
    if not shared:
        return mine
    reference: Floats = sum((log_times(lines[name]) for name in shared[1:]), log_times(lines[shared[0]])) / len(shared)
    return mine - reference


def log_times(line: SampleLine) -> Floats:
    """Logarithms of the time per launch in nanoseconds, one per round."""
    import numpy as np

    return np.log(np.array(line.window_ns, dtype=np.float64) / line.launches_per_window)


def _verified(run: Run) -> dict[str, Record]:
    latest = run.latest()
    return {
        str(problem): latest[problem]
        for problem in run.header.problems
        if problem in latest and latest[problem].status is Status.VERIFIED
    }


def _lines(side: _Side, shape: str, timing: Timing) -> Mapping[str, SampleLine]:
    record = side.records[shape]
    lines = side.samples.get((record.problem, record.attempt, timing.measure), {})
    if not lines.keys() >= timing.contenders.keys():
        raise DataError(f"raw samples of {shape} are missing, so nothing can be tested; compare whole run directories.")
    return lines


def _identity(run: Run) -> RunIdentity:
    submission = run.header.submission
    return RunIdentity(
        run=run.header.name, submission=submission.name, version=submission.version, tree_sha256=submission.tree_sha256
    )


def _surroundings(run: Run) -> dict[str, str]:
    """Everything around the submission, flat."""
    header, device, protocol = run.header, run.header.device, run.header.protocol
    found = {f"protocol.{name}": _text(getattr(protocol, name)) for name in type(protocol).model_fields}
    found["track"] = header.submission.track.value
    found["kind"] = header.submission.kind.value
    found |= {f"device.{name}": getattr(device, name) for name in ("profile", "name", "timer", "driver", "uuid")}
    found |= {f"device.libraries.{name}": version for name, version in device.libraries.items()}
    found |= {f"device.conditions.{name}": value for name, value in device.conditions.items()}
    found["harness_version"] = header.harness_version
    found["shapes"] = f"{header.shape_set} {header.shapes_sha256[:16]}"
    return found


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _importance(field: str) -> Importance:
    if field in {"protocol.measures", "protocol.deadline_s", "shapes"} or field.endswith("temperature_c"):
        return Importance.NOTED
    if field == "protocol.target_half_width":
        return Importance.MATTERS
    if field.startswith("protocol.") or field in {"track", "device.profile", "device.name", "device.timer"}:
        return Importance.FORBIDS
    return Importance.MATTERS
