"""A large board of made-up submissions, put straight into the tables: for pages and queries, not for what publishing checks."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path

from factories import make_record
from runs import H200, SPEEDUPS

from harness.problem import Problem
from harness.problem_sets import ShapeSet, resolve_shapes
from harness.profiles import load_profile
from harness.protocol import Protocol, protocol_for
from harness.record import Interval, Measure, Mode, Record, Status
from harness.run import End, Header, Segment
from harness.submission import Manifest, Submission, SubmissionFile
from leaderboard.examine import Examined
from leaderboard.journal import Event, EventKind
from leaderboard.rows import add_run
from leaderboard.store import Board

MEASURES = (Measure(), Measure(mode=Mode.SERVER))
AUTHORS = ("Ada", "Bob", "Cleo", "Dmitri", "Eve")
INCOMPLETE_EVERY = 10
"""One submission in so many does not support every shape."""


def fill(board: Board, submissions: int, shapes: str = "grid1000", seed: int = 1) -> None:
    """Publish made-up runs, one per submission, with both modes."""
    for examined in made_up(submissions, shapes, seed):
        event = Event(
            kind=EventKind.PUBLISHED, at_utc=examined.end.ended_utc, run=examined.header.name, end_sha256=examined.end_sha256
        )
        with board.database.writing() as session:
            add_run(session, examined, event)


def made_up(submissions: int, shapes: str, seed: int) -> Iterator[Examined]:
    """Runs that no directory holds."""
    shape_set = resolve_shapes(shapes)
    protocol = protocol_for(load_profile("h200")).model_copy(update={"measures": MEASURES})
    rng = random.Random(seed)
    for number in range(submissions):
        yield _run(number, shape_set, protocol, rng)


def _run(number: int, shape_set: ShapeSet, protocol: Protocol, rng: random.Random) -> Examined:
    submission = _submission(number)
    stamp = f"2026-{1 + number // 28 % 12:02}-{1 + number % 28:02}T00:00:00Z"
    header = Header(
        name=f"kernel-{number}-h200-{number:08}",
        created_utc=stamp,
        harness_version="0.1.0",
        command=("hgemm", "run"),
        submission=submission.reference(),
        device=H200,
        protocol=protocol,
        shape_set=shape_set.name,
        shapes_sha256=shape_set.sha256,
        shapes=tuple(map(str, shape_set.problems)),
    )
    segment = Segment(index=0, started_utc=stamp, device=H200, seed_commitment="0" * 64, rankable=True)
    level, incomplete = rng.gauss(0, 0.1), number % INCOMPLETE_EVERY == INCOMPLETE_EVERY - 1
    records = [_record(problem, level, incomplete, protocol, rng) for problem in shape_set.problems]
    counts = {status.value: sum(record.status is status for record in records) for status in Status}
    end = End(ended_utc=stamp, counts=counts, files_sha256={}, secrets={})
    identity = hashlib.sha256(json.dumps([number, stamp]).encode()).hexdigest()
    return Examined(Path("/nowhere") / header.name, header, [segment], records, submission, end, identity)


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


def _record(problem: Problem, level: float, incomplete: bool, protocol: Protocol, rng: random.Random) -> Record:
    declared = {"measures": protocol.measures, "baselines": protocol.baselines}
    if incomplete and problem.k == 64:
        return make_record(problem, Status.UNSUPPORTED).model_copy(update=declared)
    speedups = {name: _ratio(math.log(value) / 4 + level + rng.gauss(0, 0.1)) for name, value in SPEEDUPS.items()}
    return make_record(problem, Status.VERIFIED, speedups, protocol.measures, submission_ns=2_000 + problem.k)


def _ratio(log: float) -> Interval:
    return Interval(value=math.exp(log), low=math.exp(log - 0.01), high=math.exp(log + 0.01))
