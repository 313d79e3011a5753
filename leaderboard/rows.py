"""Rows: how a run and the verdicts on submissions stand in the tables. All of it inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from sqlalchemy import delete, insert, select, update
from sqlalchemy.orm import Session

from harness.model import DataError
from leaderboard.examine import Examined, Row, file_rows, record_rows, run_row, score_rows, submission_row, timing_rows
from leaderboard.journal import Event, EventKind
from leaderboard.models import (
    Base,
    FileRow,
    RecordRow,
    RunRow,
    ScoreRow,
    SubmissionRow,
    TimingRow,
    VerdictRow,
)
from leaderboard.ranking import VerdictKind

if TYPE_CHECKING:
    from sqlalchemy import Table


def find_submission(session: Session, text: str) -> SubmissionRow:
    """The submission that a person means by a name, name@version, or the start of a hash of its tree.

    Raises:
        DataError: there is none, or more than one.
    """
    name, _, version = text.partition("@")
    condition = (SubmissionRow.name == name) & (SubmissionRow.version == version if version else True)
    if len(text) >= 6 and set(text) <= set("0123456789abcdef"):
        condition = condition | SubmissionRow.tree_sha256.startswith(text)
    found = session.scalars(select(SubmissionRow).where(condition).order_by(SubmissionRow.id)).all()
    if not found:
        raise DataError(f"no submission on the board is called {text!r}; `hgemm rank` lists them.")
    if len(found) > 1:
        names = ", ".join(f"{row.name}@{row.version} {row.tree_sha256[:12]}" for row in found)
        raise DataError(f"{text!r} may be any of {names}; give the hash.")
    return found[0]


def add_run(session: Session, examined: Examined, event: Event) -> bool:
    """Insert a run unless it is there; then only its place is noted."""
    known = session.scalars(select(RunRow).where(RunRow.end_sha256 == examined.end_sha256)).one_or_none()
    if known is not None:
        known.path = str(examined.path)
        return False
    namesake = session.scalars(select(RunRow.path).where(RunRow.name == examined.header.name)).one_or_none()
    if namesake is not None:
        raise DataError(f"another run called {examined.header.name} is published, from {namesake}; measure again.")
    row = {**run_row(examined), "published_utc": event.at_utc, "origin": event.origin.value, "source": event.source}
    run = RunRow(**row, submission_id=_submission_id(session, examined))
    session.add(run)
    session.flush()
    for table, rows in (
        (ScoreRow, score_rows(examined)),
        (RecordRow, record_rows(examined)),
        (TimingRow, timing_rows(examined)),
    ):
        _insert(session, table, [{"run_id": run.id, **each} for each in rows])
    refresh_verdicts(session)
    return True


def replace_run(session: Session, examined: Examined, event: Event) -> None:
    """Insert a run, removing what is there of it: rows follow from the run and from this version of the code."""
    known = session.scalars(select(RunRow).where(RunRow.end_sha256 == examined.end_sha256)).one_or_none()
    if known is not None:
        remove_run(session, known)
        prune_submissions(session)
    add_run(session, examined, event)


def remove_run(session: Session, run: RunRow) -> None:
    """Delete a run with its scores, records and timings."""
    session.execute(delete(RunRow).where(RunRow.id == run.id))
    session.expunge(run)


def prune_submissions(session: Session) -> None:
    """Remove submissions without runs."""
    session.execute(delete(SubmissionRow).where(SubmissionRow.id.not_in(select(RunRow.submission_id))))


def apply_event(session: Session, event: Event) -> None:
    """Write a verdict, or take both kinds back."""
    if event.kind is EventKind.PUBLISHED:
        return
    if event.kind is EventKind.REINSTATED:
        session.execute(delete(VerdictRow).where(VerdictRow.sha256.in_([event.tree_sha256, event.code_sha256])))
        return
    sha256 = event.tree_sha256 if event.kind is EventKind.WITHDRAWN else event.code_sha256
    session.merge(VerdictRow(sha256=sha256, kind=event.kind.value, reason=event.reason, at_utc=event.at_utc))
    session.flush()


def apply_events(session: Session, events: Iterable[tuple[Path, Event]]) -> None:
    """Write the verdicts of journals, in the order in which they were given."""
    for _, event in sorted(events, key=lambda item: item[1].at_utc):
        apply_event(session, event)
    refresh_verdicts(session)


def refresh_verdicts(session: Session) -> None:
    """Write every verdict to the submissions that it concerns; cheating outweighs a withdrawal."""
    nothing = {"verdict": None, "verdict_reason": None, "verdict_utc": None}
    session.execute(update(SubmissionRow).values(nothing))
    for kind, column in ((VerdictKind.WITHDRAWN, SubmissionRow.tree_sha256), (VerdictKind.CHEATING, SubmissionRow.code_sha256)):
        for verdict in session.scalars(select(VerdictRow).where(VerdictRow.kind == kind.value)).all():
            values = {"verdict": kind.value, "verdict_reason": verdict.reason, "verdict_utc": verdict.at_utc}
            session.execute(update(SubmissionRow).where(column == verdict.sha256).values(values))


def _submission_id(session: Session, examined: Examined) -> int:
    row = submission_row(examined)
    known = session.scalars(select(SubmissionRow.id).where(SubmissionRow.tree_sha256 == row["tree_sha256"])).one_or_none()
    if known is not None:
        return known
    submission = SubmissionRow(**row)
    session.add(submission)
    session.flush()
    _insert(session, FileRow, [{"submission_id": submission.id, **each} for each in file_rows(examined)])
    return submission.id


def _insert(session: Session, table: type[Base], rows: Sequence[Row]) -> None:
    """Many rows in one statement: the mapper would send another one wherever a value is null."""
    if rows:
        session.execute(insert(cast("Table", table.__table__)), rows)
