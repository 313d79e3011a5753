"""Board: the store of published runs. Run directories and the journals beside them are the truth; it follows from them.

A board is opened with `Board.open()`, which makes or upgrades the tables, and publishes the runs that are shipped in
`leaderboard/data/` when they are new to it. Only `Board` writes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import quote

from sqlalchemy import delete, select, update

from harness.model import DataError, HgemmError
from harness.run import END, HEADER, utc_now
from leaderboard.database import Database
from leaderboard.examine import Examined, end_hash, examine
from leaderboard.journal import JOURNAL, Event, EventKind, append_event, publication, read_events
from leaderboard.models import BoardState, RunRow, SubmissionRow, VerdictRow
from leaderboard.ranking import Origin
from leaderboard.rows import (
    add_run,
    apply_event,
    apply_events,
    find_submission,
    prune_submissions,
    refresh_verdicts,
    remove_run,
    replace_run,
)

DEFAULT_URL = "http://localhost:8501"
"""Where `hgemm board` serves the app; `$HGEMM_BOARD_URL` overrides it in permalinks."""

Progress = Callable[[int, int, str], None]
"""Told how far a rebuild is: done, total, what comes next."""


class Published(NamedTuple):
    """What publishing did."""

    run: str
    """Name of the run."""
    permalink: str
    """Its page."""
    added: bool
    """False if it was on the board already."""


class Refusal(NamedTuple):
    """A run that a rebuild left out."""

    path: Path
    """Its directory."""
    because: str
    """One sentence."""


class Rebuilt(NamedTuple):
    """What a rebuild found."""

    published: tuple[str, ...]
    """Names of the runs on the board."""
    refused: tuple[Refusal, ...]
    """Runs that their journal publishes and that do not pass."""
    unpublished: tuple[Path, ...]
    """Finished runs in the directories that no journal publishes."""


class Board:
    """The store. A context manager, or closed by `close`."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @classmethod
    def open(cls, url: str | None = None, progress: Progress | None = None) -> Self:
        """Open the board at a database URL (default: `$HGEMM_DATABASE`, else the cache folder) with the shipped runs on it.

        Raises:
            DataError: the URL is none, or the tables are those of a newer version.
            InfraError: the database cannot be reached or written.
        """
        board = cls(Database.open(url))
        board._publish_shipped(progress or _silent)
        return board

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        self.database.close()

    def revision(self) -> int:
        """Changes whenever the content does: the key of every cache over a board."""
        with self.database.reading() as session:
            return session.scalars(select(BoardState.revision)).one()

    def publish(self, path: Path, origin: Origin = Origin.OPERATOR, source: str = "") -> Published:
        """Put a finished run on the board, and say so in the journal beside it. Publishing it again changes nothing.

        Raises:
            DataError: it is incomplete, was changed, or its baselines are not sane; or another run has its name.
            InfraError: database or journal cannot be written; then nothing is published.
        """
        path = path.resolve()
        identity = end_hash(path)
        known = publication(read_events(path.parent), identity)
        event = known or Event(
            kind=EventKind.PUBLISHED,
            at_utc=utc_now(),
            run=path.name,
            end_sha256=identity,
            origin=origin,
            source=source,
        )
        if (event.origin, event.source) != (origin, source):
            raise DataError(f"{path.name} is published as {event.origin} already; one run has one origin.")
        examined = examine(path)
        name = examined.header.name
        if known is not None and self._holds(examined):
            return Published(name, permalink(name), added=False)
        with self.database.writing() as session:
            added = add_run(session, examined, event)
            session.flush()
            if known is None:
                append_event(path.parent, event)
        return Published(name, permalink(name), added)

    def withdraw(self, submission: str, reason: str) -> tuple[str, ...]:
        """Take a submission's tree off the lists, which brings back its author's previous best. Returns the trees concerned.

        Args:
            submission: name, name@version, or the start of its hash.
            reason: shown beside it.

        Raises:
            DataError: no or several submissions are meant, or no reason is given.
        """
        return self._judge(EventKind.WITHDRAWN, submission, reason)

    def mark_cheating(self, submission: str, reason: str) -> tuple[str, ...]:
        """The same for code that cheats, under whatever name it was or will be published."""
        return self._judge(EventKind.CHEATING, submission, reason)

    def reinstate(self, submission: str, reason: str) -> tuple[str, ...]:
        """Take the verdicts on a submission back."""
        return self._judge(EventKind.REINSTATED, submission, reason)

    def rebuild(self, directories: Iterable[Path] = (), progress: Progress | None = None) -> Rebuilt:
        """Make the board anew from run directories and their journals: nothing else is on it afterwards.

        Args:
            directories: that hold runs; default are those of the runs on the board and the shipped ones.
            progress: told before every run.

        Raises:
            DataError: a directory is missing, or a journal is not valid.
            InfraError: the database cannot be written.
        """
        chosen = [Path(directory).resolve() for directory in directories] or self._directories()
        events = _journals(chosen)
        rebuilt = self._replay(events, progress or _silent)
        with self.database.writing() as session:
            for run in session.scalars(select(RunRow).where(RunRow.name.not_in(rebuilt.published))).all():
                remove_run(session, run)
            prune_submissions(session)
            session.execute(delete(VerdictRow))
            apply_events(session, events)
        return rebuilt._replace(unpublished=_unpublished(chosen, events))

    def _replay(self, events: Sequence[tuple[Path, Event]], progress: Progress) -> Rebuilt:
        """Publish what events say, replacing rows that are there."""
        done, refused = [], []
        wanted = [(path, event) for path, event in events if event.kind is EventKind.PUBLISHED]
        for number, (path, event) in enumerate(wanted):
            progress(number, len(wanted), event.run)
            try:
                if end_hash(path) != event.end_sha256:
                    raise DataError(f"{path} was changed after it was published: its {END} is another one.")
                examined = examine(path)
                with self.database.writing() as session:
                    replace_run(session, examined, event)
            except HgemmError as error:
                if not isinstance(error, DataError):
                    raise
                refused.append(Refusal(path, str(error)))
            else:
                done.append(examined.header.name)
        progress(len(wanted), len(wanted), "")
        return Rebuilt(tuple(done), tuple(refused), ())

    def _judge(self, kind: EventKind, submission: str, reason: str) -> tuple[str, ...]:
        if not reason.strip():
            raise DataError("a verdict needs a reason, which everybody can read; give one with --reason.")
        with self.database.writing() as session:
            row = find_submission(session, submission)
            event = Event(
                kind=kind,
                at_utc=utc_now(),
                submission=f"{row.name} {row.version}",
                tree_sha256=row.tree_sha256,
                code_sha256=row.code_sha256,
                reason=reason.strip(),
            )
            apply_event(session, event)
            refresh_verdicts(session)
            concerned = select(SubmissionRow).where(
                SubmissionRow.tree_sha256 == row.tree_sha256
                if kind is EventKind.WITHDRAWN
                else SubmissionRow.code_sha256 == row.code_sha256
            )
            trees = {each.id: each.tree_sha256 for each in session.scalars(concerned)}
            paths = session.scalars(select(RunRow.path).where(RunRow.submission_id.in_(trees)))
            directories = sorted({Path(path).parent for path in paths})
            session.flush()
            for directory in directories:
                append_event(directory, event)
        return tuple(sorted(trees.values()))

    def _holds(self, examined: Examined) -> bool:
        """Whether the board has the run, at that place."""
        with self.database.reading() as session:
            path = session.scalars(select(RunRow.path).where(RunRow.end_sha256 == examined.end_sha256)).one_or_none()
        return path == str(examined.path)

    def _directories(self) -> list[Path]:
        with self.database.reading() as session:
            known = {Path(path).parent for path in session.scalars(select(RunRow.path))}
        return sorted({*known, *shipped()})

    def _publish_shipped(self, progress: Progress) -> None:
        digest = hashlib.sha256(b"".join((each / JOURNAL).read_bytes() for each in shipped())).hexdigest()
        with self.database.reading() as session:
            if session.scalars(select(BoardState.shipped_sha256)).one() == digest:
                return
        events = _journals(shipped())
        self._replay(events, progress)
        with self.database.writing() as session:
            apply_events(session, events)
            session.execute(update(BoardState).values(shipped_sha256=digest))


def shipped() -> list[Path]:
    """The directory of runs that come with hgemm-arena, if it holds any."""
    directory = Path(str(resources.files("leaderboard"))) / "data"
    return [directory] if (directory / JOURNAL).is_file() else []


def permalink(run: str) -> str:
    """Address of a run's page in the app."""
    return f"{os.environ.get('HGEMM_BOARD_URL', DEFAULT_URL).rstrip('/')}/submission?run={quote(run)}"


def _journals(directories: Sequence[Path]) -> list[tuple[Path, Event]]:
    """Events of all journals with the run directory that each would concern, every event once."""
    found: dict[str, tuple[Path, Event]] = {}
    for directory in directories:
        if not directory.is_dir():
            raise DataError(f"{directory} is not a directory; give directories that hold runs.")
        for event in read_events(directory):
            key = event.end_sha256 if event.kind is EventKind.PUBLISHED else event.canonical_json()
            found.setdefault(str(key), (directory / event.run, event))
    return list(found.values())


def _unpublished(directories: Sequence[Path], events: Iterable[tuple[Path, Event]]) -> tuple[Path, ...]:
    published = {path for path, event in events if event.kind is EventKind.PUBLISHED}
    finished = [end.parent for directory in directories for end in sorted(directory.glob(f"*/{END}"))]
    return tuple(path for path in finished if (path / HEADER).is_file() and path not in published)


def _silent(done: int, total: int, what: str) -> None:
    """Progress that nobody watches."""
