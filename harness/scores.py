"""Scores: what a run's records add up to. Pure: the same records in any order give the same scores.

Ratios are averaged geometrically, in the log domain: an arithmetic mean of ratios changes its verdict when the two sides
are swapped. It is reported because others publish it, and never ranked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, NamedTuple, Self

from pydantic import Field, model_validator

from harness.model import Count, DataError, Document, Model, Name, Positive
from harness.problem import Problem
from harness.profiles import DeviceProfile
from harness.record import SUBMISSION, Interval, L2State, Measure, Mode, Record, Status, Timing
from harness.timing.statistics import geomean_interval, log_half_width

BEST = "best"
"""Stands among the baselines for each shape's fastest one, chosen on selection rounds."""

IMPRECISE_HALF_WIDTH = 0.01
"""Half-width of a geometric mean's interval, in the log domain, above which it is not ranked."""

WORST_COUNT = 10
"""Shapes listed as the worst."""


class Regime(StrEnum):
    """What limits a shape on a device. The first that fits, in this order."""

    LATENCY = "latency"
    """Speed-of-light time below 3 µs: launch and ramp-up dominate."""
    SKINNY = "skinny"
    """min(M, N) at most 256: few tiles in one direction."""
    OUTPUT_BOUND = "output_bound"
    """K at most 256 and M·N at least 4·10⁶: writing C dominates."""
    COMPUTE = "compute"
    """The rest."""


def regime(problem: Problem, profile: DeviceProfile) -> Regime:
    """The problem's regime on the device."""
    if profile.roof_ns(problem) < 3_000:
        return Regime.LATENCY
    if min(problem.m, problem.n) <= 256:
        return Regime.SKINNY
    if problem.k <= 256 and problem.m * problem.n >= 4_000_000:
        return Regime.OUTPUT_BOUND
    return Regime.COMPUTE


class Counts(Model):
    """Problems by the status of their latest attempt; those without a record are in `expected` alone."""

    expected: Positive
    """Problems of the set."""
    verified: Count = 0
    """Correct by every check, and timed."""
    rejected: Count = 0
    """The submission was at fault."""
    unsupported: Count = 0
    """The submission declared that it does not handle the shape."""
    infra_error: Count = 0
    """The machine was at fault."""
    not_attempted: Count = 0
    """Given up on before the shape."""

    @model_validator(mode="after")
    def _fits_the_set(self) -> Self:
        if sum(getattr(self, status.value) for status in Status) > self.expected:
            raise ValueError("more problems have a status than the set holds")
        return self


class Score(Model):
    """A submission against one baseline over some shapes. Above 1 the submission wins."""

    shapes: Positive
    """Shapes that it is over."""
    geomean: Interval
    """Geometric mean of the speedups with its 95 % interval; shapes count as independent. This ranks."""
    total_time: Annotated[float, Field(gt=0)]
    """Baseline's summed time per launch over the submission's; large shapes dominate it."""
    win_rate: Annotated[float, Field(ge=0, le=1)]
    """Share of shapes whose speedup is above 1."""
    arithmetic_mean: Annotated[float, Field(gt=0)]
    """Mean of the speedups: the statistic that others publish, for comparison with theirs. Never ranked."""

    @property
    def imprecise(self) -> bool:
        """Whether the geometric mean's interval is wider than ±1 %, which is too wide to rank."""
        return not log_half_width(self.geomean) <= IMPRECISE_HALF_WIDTH


class ShapeSpeedup(Model):
    """A shape and how it did against its best baseline."""

    shape: str
    """As MxNxK."""
    baseline: Name
    """The best baseline."""
    speedup: Interval
    """Its time over the submission's."""


class Tables(Model):
    """Scores by mode, L2 state and baseline; measures that no shape has are absent."""

    scores: dict[Mode, dict[L2State, dict[Name, Score]]]
    """By mode, L2 state and baseline, `best` among the baselines."""
    regimes: dict[Mode, dict[L2State, dict[Name, dict[Regime, Score]]]]
    """The same by regime; regimes without shapes are absent."""
    worst: dict[Mode, dict[L2State, tuple[ShapeSpeedup, ...]]]
    """The ten lowest speedups against `best`, lowest first."""


class Scores(Tables, Document):
    """What a run adds up to. Only a complete one has scores."""

    counts: Counts
    """Problems by outcome."""
    complete: bool
    """Whether every problem of the set has a verified record. An incomplete run is listed, not ranked."""
    rankable: bool
    """Whether the run is complete and every record is rankable, which screening and shared devices are not."""
    partial: Tables | None = None
    """Of an incomplete run, for people: the same over its verified shapes alone. Not a score, and comparable with none."""

    @model_validator(mode="after")
    def _scores_only_the_whole_set(self) -> Self:
        if self.complete != (self.counts.verified == self.counts.expected):
            raise ValueError("complete means that every expected problem is verified")
        if not self.complete and (self.scores or self.regimes or self.worst or self.rankable):
            raise ValueError("an incomplete run has no scores and is not rankable")
        if self.complete and self.partial is not None:
            raise ValueError("a complete run has no partial scores")
        return self


def score(records: Iterable[Record], problems: Sequence[Problem], profile: DeviceProfile) -> Scores:
    """Score a run over a set of problems; records of other problems do not count.

    Args:
        records: in any order; of a problem's records that of the latest attempt counts.
        problems: the set, each once, of one track.
        profile: of the device that the run was measured on; it decides the regimes.

    Raises:
        DataError: an empty set, a problem twice or two tracks; two different records of one attempt; records that
            declare different measures or baselines; a speedup or a time that is not positive and finite.
    """
    if not problems or len(set(problems)) != len(problems) or len({problem.track for problem in problems}) != 1:
        raise DataError("scores need a set of problems that is not empty, holds none twice and has one track.")
    latest = _latest(records, set(problems))
    verified = [record for record in latest.values() if record.status is Status.VERIFIED]
    counts = Counts(
        expected=len(problems),
        **{status.value: sum(record.status is status for record in latest.values()) for status in Status},
    )
    complete = counts.verified == counts.expected
    tables = _tables(verified, profile)
    nothing = Tables(scores={}, regimes={}, worst={})
    shown = tables if complete else nothing
    return Scores(
        counts=counts,
        complete=complete,
        rankable=complete and all(record.rankable for record in verified),
        scores=shown.scores,
        regimes=shown.regimes,
        worst=shown.worst,
        partial=None if complete or not verified else tables,
    )


class _Row(NamedTuple):
    """One shape against one baseline in one measure."""

    problem: Problem
    regime: Regime
    baseline: str
    speedup: Interval
    baseline_ns: float
    submission_ns: float


def _latest(records: Iterable[Record], problems: set[Problem]) -> dict[Problem, Record]:
    latest: dict[Problem, Record] = {}
    for record in records:
        if record.problem not in problems:
            continue
        known = latest.get(record.problem)
        if known is not None and known.attempt == record.attempt and known != record:
            raise DataError(f"attempt {record.attempt} at {record.problem} has two different records; keep one of them.")
        if known is None or record.attempt > known.attempt:
            latest[record.problem] = record
    return latest


def _tables(verified: Sequence[Record], profile: DeviceProfile) -> Tables:
    """Scores over these records, which must declare the same, or a baseline would be scored over the shapes that have it."""
    declared = {(frozenset(map(str, record.measures)), frozenset(record.baselines)) for record in verified}
    if len(declared) > 1:
        raise DataError(
            "the records declare different measures or baselines, so they are not of one run; score runs one by one."
        )
    by_measure: dict[Measure, list[tuple[Record, Timing]]] = {}
    for record in verified:
        for timing in record.timings:
            by_measure.setdefault(timing.measure, []).append((record, timing))
    tables = Tables(scores={}, regimes={}, worst={})
    for measure, timed in sorted(by_measure.items(), key=lambda item: str(item[0])):
        mode, l2_state = measure.mode, measure.l2_state
        scores = tables.scores.setdefault(mode, {}).setdefault(l2_state, {})
        regimes = tables.regimes.setdefault(mode, {}).setdefault(l2_state, {})
        for name in (BEST, *sorted(timed[0][1].speedups)):
            rows = [_row(record, timing, name, profile) for record, timing in timed]
            scores[name] = _score(rows)
            regimes[name] = {
                which: _score(those) for which in Regime if (those := [row for row in rows if row.regime is which])
            }
            if name == BEST:
                tables.worst.setdefault(mode, {})[l2_state] = _worst(rows)
    return tables


def _row(record: Record, timing: Timing, name: str, profile: DeviceProfile) -> _Row:
    if BEST in timing.speedups:
        raise DataError(f"{record.problem} has a baseline called {BEST!r}, a name that stands for the fastest one; rename it.")
    baseline = timing.best_baseline if name == BEST else name
    row = _Row(
        problem=record.problem,
        regime=regime(record.problem, profile),
        baseline=baseline,
        speedup=timing.speedups[baseline],
        baseline_ns=timing.contenders[baseline].launch_ns,
        submission_ns=timing.contenders[SUBMISSION].launch_ns,
    )
    figures = (row.speedup.value, row.speedup.low, row.speedup.high, row.baseline_ns, row.submission_ns)
    if not all(0 < figure < math.inf for figure in figures):
        raise DataError(f"{row.problem} against {baseline} has a figure that is not positive and finite: {figures}.")
    return row


def _score(rows: Sequence[_Row]) -> Score:
    """Sums are exact (fsum), so the order of the rows cannot show."""
    values = [row.speedup.value for row in rows]
    return Score(
        shapes=len(rows),
        geomean=geomean_interval([row.speedup for row in rows]),
        total_time=math.fsum(row.baseline_ns for row in rows) / math.fsum(row.submission_ns for row in rows),
        win_rate=sum(value > 1 for value in values) / len(values),
        arithmetic_mean=math.fsum(values) / len(values),
    )


def _worst(rows: Sequence[_Row]) -> tuple[ShapeSpeedup, ...]:
    ordered = sorted(rows, key=lambda row: (row.speedup.value, row.problem.m, row.problem.n, row.problem.k))
    return tuple(
        ShapeSpeedup(shape=str(row.problem), baseline=row.baseline, speedup=row.speedup) for row in ordered[:WORST_COUNT]
    )
