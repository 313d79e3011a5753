"""Queries about shapes: those of one run, and one shape over all runs. One statement each, `usual_shape` aside."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.orm import aliased

from harness.model import DataError
from harness.problem import Problem
from harness.record import SUBMISSION, L2State, Measure, Mode, Reason, Status, Verification
from harness.scores import BEST, Regime
from leaderboard.models import RecordRow, RunRow, SubmissionRow, TimingRow
from leaderboard.queries import ranking, run_details
from leaderboard.ranking import RankingKey
from leaderboard.store import Board

USUAL = "4096x4096x4096"


class ShapeRow(NamedTuple):
    """One shape of a run against one baseline. Times in nanoseconds per launch; None where it is not verified or timed."""

    shape: str
    m: int
    n: int
    k: int
    regime: Regime
    status: Status
    reason: Reason | None
    detail: str
    launch_ns: float | None
    launch_min_ns: float | None
    launch_max_ns: float | None
    layout: str | None
    description: str | None
    """What of the submission ran."""
    sm_clock_mhz: int | None
    baseline: str | None
    """The baseline, which `best` chooses per shape."""
    baseline_ns: float | None
    baseline_description: str | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None


class ContenderRow(NamedTuple):
    """One contender at one shape in one measure of a run. Times in nanoseconds per launch."""

    run: str
    name: str
    """Name of the submission whose run it is."""
    version: str
    tree_sha256: str
    mode: Mode
    l2_state: L2State
    contender: str
    """`submission` or the baseline."""
    best: bool
    """Whether it is the best baseline."""
    launch_ns: float
    launch_min_ns: float
    launch_max_ns: float
    launches: int
    rounds: int
    layout: str
    description: str
    sm_clock_mhz: int | None
    speedup: float | None
    """Its time over the submission's; None for the submission."""
    speedup_low: float | None
    speedup_high: float | None


class ShapeDetails(NamedTuple):
    """One shape of a run, with everything that was measured."""

    shape: str
    regime: Regime
    status: Status
    reason: Reason | None
    detail: str
    attempt: int
    segment: int
    seconds: float
    verification: Verification | None
    contenders: tuple[ContenderRow, ...]


class VerificationRow(NamedTuple):
    """What verification measured at one shape."""

    shape: str
    status: Status
    verification: Verification


def shape_rows(board: Board, run: str, measure: Measure, baseline: str = BEST) -> tuple[ShapeRow, ...]:
    """Every shape of a run in the set's order, against a baseline; empty if no run has that name."""
    mine, theirs = aliased(TimingRow), aliased(TimingRow)
    chosen = theirs.best.is_(True) if baseline == BEST else theirs.contender == baseline
    figures = (
        mine.launch_ns,
        mine.launch_min_ns,
        mine.launch_max_ns,
        mine.layout,
        mine.description,
        mine.sm_clock_mhz,
        theirs.contender,
        theirs.launch_ns,
        theirs.description,
        theirs.speedup,
        theirs.speedup_low,
        theirs.speedup_high,
    )
    record = RecordRow
    query = (
        select(record.m, record.n, record.k, record.regime, record.status, record.reason, record.detail, *figures)
        .join(RunRow, RunRow.id == record.run_id)
        .outerjoin(mine, and_(_of(mine, measure), mine.contender == SUBMISSION))
        .outerjoin(theirs, and_(_of(theirs, measure), chosen))
        .where(RunRow.name == run)
        .order_by(record.place)
    )
    with board.database.reading() as session:
        return tuple(
            ShapeRow(f"{m}x{n}x{k}", m, n, k, Regime(which), Status(status), _reason(reason), detail, *rest)
            for m, n, k, which, status, reason, detail, *rest in session.execute(query)
        )


def shape_details(board: Board, run: str, shape: str) -> ShapeDetails:
    """One shape of a run.

    Raises:
        DataError: no such run is published, it has no such shape, or the shape is none.
    """
    query = (
        select(RecordRow, TimingRow, SubmissionRow.name, SubmissionRow.version, SubmissionRow.tree_sha256)
        .join(RunRow, RunRow.id == RecordRow.run_id)
        .join(SubmissionRow, SubmissionRow.id == RunRow.submission_id)
        .outerjoin(TimingRow, and_(TimingRow.run_id == RecordRow.run_id, TimingRow.place == RecordRow.place))
        .where(RunRow.name == run, *_is(shape))
        .order_by(TimingRow.mode, TimingRow.l2_state, TimingRow.launch_ns)
    )
    with board.database.reading() as session:
        rows = session.execute(query).all()
        if not rows:
            raise DataError(f"no run called {run!r} with shape {shape} is published.")
        record: RecordRow = rows[0][0]
        return ShapeDetails(
            shape=shape,
            regime=Regime(record.regime),
            status=Status(record.status),
            reason=_reason(record.reason),
            detail=record.detail,
            attempt=record.attempt,
            segment=record.segment,
            seconds=record.seconds,
            verification=Verification.model_validate_json(record.verification) if record.verification else None,
            contenders=tuple(_contender((run, *identity), timing) for _, timing, *identity in rows if timing is not None),
        )


def at_shape(board: Board, key: RankingKey, shape: str) -> tuple[ContenderRow, ...]:
    """What was measured at a shape in all runs that are comparable by a key, its baseline aside, the fastest first.

    Runs of submissions that are withdrawn or cheating, or were rejected at some shape, are left out.

    Raises:
        DataError: the text is no shape.
    """
    query = (
        select(TimingRow, RunRow.name, SubmissionRow.name, SubmissionRow.version, SubmissionRow.tree_sha256)
        .join(RecordRow, and_(TimingRow.run_id == RecordRow.run_id, TimingRow.place == RecordRow.place))
        .join(RunRow, RunRow.id == RecordRow.run_id)
        .join(SubmissionRow, SubmissionRow.id == RunRow.submission_id)
        .where(
            *_is(shape),
            TimingRow.mode == key.mode.value,
            TimingRow.l2_state == key.l2_state.value,
            RunRow.device == key.device,
            SubmissionRow.track == key.track.value,
            SubmissionRow.kind == key.kind.value,
            RunRow.protocol == key.protocol,
            RunRow.cublas == key.cublas,
            RunRow.driver == key.driver,
            RunRow.origin == key.origin.value,
            RunRow.rejected == 0,
            SubmissionRow.verdict.is_(None),
        )
        .order_by(TimingRow.launch_ns, RunRow.name, TimingRow.contender)
    )
    with board.database.reading() as session:
        return tuple(_contender(identity, timing) for timing, *identity in session.execute(query))


def usual_shape(board: Board, key: RankingKey) -> str:
    """The shape to look at first: a middling one of the list's set.

    Raises:
        DataError: the board has no such list.
    """
    found = ranking(board, key)
    shapes = run_details(board, [*found.ranked, *found.apart][0].runs[0].run).header.shapes
    return USUAL if USUAL in shapes else shapes[len(shapes) // 2]


def verifications(board: Board, run: str) -> tuple[VerificationRow, ...]:
    """What verification measured at every shape of a run that it reached."""
    query = (
        select(RecordRow.m, RecordRow.n, RecordRow.k, RecordRow.status, RecordRow.verification)
        .join(RunRow, RunRow.id == RecordRow.run_id)
        .where(RunRow.name == run, RecordRow.verification.is_not(None))
        .order_by(RecordRow.place)
    )
    with board.database.reading() as session:
        return tuple(
            VerificationRow(f"{m}x{n}x{k}", Status(status), Verification.model_validate_json(text or ""))
            for m, n, k, status, text in session.execute(query)
        )


_REASONS = {reason.value: reason for reason in Reason}


def _reason(text: str | None) -> Reason | None:
    return None if text is None else _REASONS[text]


def _of(timing: type[TimingRow], measure: Measure) -> ColumnElement[bool]:
    return and_(
        timing.run_id == RecordRow.run_id,
        timing.place == RecordRow.place,
        timing.mode == measure.mode.value,
        timing.l2_state == measure.l2_state.value,
    )


def _is(shape: str) -> tuple[ColumnElement[bool], ...]:
    problem = Problem.parse(shape)
    return RecordRow.m == problem.m, RecordRow.n == problem.n, RecordRow.k == problem.k


def _contender(identity: tuple[str, ...] | list[str], timing: TimingRow) -> ContenderRow:
    """A row of a run, given its name and its submission's name, version and hash."""
    run, name, version, tree_sha256 = identity
    return ContenderRow(
        run=run,
        name=name,
        version=version,
        tree_sha256=tree_sha256,
        mode=Mode(timing.mode),
        l2_state=L2State(timing.l2_state),
        contender=timing.contender,
        best=timing.best,
        launch_ns=timing.launch_ns,
        launch_min_ns=timing.launch_min_ns,
        launch_max_ns=timing.launch_max_ns,
        launches=timing.launches,
        rounds=timing.rounds,
        layout=timing.layout,
        description=timing.description,
        sm_clock_mhz=timing.sm_clock_mhz,
        speedup=timing.speedup,
        speedup_low=timing.speedup_low,
        speedup_high=timing.speedup_high,
    )
