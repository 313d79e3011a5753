"""Queries: lists, rankings, runs, history and sources, for the pages, the export and the command line.

Each is a fixed number of statements, whatever the board holds. Rows are NamedTuples, so that `pandas.DataFrame(rows)` has
their fields as columns; documents are Models. Shapes are in `leaderboard.shape_queries`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import Select, case, func, select
from sqlalchemy.orm import defer

from harness.model import DataError
from harness.record import Interval, L2State, Mode, Status
from harness.run import Header, Segment
from harness.scores import BEST, Regime
from leaderboard.models import ALL_REGIMES, FileRow, RunRow, ScoreRow, SubmissionRow
from leaderboard.ranking import Entry, Origin, Ranking, RankingKey, ScoredRun, Standing, VerdictKind, rank
from leaderboard.store import Board

VALID = {Standing.RANKED, Standing.SUPERSEDED}
DEFAULTS = {"mode": Mode.OFFLINE, "l2_state": L2State.COLD, "baseline": BEST, "origin": Origin.OPERATOR}
"""What a filter that is not given means, where there is such a list."""


class ListSummary(NamedTuple):
    """A list that the board has."""

    key: RankingKey
    shape_set: str
    """Name of the set."""
    shapes: int
    """Shapes of the set."""
    device_name: str
    """Device by its driver's name."""
    runs: int
    """Runs on it."""
    latest_utc: str
    """When the newest of them ended."""


class SourceFile(NamedTuple):
    """A file of a submission."""

    name: str
    size_bytes: int
    content: bytes


class RunSummary(NamedTuple):
    """A published run."""

    run: str
    name: str
    """Name of the submission."""
    version: str
    authors: tuple[str, ...]
    tree_sha256: str
    device: str
    shape_set: str
    shapes: int
    verified: int
    origin: Origin
    created_utc: str
    ended_utc: str
    published_utc: str
    verdict: VerdictKind | None
    verdict_reason: str


class RunDetails(NamedTuple):
    """One run, whole but for its shapes."""

    summary: RunSummary
    header: Header
    segments: tuple[Segment, ...]
    description: str
    badges: tuple[str, ...]
    code_sha256: str
    because: str
    """Why its machine cannot rank; empty where it can."""
    counts: dict[Status, int]
    source: str
    """Where a reported run comes from."""
    path: str
    """Its directory, on the machine that published it."""
    end_sha256: str


class ScoreLine(NamedTuple):
    """A run's score against one baseline, over the set (regime None) or one regime; figures are None if it is incomplete."""

    mode: Mode
    l2_state: L2State
    baseline: str
    regime: Regime | None
    shapes: int
    geomean: Interval | None
    total_time: float | None
    win_rate: float | None
    arithmetic_mean: float | None


class HistoryPoint(NamedTuple):
    """One run on a list, as time goes by."""

    run: str
    ended_utc: str
    name: str
    version: str
    author: str
    tree_sha256: str
    standing: Standing
    """Where its submission stands now."""
    geomean: Interval | None
    is_best: bool
    """Whether it was its author's best valid run on the list when it ended, and so not superseded from the start."""

    @property
    def then(self) -> str:
        """What it was when it ended; of one that is not valid, why it is not."""
        if self.is_best or self.geomean is None:
            return "best so far" if self.is_best else "no score"
        return "superseded" if self.standing in VALID else self.standing.value.replace("_", " ")


def lists(board: Board) -> tuple[ListSummary, ...]:
    """Every list, that with the most runs first; a CPU's last, since nothing ranks there."""
    columns = (*KEY_COLUMNS.values(), RunRow.shape_set, RunRow.shapes, RunRow.device_name)
    query = (
        select(*columns, func.count(), func.max(RunRow.ended_utc))
        .select_from(ScoreRow)
        .join(RunRow, RunRow.id == ScoreRow.run_id)
        .join(SubmissionRow, SubmissionRow.id == RunRow.submission_id)
        .where(ScoreRow.regime == ALL_REGIMES)
        .group_by(*columns)
    )
    with board.database.reading() as session:
        rows = session.execute(query).all()
    found: dict[RankingKey, ListSummary] = {}
    for row in rows:
        *key, shape_set, shapes, device_name, count, latest_utc = row
        summary = ListSummary(_key(key), shape_set, shapes, device_name, count, latest_utc)
        known = found.get(summary.key, summary._replace(runs=0))
        # One set under two names, or one profile under two of its driver's names, is one list.
        newer = max(summary, known, key=lambda each: each.latest_utc)
        found[summary.key] = newer._replace(runs=known.runs + summary.runs)
    return tuple(sorted(found.values(), key=lambda each: (each.key.device == "cpu", -each.runs, each.key.canonical_json())))


def choose_list(board: Board, **filters: str) -> RankingKey:
    """The list that filters mean: fields of RankingKey, or `shapes` for the name of a set or the start of its hash.

    What is not given is `DEFAULTS` where there is such a list, else what the list with the most runs has.

    Raises:
        DataError: the board is empty, or has no such list.
    """
    found = lists(board)
    if not found:
        raise DataError("the board is empty; publish a run with: hgemm publish runs/NAME")
    for field, value in filters.items():
        those = tuple(each for each in found if _matches(each, field, value))
        if not those:
            there = ", ".join(sorted({_value(each, field) for each in found}))
            raise DataError(f"the board has no list with {field} {value!r}; with what else is asked for it has {there}.")
        found = those
    for field, default in DEFAULTS.items():
        found = tuple(each for each in found if getattr(each.key, field) == default) or found
    return found[0].key


def ranking(board: Board, key: RankingKey) -> Ranking:
    """A list, ranked; the only way to a ranking.

    Raises:
        DataError: the board has no such list.
    """
    rows = _list_rows(board, key)
    newest = max((row.run for row in rows), key=lambda run: run.ended_utc)
    ranked, apart = rank(map(_scored_run, rows))
    return Ranking(key=key, shape_set=newest.shape_set, device_name=newest.device_name, ranked=ranked, apart=apart)


def history(board: Board, key: RankingKey) -> tuple[HistoryPoint, ...]:
    """Every run on a list, oldest first.

    Raises:
        DataError: the board has no such list.
    """
    scored = [_scored_run(row) for row in _list_rows(board, key)]
    entries: dict[str, Entry] = {entry.tree_sha256: entry for part in rank(scored) for entry in part}
    best: dict[str, float] = {}
    points = []
    for run in sorted(scored, key=lambda each: (each.ended_utc, each.run)):
        author, standing = run.authors[0], entries[run.tree_sha256].standing
        low = run.geomean.low if run.geomean is not None and standing in VALID else 0.0
        is_best = low > best.get(author, 0.0)
        if is_best:
            best[author] = low
        points.append(
            HistoryPoint(run.run, run.ended_utc, run.name, run.version, author, run.tree_sha256, standing, run.geomean, is_best)
        )
    return tuple(points)


def runs(board: Board, *, name: str | None = None, tree_sha256: str | None = None) -> tuple[RunSummary, ...]:
    """Published runs, newest first; of one submission by name (all versions) or by hash."""
    query = _run_query()
    if name is not None:
        query = query.where(SubmissionRow.name == name)
    if tree_sha256 is not None:
        query = query.where(SubmissionRow.tree_sha256 == tree_sha256)
    with board.database.reading() as session:
        rows = session.execute(query.order_by(RunRow.ended_utc.desc(), RunRow.name)).all()
        return tuple(_summary(submission, run) for submission, run in rows)


def run_details(board: Board, run: str) -> RunDetails:
    """One run.

    Raises:
        DataError: no run of that name is published.
    """
    with board.database.reading() as session:
        row = session.execute(_run_query().where(RunRow.name == run)).one_or_none()
        if row is None:
            raise DataError(f"no run called {run!r} is published.")
        submission, found = row
        counts = {status: getattr(found, status.value, 0) for status in Status}
        return RunDetails(
            summary=_summary(submission, found),
            header=Header.parse(found.header, f"the header of {run}"),
            segments=tuple(Segment.parse(line, f"a segment of {run}") for line in found.segments.splitlines()),
            description=submission.description,
            badges=tuple(submission.badges),
            code_sha256=submission.code_sha256,
            because=found.because,
            counts=counts,
            source=found.source,
            path=found.path,
            end_sha256=found.end_sha256,
        )


def run_scores(board: Board, run: str) -> tuple[ScoreLine, ...]:
    """All scores of a run, per measure, baseline and regime; empty if no run has that name."""
    query = select(ScoreRow).join(RunRow, RunRow.id == ScoreRow.run_id).where(RunRow.name == run)
    place = case({each.value: place for place, each in enumerate(Regime)}, value=ScoreRow.regime, else_=-1)
    query = query.order_by(ScoreRow.mode, ScoreRow.l2_state, ScoreRow.baseline, place)
    with board.database.reading() as session:
        return tuple(
            ScoreLine(
                mode=Mode(row.mode),
                l2_state=L2State(row.l2_state),
                baseline=row.baseline,
                regime=None if row.regime == ALL_REGIMES else Regime(row.regime),
                shapes=row.shapes,
                geomean=_geomean(row),
                total_time=row.total_time,
                win_rate=row.win_rate,
                arithmetic_mean=row.arithmetic_mean,
            )
            for row in session.scalars(query)
        )


def submission_files(board: Board, tree_sha256: str) -> tuple[SourceFile, ...]:
    """Every file of a submission, by name; empty if it is not on the board."""
    query = select(FileRow.name, FileRow.size_bytes, FileRow.content).join(SubmissionRow)
    query = query.where(SubmissionRow.tree_sha256 == tree_sha256).order_by(FileRow.name)
    with board.database.reading() as session:
        return tuple(SourceFile(*row) for row in session.execute(query))


KEY_COLUMNS = {
    "device": RunRow.device,
    "track": SubmissionRow.track,
    "kind": SubmissionRow.kind,
    "mode": ScoreRow.mode,
    "l2_state": ScoreRow.l2_state,
    "baseline": ScoreRow.baseline,
    "shapes_sha256": RunRow.shapes_sha256,
    "protocol": RunRow.protocol,
    "cublas": RunRow.cublas,
    "driver": RunRow.driver,
    "origin": RunRow.origin,
}
"""Column of every field of RankingKey, in its order."""


class _ListRow(NamedTuple):
    submission: SubmissionRow
    run: RunRow
    score: ScoreRow
    """Over the whole set."""
    regimes: dict[Regime, float]


def _key(values: Iterable[str]) -> RankingKey:
    return RankingKey.model_validate(dict(zip(KEY_COLUMNS, values, strict=True)), strict=False)


def _matches(summary: ListSummary, field: str, value: str) -> bool:
    if field == "shapes":
        return summary.shape_set == value or (len(value) >= 6 and summary.key.shapes_sha256.startswith(value))
    return _value(summary, field) == value


def _value(summary: ListSummary, field: str) -> str:
    return summary.shape_set if field == "shapes" else str(getattr(summary.key, field))


def _list_rows(board: Board, key: RankingKey) -> list[_ListRow]:
    """Runs on a list. Regimes are read as figures alone: a run and its submission come once, not once more for each of them."""
    on_list = [KEY_COLUMNS[field] == str(value) for field, value in key]
    of_submission = RunRow.submission_id == SubmissionRow.id
    whole = (
        select(SubmissionRow, RunRow, ScoreRow)
        .join(RunRow, of_submission)
        .join(ScoreRow, ScoreRow.run_id == RunRow.id)
        .where(*on_list, ScoreRow.regime == ALL_REGIMES)
        .options(defer(RunRow.header), defer(RunRow.segments))
    )
    parts = (
        select(RunRow.id, ScoreRow.regime, ScoreRow.geomean)
        .join(SubmissionRow, of_submission)
        .join(ScoreRow, ScoreRow.run_id == RunRow.id)
        .where(*on_list, ScoreRow.regime != ALL_REGIMES)
    )
    with board.database.reading() as session:
        regimes: dict[int, dict[Regime, float]] = {}
        for run_id, regime, geomean in session.execute(parts):
            if geomean is not None:
                regimes.setdefault(run_id, {})[Regime(regime)] = geomean
        rows = [_ListRow(*row, regimes.get(row[1].id, {})) for row in session.execute(whole)]
        session.expunge_all()
    if not rows:
        raise DataError(f"the board has no such list: {key.canonical_json()}")
    return rows


def _scored_run(row: _ListRow) -> ScoredRun:
    submission, run, score, regimes = row
    return ScoredRun(
        name=submission.name,
        version=submission.version,
        authors=tuple(submission.authors),
        description=submission.description,
        badges=tuple(submission.badges),
        tree_sha256=submission.tree_sha256,
        code_sha256=submission.code_sha256,
        verdict=VerdictKind(submission.verdict) if submission.verdict else None,
        verdict_reason=submission.verdict_reason or "",
        run=run.name,
        ended_utc=run.ended_utc,
        shapes=run.shapes,
        verified=run.verified,
        rejected=run.rejected,
        unsupported=run.unsupported,
        not_attempted=run.not_attempted,
        because=run.because,
        geomean=_geomean(score),
        total_time=score.total_time,
        win_rate=score.win_rate,
        arithmetic_mean=score.arithmetic_mean,
        regimes=regimes,
    )


def _geomean(score: ScoreRow) -> Interval | None:
    if score.geomean is None or score.geomean_low is None or score.geomean_high is None:
        return None
    return Interval(value=score.geomean, low=score.geomean_low, high=score.geomean_high)


def _run_query() -> Select[SubmissionRow, RunRow]:
    return select(SubmissionRow, RunRow).join(RunRow, RunRow.submission_id == SubmissionRow.id)


def _summary(submission: SubmissionRow, run: RunRow) -> RunSummary:
    return RunSummary(
        run=run.name,
        name=submission.name,
        version=submission.version,
        authors=tuple(submission.authors),
        tree_sha256=submission.tree_sha256,
        device=run.device,
        shape_set=run.shape_set,
        shapes=run.shapes,
        verified=run.verified,
        origin=Origin(run.origin),
        created_utc=run.created_utc,
        ended_utc=run.ended_utc,
        published_utc=run.published_utc,
        verdict=VerdictKind(submission.verdict) if submission.verdict else None,
        verdict_reason=submission.verdict_reason or "",
    )
