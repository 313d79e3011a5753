"""A large board of made-up submissions, put straight into the tables: for pages and queries, not for what publishing checks.

Two of them, a complete and an incomplete one, are inserted as publishing does. The others are copies of their rows inside the
database, faster or slower by a factor of their own: 200 runs over 1,000 shapes stand in seconds.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from factories import make_record
from runs import H200, SPEEDUPS
from sqlalchemy import case, insert, literal, select
from sqlalchemy.orm import Session

from harness.problem import Problem
from harness.problem_sets import ShapeSet, resolve_shapes
from harness.profiles import load_profile
from harness.protocol import Protocol, protocol_for
from harness.record import SUBMISSION, Interval, Measure, Mode, Record, Status
from harness.run import End, Header, Segment
from harness.submission import Manifest, Submission, SubmissionFile
from leaderboard.examine import Examined, file_rows, run_row, submission_row
from leaderboard.journal import Event, EventKind
from leaderboard.models import Base, FileRow, RecordRow, RunRow, ScoreRow, SubmissionRow, TimingRow
from leaderboard.rows import add_run
from leaderboard.store import Board

if TYPE_CHECKING:
    from sqlalchemy import Table

MEASURES = (Measure(), Measure(mode=Mode.SERVER))
AUTHORS = ("Ada", "Bob", "Cleo", "Dmitri", "Eve")
INCOMPLETE_EVERY = 10
"""One submission in so many does not support every shape."""


def fill(board: Board, submissions: int, shapes: str = "grid1000", seed: int = 1) -> None:
    """Publish made-up runs, one per submission, with both modes."""
    shape_set, rng = resolve_shapes(shapes), random.Random(seed)
    originals: dict[bool, Examined] = {}
    ids: dict[bool, int] = {}
    for number in range(submissions):
        incomplete = number % INCOMPLETE_EVERY == INCOMPLETE_EVERY - 1
        with board.database.writing() as session:
            if incomplete not in originals:
                originals[incomplete] = examined = _run(number, shape_set, _records(shape_set, incomplete, rng))
                add_run(session, examined, _event(examined))
                ids[incomplete] = session.scalars(select(RunRow.id).where(RunRow.name == examined.header.name)).one()
            else:
                examined = _run(number, shape_set, originals[incomplete].records)
                _copy(session, examined, ids[incomplete], math.exp(rng.gauss(0, 0.1)))


def _copy(session: Session, examined: Examined, original: int, factor: float) -> None:
    """A run with the rows of another one, every launch of its submission faster by a factor."""
    event = _event(examined)
    submission = SubmissionRow(**submission_row(examined))
    session.add(submission)
    session.flush()
    session.add_all(FileRow(submission_id=submission.id, **each) for each in file_rows(examined))
    published = {"published_utc": event.at_utc, "origin": event.origin.value, "source": ""}
    run = RunRow(**run_row(examined), **published, submission_id=submission.id)
    session.add(run)
    session.flush()
    times = (TimingRow.launch_ns, TimingRow.launch_min_ns, TimingRow.launch_max_ns)
    mine = TimingRow.contender == SUBMISSION
    ratios = (TimingRow.speedup, TimingRow.speedup_low, TimingRow.speedup_high)
    scores = (
        ScoreRow.geomean,
        ScoreRow.geomean_low,
        ScoreRow.geomean_high,
        ScoreRow.total_time,
        ScoreRow.arithmetic_mean,
    )
    for table, changes in (
        (ScoreRow, {each.key: each * factor for each in scores}),
        (RecordRow, {}),
        (
            TimingRow,
            {each.key: case((mine, each / factor), else_=each) for each in times}
            | {each.key: each * factor for each in ratios},
        ),
    ):
        _copy_rows(session, table, original, {"run_id": literal(run.id), **changes})


def _copy_rows(session: Session, model: type[Base], original: int, changes: Mapping[str, Any]) -> None:
    table = cast("Table", model.__table__)
    values = [changes.get(column.name, column).label(column.name) for column in table.columns]
    rows = select(*values).where(table.c.run_id == original)
    session.execute(insert(table).from_select([column.name for column in table.columns], rows))


def _event(examined: Examined) -> Event:
    header, ended = examined.header, examined.end.ended_utc
    return Event(kind=EventKind.PUBLISHED, at_utc=ended, run=header.name, end_sha256=examined.end_sha256)


def _run(number: int, shape_set: ShapeSet, records: list[Record]) -> Examined:
    """A run that no directory holds."""
    submission = _submission(number)
    stamp = f"2026-{1 + number // 28 % 12:02}-{1 + number % 28:02}T00:00:00Z"
    header = Header(
        name=f"kernel-{number}-h200-{number:08}",
        created_utc=stamp,
        harness_version="0.1.0",
        command=("hgemm", "run"),
        submission=submission.reference(),
        device=H200,
        protocol=_protocol(),
        shape_set=shape_set.name,
        shapes_sha256=shape_set.sha256,
        shapes=tuple(map(str, shape_set.problems)),
    )
    segment = Segment(index=0, started_utc=stamp, device=H200, seed_commitment="0" * 64, rankable=True)
    counts = {status.value: sum(record.status is status for record in records) for status in Status}
    end = End(ended_utc=stamp, counts=counts, files_sha256={}, secrets={})
    identity = hashlib.sha256(json.dumps([number, stamp]).encode()).hexdigest()
    return Examined(Path("/nowhere") / header.name, header, [segment], records, submission, end, identity)


def _protocol() -> Protocol:
    return protocol_for(load_profile("h200")).model_copy(update={"measures": MEASURES})


def _submission(number: int) -> Submission:
    manifest = Manifest(
        name=f"kernel-{number}",
        version="1.0.0",
        authors=(AUTHORS[number % len(AUTHORS)],),
        license="MIT",
        description="made up",
        targets=("sm_90a",),
        kind="device",
    )
    files = (SubmissionFile("kernels/k.cu", f"// {number}\n".encode()), SubmissionFile("plan.py", b""))
    return Submission(Path("/nowhere"), manifest, files)


def _records(shape_set: ShapeSet, incomplete: bool, rng: random.Random) -> list[Record]:
    return [_record(problem, incomplete and problem.k == 64, rng) for problem in shape_set.problems]


def _record(problem: Problem, unsupported: bool, rng: random.Random) -> Record:
    protocol = _protocol()
    declared = {"measures": protocol.measures, "baselines": protocol.baselines}
    if unsupported:
        return make_record(problem, Status.UNSUPPORTED).model_copy(update=declared)
    speedups = {name: _ratio(math.log(value) / 4 + rng.gauss(0, 0.1)) for name, value in SPEEDUPS.items()}
    return make_record(problem, Status.VERIFIED, speedups, protocol.measures, submission_ns=2_000 + problem.k)


def _ratio(log: float) -> Interval:
    return Interval(value=math.exp(log), low=math.exp(log - 0.01), high=math.exp(log + 0.01))
