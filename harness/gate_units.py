"""What a gate judges: the slowdown of every shape and of every regime, with its error, in the log domain."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from harness.compare import log_times, relative_logs, shared_baselines
from harness.gate_data import Benchmark, Results, Sitting
from harness.record import Measure, Mode
from harness.scores import Regime
from harness.timing.statistics import LOOKS, signed_rank_bounds

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

ALL = "all shapes"
Z95 = 1.96
DRIFT_INFLATION = 2.0
"""Multiplies the error of times that are relative to nothing: their rounds share drift, which an interval takes for chance."""


class Unit(NamedTuple):
    """One unit before it is judged."""

    submission: str
    measure: Measure
    name: str
    regime: Regime | None
    shapes: int
    slowdown: Shift
    relative: Shift | None


class Shift(NamedTuple):
    """A difference of logarithms with its standard error."""

    log: float
    error: float

    def plus(self, other: Shift, sign: float = 1.0) -> Shift:
        """Sum, or difference with sign -1, of independent ones."""
        return Shift(self.log + sign * other.log, math.hypot(self.error, other.error))


def other_key(key: str, ratio: str) -> str:
    """Key of the same shape and measure of another submission."""
    return f"{ratio} {key.partition(' ')[2]}"


def shape_units(now: Results, baseline: Results, ratio: str) -> Iterator[Unit]:
    """Every shape; what others are relative to is no unit."""
    for key, benchmark in now.benchmarks.items():
        name = benchmark.submission.name
        if name == ratio:
            continue
        before = baseline.benchmarks[key]
        relative = None
        if not ratio:
            log, error = _location(benchmark).plus(_location(before), -1)
            slowdown = Shift(log, DRIFT_INFLATION * error)
            shared = _shared(benchmark, before)
            relative = _location(benchmark, shared).plus(_location(before, shared), -1) if shared else None
        elif other_key(key, ratio) in now.benchmarks:
            slowdown = _against(now, key, ratio).plus(_against(baseline, key, ratio), -1)
        else:
            slowdown = _beside(benchmark, ratio).plus(_beside(before, ratio), -1)
        yield Unit(name, benchmark.measure, str(benchmark.problem), benchmark.regime, 1, slowdown, relative)


def _beside(benchmark: Benchmark, ratio: str) -> Shift:
    """A submission's time over that of a baseline of its rounds; requests of server mode are no pairs."""
    if benchmark.measure.mode is not Mode.SERVER:
        return _location(benchmark, (ratio,))
    found = [_one_sitting(log_times(sitting.lines[ratio])) for sitting in benchmark.sittings]
    return _location(benchmark).plus(_mean(found), -1)


def _against(results: Results, key: str, ratio: str) -> Shift:
    """A submission's time over another's, each relative to the baselines that both have in their rounds."""
    mine, other = results.benchmarks[key], results.benchmarks[other_key(key, ratio)]
    shared = _shared(mine, other)
    return _location(mine, shared).plus(_location(other, shared), -1)


def _shared(first: Benchmark, second: Benchmark) -> tuple[str, ...]:
    """Baselines that chose the same in every sitting of both."""
    reference, measure = second.sittings[0], second.measure

    def shared(sitting: Sitting) -> set[str]:
        timings = (sitting.timing(measure), reference.timing(measure))
        return set(shared_baselines(timings, (sitting.lines, reference.lines)))

    return tuple(sorted(set.intersection(*map(shared, (*first.sittings, *second.sittings)))))


def _location(benchmark: Benchmark, relative_to: Sequence[str] = ()) -> Shift:
    """Log time per launch, minus the mean of those that it is relative to: the mean over the sittings."""
    found = [_one_sitting(relative_logs(sitting.lines, relative_to)) for sitting in benchmark.sittings]
    return _mean(found)


def _one_sitting(logs: Floats) -> Shift:
    """Location of one sample and its standard error: signed ranks for rounds, the median's order statistics for more values."""
    import numpy as np

    if len(logs) <= LOOKS[-1]:
        bounds = signed_rank_bounds(logs)
        return Shift(float(bounds.value), float(bounds.high - bounds.low) / 2 / Z95)
    ordered = np.sort(logs)
    reach = math.ceil(Z95 * math.sqrt(len(logs)) / 2)
    middle = len(logs) // 2
    return Shift(float(np.median(ordered)), float(ordered[middle + reach] - ordered[middle - reach]) / 2 / Z95)


def group_units(units: Sequence[Unit]) -> Iterator[Unit]:
    """All shapes, and every regime of several shapes, per submission and measure."""
    for submission, measure in dict.fromkeys((unit.submission, str(unit.measure)) for unit in units):
        mine = [unit for unit in units if (unit.submission, str(unit.measure)) == (submission, measure)]
        yield _together(mine, ALL, None)
        for regime in Regime:
            those = [unit for unit in mine if unit.regime is regime]
            if len(those) > 1:
                yield _together(those, regime.value, regime)


def _together(units: Sequence[Unit], name: str, regime: Regime | None) -> Unit:
    first, count = units[0], len(units)
    slowdown = _mean([unit.slowdown for unit in units])
    relative = [unit.relative for unit in units if unit.relative is not None]
    return Unit(
        first.submission, first.measure, name, regime, count, slowdown, _mean(relative) if len(relative) == count else None
    )


def _mean(shifts: Sequence[Shift]) -> Shift:
    count = len(shifts)
    return Shift(math.fsum(shift.log for shift in shifts) / count, math.hypot(*(shift.error for shift in shifts)) / count)
