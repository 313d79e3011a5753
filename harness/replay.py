"""Replay: a record measured once more from its stored seed, and whether it comes out the same."""

from __future__ import annotations

import math

from harness.evaluate import Evaluator, prepare
from harness.model import DataError, Document, Model, Name
from harness.plan import Plan
from harness.problem import Problem
from harness.record import Interval, Measure, Record, Status
from harness.run import Run
from harness.submission import Submission

OFFSET = 0.01
"""What two measurements of one thing may differ by beyond their intervals: offsets that a process keeps for its life, and the
machine's state, are in neither interval."""


class ReplayedRatio(Model):
    """One speedup, then and now."""

    measure: Measure
    """What was timed."""
    baseline: Name
    """Over which baseline."""
    then: Interval
    """As recorded."""
    now: Interval
    """As measured again."""

    @property
    def reproduces(self) -> bool:
        """Whether the two differ by no more than their intervals, and an offset, allow."""
        half_widths = math.hypot(_half_width(self.then), _half_width(self.now))
        return abs(math.log(self.now.value / self.then.value)) <= half_widths + OFFSET


class Replay(Document):
    """What `hgemm replay --json` prints."""

    run: str
    """Name of the run."""
    problem: Problem
    """The problem."""
    seed: str
    """Seed of the recorded attempt, which decides inputs, orders and traces."""
    then: Record
    """The record."""
    now: Record
    """What came out this time."""
    ratios: tuple[ReplayedRatio, ...]
    """Every speedup of both."""
    reproduces: bool
    """Whether outcome, reason and every speedup came out the same."""


def replay(run: Run, problem: Problem, evaluator: Evaluator) -> Replay:
    """Measure a record of a run again, from the run's own snapshot of the submission and the record's own seed.

    Raises:
        DataError: the run has no such record, it never reached a device, or the snapshot was changed.
    """
    record = run.latest().get(problem)
    if record is None or not record.seed:
        raise DataError(f"{run.header.name} has no measurement of {problem} to replay.")
    submission = Submission.read(run.path / "submission")
    if submission.tree_sha256 != run.header.submission.tree_sha256:
        raise DataError(f"{run.path / 'submission'} was changed since the run; there is nothing to replay.")
    prepared = prepare(submission, [problem], evaluator.profile)
    plan = prepared.outcomes[problem]
    if not isinstance(plan, Plan) or plan.sha256() != record.plan_sha256:
        raise DataError(f"the submission plans {problem} differently from when it was measured.")
    now = evaluator.again(prepared, record)
    ratios = tuple(_ratios(record, now))
    same = (record.status, record.reason) == (now.status, now.reason)
    return Replay(
        run=run.header.name,
        problem=problem,
        seed=record.seed,
        then=record,
        now=now,
        ratios=ratios,
        reproduces=same and all(ratio.reproduces for ratio in ratios) and (bool(ratios) or now.status is not Status.VERIFIED),
    )


def _ratios(then: Record, now: Record) -> list[ReplayedRatio]:
    again = {str(timing.measure): timing for timing in now.timings}
    return [
        ReplayedRatio(measure=timing.measure, baseline=name, then=interval, now=again[str(timing.measure)].speedups[name])
        for timing in then.timings
        if str(timing.measure) in again
        for name, interval in timing.speedups.items()
    ]


def _half_width(interval: Interval) -> float:
    return math.log(interval.high / interval.low) / 2
