"""Journal: `board.jsonl` beside run directories, with what they cannot say themselves.

    runs/
        board.jsonl            one Event per line: what was published, withdrawn, found cheating, reinstated
        <run>/ <run>/ …

Appended and never changed, so that a board is rebuilt with its verdicts from the directories alone.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from pydantic import model_validator

from harness.model import Document, Hash, InfraError
from leaderboard.ranking import Origin

JOURNAL = "board.jsonl"


class EventKind(StrEnum):
    """What happened."""

    PUBLISHED = "published"
    """A run was put on the board."""
    WITHDRAWN = "withdrawn"
    """A submission's tree was taken off the lists."""
    CHEATING = "cheating"
    """Code was found cheating, under whatever name."""
    REINSTATED = "reinstated"
    """Verdicts on a submission's tree and code were taken back."""


class Event(Document):
    """One line of the journal."""

    kind: EventKind
    """Which of these it is."""
    at_utc: str
    """When, ISO 8601."""
    run: str = ""
    """Published: name of the run's directory."""
    end_sha256: Hash | None = None
    """Published: hash of its `end.json`."""
    origin: Origin = Origin.OPERATOR
    """Published: who measured it."""
    source: str = ""
    """Published: where a reported run comes from."""
    submission: str = ""
    """Of a verdict: name and version, for people."""
    tree_sha256: Hash | None = None
    """Of a verdict: the submission's tree."""
    code_sha256: Hash | None = None
    """Of a verdict: its code."""
    reason: str = ""
    """Of a verdict: why."""

    @model_validator(mode="after")
    def _kind_decides_fields(self) -> Event:
        if self.kind is EventKind.PUBLISHED:
            if not self.run or self.end_sha256 is None:
                raise ValueError("published names the run and the hash of its end.json")
        elif self.tree_sha256 is None or self.code_sha256 is None or not self.reason:
            raise ValueError(f"{self.kind} names tree, code and reason")
        return self


def read_events(directory: Path) -> list[Event]:
    """The journal of a directory, oldest first; a torn last line counts as not written.

    Raises:
        DataError: a line is not valid.
    """
    path = directory / JOURNAL
    if not path.is_file():
        return []
    lines = path.read_bytes().split(b"\n")
    return [Event.parse(line, f"{path}, line {number}") for number, line in enumerate(lines[:-1], start=1)]


def append_event(directory: Path, event: Event) -> None:
    """Append one event, whole or not at all, whoever else appends; what a kill left of a line is cut.

    Raises:
        InfraError: the directory cannot be written.
    """
    path = directory / JOURNAL
    try:
        with path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            size = file.read().rfind(b"\n") + 1
            file.truncate(size)
            try:
                file.write(event.model_dump_json().encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                os.truncate(path, size)
                raise
    except OSError as error:
        raise InfraError(
            f"{path} cannot be written ({error.strerror}), so nothing was changed; mend that and try again."
        ) from error


def publication(events: Iterable[Event], end_sha256: str) -> Event | None:
    """The first event that published a run."""
    return next((e for e in events if e.kind is EventKind.PUBLISHED and e.end_sha256 == end_sha256), None)
