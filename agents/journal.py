"""Journal: everything that a search measured, one JSON document a line, appended and never changed.

{"type": "segment", ...}   a process started: device, protocol, versions
{"type": "heat", ...}      a candidate was timed briefly, unverified
{"type": "final", ...}     a candidate was verified and timed against the anchor
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import IO, Annotated, Any, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError

from agents.config import KernelConfig
from harness.model import Count, DataError, Document, InfraError, one_sentence, refuse_newer
from harness.problem import Problem
from harness.protocol import Protocol
from harness.record import Record
from harness.run import DeviceInfo, utc_now
from harness.untrusted_files import unpacked_lines


class Segment(Document):
    """A process that measures: what the lines after it were measured with."""

    type: Literal["segment"] = "segment"
    """Always `segment`."""
    started_utc: str
    """When it started."""
    harness_version: str
    """Version of this package."""
    device: DeviceInfo
    """The device."""
    protocol: Protocol
    """How finals are measured."""

    @classmethod
    def here(cls, device: DeviceInfo, protocol: Protocol) -> Self:
        """A segment that starts now."""
        return cls(started_utc=utc_now(), harness_version=version("hgemm-arena"), device=device, protocol=protocol)


class Heat(Document):
    """A candidate timed briefly with cold data; its outputs were not looked at."""

    type: Literal["heat"] = "heat"
    """Always `heat`."""
    problem: Problem
    """The problem."""
    config: KernelConfig
    """The candidate."""
    launch_ns: Annotated[float, Field(gt=0)] | None = None
    """Median nanoseconds per operation; null where it failed."""
    window_ns: tuple[Count, ...] = ()
    """Its windows."""
    launches: Count = 0
    """Operations in each window."""
    failure: str = ""
    """Why it failed."""
    fatal: bool = False
    """Whether its kernel cost the worker, and is not tried again."""


class Final(Document):
    """A candidate verified and timed against the anchor."""

    type: Literal["final"] = "final"
    """Always `final`."""
    problem: Problem
    """The problem."""
    config: KernelConfig
    """The candidate."""
    record: Record | None = None
    """What the harness says of it; null where it failed before there was a record."""
    failure: str = ""
    """Why it failed."""


Line = Annotated[Segment | Heat | Final, Field(discriminator="type")]
_LINES: TypeAdapter[Segment | Heat | Final] = TypeAdapter(Line)


class Journal:
    """A file of lines that is read once and then appended to. A context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[Segment | Heat | Final] = list(read_journal(path)) if path.exists() else []
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        """Open it for appending; a torn last line is cut off.

        Raises:
            InfraError: it cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                data = self.path.read_bytes()
                with self.path.open("r+b") as file:
                    file.truncate(data.rfind(b"\n") + 1)
            self._file = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise InfraError(f"{self.path} cannot be written: {error.strerror}.") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close it."""
        if self._file is not None:
            self._file.close()

    def append(self, line: Segment | Heat | Final) -> None:
        """Write a line at once."""
        assert self._file is not None
        self._file.write(line.model_dump_json(exclude_none=True) + "\n")
        self._file.flush()
        self.lines.append(line)


def read_journal(path: Path) -> Iterator[Segment | Heat | Final]:
    """The lines of a journal, which may be compressed (`.gz`); a torn last line is left out.

    Raises:
        DataError: a line is not valid, or was written by a newer version.
    """
    lines = unpacked_lines(path) if path.suffix == ".gz" else path.read_bytes().splitlines(keepends=True)
    for number, text in enumerate(lines, start=1):
        if not text.endswith(b"\n"):
            return
        source = f"{path}:{number}"
        try:
            document: dict[str, Any] = json.loads(text)
            refuse_newer(document, source)
            yield _LINES.validate_json(text)
        except ValidationError as error:
            raise DataError(f"{source} is not valid: {one_sentence(error)}.") from error
        except (ValueError, AttributeError) as error:
            raise DataError(f"{source} is not one JSON object.") from error
