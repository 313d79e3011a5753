"""RunReport: what a run adds up to, as one JSON document. `hgemm run --json` and `hgemm show --json` print it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from harness.model import Hash, Model, Name
from harness.profiles import load_profile
from harness.protocol import Purpose
from harness.record import Reason, Record, Status
from harness.run import Run
from harness.scores import Scores, score


class RunSummary(Model):
    """What was measured, where and how."""

    name: str
    """Name of the run's directory."""
    submission: Name
    """Name of the submission."""
    version: str
    """Version of the submission."""
    tree_sha256: Hash
    """Identity of the submission's tree."""
    device: str
    """The device by its driver's name."""
    profile: Name
    """Profile of the device; it decides the regimes."""
    purpose: Purpose
    """Purpose of the protocol."""
    protocol_sha256: Hash
    """Identity of the protocol: only runs with equal ones are compared."""
    shape_set: str
    """Name of the set of shapes, or `custom`."""
    shapes_sha256: Hash
    """Hash of the set."""
    complete: bool
    """Whether every shape has its final record, verified or not, so that nothing is left to resume."""
    rankable: bool
    """Whether this device could rank throughout."""
    not_rankable_because: str
    """Why not; empty where it could."""


class ShapeOutcome(Model):
    """A shape that is not verified."""

    shape: str
    """As MxNxK."""
    status: Status
    """Outcome."""
    reason: Reason
    """Why."""
    detail: str
    """One sentence."""

    @classmethod
    def of(cls, record: Record) -> Self:
        """The outcome of a record that is not verified."""
        assert record.reason is not None
        return cls(shape=str(record.problem), status=record.status, reason=record.reason, detail=record.detail)


class RunReport(Scores):
    """What a run adds up to, and what it was."""

    run: RunSummary
    """The run itself."""
    not_verified: tuple[ShapeOutcome, ...]
    """Shapes whose latest record is not verified, in the set's order; those without a record are in no list."""
    seconds: dict[str, float]
    """What the records took of one device, in all: each measure, and `verification`. Planning, building and the start of
    workers are not in it."""


def report_of(run: Run) -> RunReport:
    """Add a run up.

    Raises:
        DataError: its records contradict each other (`harness.scores.score`).
    """
    header, latest = run.header, run.latest()
    scores = score(run.records, header.problems, load_profile(header.device.profile))
    records = [latest[problem] for problem in header.problems if problem in latest]
    reasons = dict.fromkeys(segment.not_rankable_because for segment in run.segments if not segment.rankable)
    return RunReport(
        **{name: getattr(scores, name) for name in Scores.model_fields},
        run=RunSummary(
            name=header.name,
            submission=header.submission.name,
            version=header.submission.version,
            tree_sha256=header.submission.tree_sha256,
            device=header.device.name,
            profile=header.device.profile,
            purpose=header.protocol.purpose,
            protocol_sha256=header.protocol.identity,
            shape_set=header.shape_set,
            shapes_sha256=header.shapes_sha256,
            complete=run.complete,
            rankable=not reasons,
            not_rankable_because="; ".join(reasons),
        ),
        not_verified=tuple(ShapeOutcome.of(record) for record in records if record.status is not Status.VERIFIED),
        seconds=_seconds(run.records),
    )


def _seconds(records: Iterable[Record]) -> dict[str, float]:
    """Seconds by measure; what a record took beside its measures went into verification."""
    found = {"verification": 0.0}
    for record in records:
        found["verification"] += record.seconds
        for timing in record.timings:
            seconds = timing.seconds or 0.0
            found["verification"] -= seconds
            found[str(timing.measure)] = found.get(str(timing.measure), 0.0) + seconds
    return {name: round(seconds, 1) for name, seconds in found.items() if seconds >= 0.05}
