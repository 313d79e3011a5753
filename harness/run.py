"""Run: the directory that holds what was measured.

    <submission>-<device>-<utc>-<hash8>/
        run.json          Header, written once at start
        segments.jsonl    one Segment per worker start
        records.jsonl     append-only Records: the truth
        samples.jsonl.gz  raw integer nanoseconds, one gzip member per record, flushed before the record
        end.json          End: counts, file hashes, revealed secrets
        submission/       snapshot of the submission

Killing the process anywhere loses at most the shape in flight: what lies behind the last whole record is cut on resume.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Self, TypeVar

from pydantic import Field

from harness.model import Count, DataError, Document, Hash, InfraError, Line, Model, Name, Positive, RunName, Timestamp
from harness.problem import Problem
from harness.protocol import Protocol
from harness.record import Measure, Record, Status
from harness.submission import Submission, SubmissionReference
from harness.untrusted_files import refuse_special_files, unpacked_lines

HEADER, SEGMENTS, RECORDS, SAMPLES, END = "run.json", "segments.jsonl", "records.jsonl", "samples.jsonl.gz", "end.json"
FILES = (HEADER, SEGMENTS, RECORDS, SAMPLES, END)
SNAPSHOT = "submission"
PARTIAL = ".partial"
"""Suffix of a file that is being written."""
_NO_PLACE = (errno.EROFS, errno.EACCES, errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)

_Line = TypeVar("_Line", bound=Document)


class DeviceInfo(Model):
    """The device that a worker opened."""

    profile: Name
    """Profile that it matches."""
    name: Line
    """Name by its driver."""
    uuid: Line
    """Identifier of this very card (for the cpu, of this host)."""
    driver: Line
    """Driver version (for the cpu, the kernel's)."""
    libraries: dict[Line, Line]
    """Versions of every library that takes part in measuring."""
    timer: Line
    """The clock that times windows."""
    conditions: dict[Line, Line] = Field(default_factory=dict)
    """Settings and readings at worker start: clock and power limits, ECC, MIG, persistence, temperature."""


class Header(Document):
    """`run.json`: what was to be done, and where."""

    name: RunName
    """Name of the run's directory."""
    created_utc: Timestamp
    """Start, ISO 8601."""
    harness_version: Line
    """Version of hgemm-arena."""
    command: tuple[Line, ...]
    """Command line that started it."""
    submission: SubmissionReference
    """What was measured."""
    device: DeviceInfo
    """Device of the first segment; a resumed run needs the same model, driver and libraries."""
    protocol: Protocol
    """How it was measured."""
    shape_set: Line
    """Name of the set of shapes, or `custom`."""
    shapes_sha256: Hash
    """Hash of the set."""
    shapes: tuple[Line, ...]
    """All shapes, `MxNxK`."""

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The shapes as problems of the submission's track."""
        return tuple(Problem.parse(shape, self.submission.track) for shape in self.shapes)


class Segment(Document):
    """One worker start. A shape is measured wholly inside one segment."""

    index: Count
    """Position in the file."""
    started_utc: Timestamp
    """Start, ISO 8601."""
    device: DeviceInfo
    """The device as this worker found it."""
    seed_commitment: Hash
    """SHA-256 of the secret that all seeds of this segment derive from; `end.json` reveals it."""
    rankable: bool
    """Whether results of this segment can be ranked."""
    not_rankable_because: Line = ""
    """Why not."""


class SampleLine(Document):
    """The raw windows of one contender in one measure of one record."""

    problem: Problem
    """The problem."""
    attempt: Count
    """The record's attempt."""
    measure: Measure
    """What was timed."""
    contender: Name
    """Who."""
    launches_per_window: Positive
    """Operations per window."""
    window_ns: tuple[Positive, ...]
    """Length of each scoring window, in order of the rounds."""
    latency_ns: tuple[Positive, ...] = ()
    """Server mode: of every request, the time from its scheduled arrival to completion."""
    selection_launches: Positive = 1
    """Operations per selection window."""
    selection_window_ns: tuple[Positive, ...] = ()
    """Windows of the selection rounds, which share no sample with the scoring rounds."""


class End(Document):
    """`end.json`: written when every shape has a final record."""

    ended_utc: Timestamp
    """End, ISO 8601."""
    counts: dict[str, int]
    """Shapes by status."""
    files_sha256: dict[str, Hash]
    """Hash of every other file of the run."""
    secrets: dict[str, str]
    """Per segment the secret that was committed to, in hex; segments whose process was killed are absent."""


class Run:
    """A run directory, open for reading, or for appending while it holds the directory's lock."""

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.header = header
        self._secrets: dict[str, str] = {}
        self._lock: IO[str] | None = None
        self._load()

    def _load(self) -> None:
        self.segments = list(_read_lines(self.path / SEGMENTS, Segment))
        self.records = list(_read_lines(self.path / RECORDS, Record))
        _check_keys(self.records, self.path)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Open an existing run for reading.

        Raises:
            DataError: no run there, or a file of it is not valid.
        """
        if not (path / HEADER).is_file():
            raise DataError(f"{path} holds no {HEADER}, so it is not a run; `hgemm run` makes one below ./runs/.")
        refuse_special_files(path, FILES)
        return cls(path, Header.parse((path / HEADER).read_bytes(), str(path / HEADER)))

    @classmethod
    def create(cls, parent: Path, submission: Submission, header: Header) -> Self:
        """Make the directory, the header and the snapshot, and lock it.

        Raises:
            InfraError: the directory cannot be written.
        """
        path = parent / header.name
        with writing(path):
            parent.mkdir(parents=True, exist_ok=True)
            path.mkdir()
            try:
                submission.write_to(path / SNAPSHOT)
                _write_atomically(path / HEADER, header.model_dump_json(indent=2) + "\n")
            except BaseException:
                shutil.rmtree(path, ignore_errors=True)  # nothing that could be resumed
                raise
        run = cls(path, header)
        run.lock()
        return run

    @classmethod
    def resume(cls, path: Path) -> Self:
        """Open a run to go on with: lock it and cut what a killed process left behind its last whole record.

        Raises:
            DataError: no run, already complete, or in use.
        """
        run = cls.read(path)
        run.lock()
        try:
            if (path / END).exists():
                raise DataError(f"{path} is complete; start a new run instead of resuming it.")
            with writing(path):
                # Read again: until the lock was taken, another process may have written.
                for name in (SEGMENTS, RECORDS):
                    _cut_torn_line(path / name)
                run._load()
                _cut_samples(path / SAMPLES, max((record.samples_end_bytes for record in run.records), default=0))
        except BaseException:
            run.close()
            raise
        return run

    def lock(self) -> None:
        """Take the directory's lock; the kernel drops it when the process ends, however it ends.

        Raises:
            DataError: another process holds it.
        """
        self._lock = (self.path / HEADER).open(encoding="utf-8")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise DataError(f"{self.path} is in use by another process; wait for it to end.") from error

    def close(self) -> None:
        """Drop the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def begin_segment(self, device: DeviceInfo, secret: bytes, not_rankable_because: str) -> Segment:
        """Append a segment and commit to its secret."""
        segment = Segment(
            index=len(self.segments),
            started_utc=utc_now(),
            device=device,
            seed_commitment=hashlib.sha256(secret).hexdigest(),
            rankable=not not_rankable_because,
            not_rankable_because=not_rankable_because,
        )
        self._append(SEGMENTS, segment)
        self.segments.append(segment)
        self._secrets[str(segment.index)] = secret.hex()
        return segment

    def append(self, record: Record, samples: Iterable[SampleLine]) -> Record:
        """Append a record after its samples; returns it with the samples' place filled in.

        Raises:
            InfraError: the disk is full or not writable; then nothing of the record is kept.
        """
        _check_keys([*self.records, record], self.path)
        lines = "".join(line.model_dump_json() + "\n" for line in samples)
        path = self.path / SAMPLES
        with writing(self.path):
            before = path.stat().st_size if path.exists() else 0
            if lines:
                _append(path, gzip.compress(lines.encode(), mtime=0))
            end = path.stat().st_size if path.exists() else 0
            record = record.model_copy(update={"samples_end_bytes": end})
            try:
                self._append(RECORDS, record)
            except InfraError:
                if lines:
                    os.truncate(path, before)
                raise
        self.records.append(record)
        return record

    def samples(self) -> Iterator[SampleLine]:
        """All raw samples, in the order of the records."""
        path = self.path / SAMPLES
        for number, line in enumerate(unpacked_lines(path) if path.exists() else (), start=1):
            yield SampleLine.parse(line, f"{path}, line {number}")

    def latest(self) -> dict[Problem, Record]:
        """The newest attempt of every problem that has a record."""
        return {record.problem: record for record in sorted(self.records, key=lambda record: record.attempt)}

    def remaining(self) -> list[Problem]:
        """Problems without a final record: never measured, or ended by an infrastructure error."""
        latest = self.latest()
        return [
            problem for problem in self.header.problems if problem not in latest or latest[problem].status is Status.INFRA_ERROR
        ]

    def finish(self) -> End:
        """Write `end.json`: the run is complete and frozen."""
        counts = {status.value: 0 for status in Status}
        for record in self.latest().values():
            counts[record.status.value] += 1
        with writing(self.path):
            files = sorted(path for path in self.path.rglob("*") if path.is_file() and path.name not in (END, END + PARTIAL))
            hashes = {path.relative_to(self.path).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
            end = End(ended_utc=utc_now(), counts=counts, files_sha256=hashes, secrets=self._secrets)
            _write_atomically(self.path / END, end.model_dump_json(indent=2) + "\n")
        return end

    @property
    def complete(self) -> bool:
        """Whether `end.json` is there."""
        return (self.path / END).exists()

    def _append(self, name: str, line: Document) -> None:
        with writing(self.path):
            _append(self.path / name, line.model_dump_json().encode() + b"\n")


def run_name(submission: str, device: str, sha256: str) -> str:
    """Name of a new run's directory: submission, profile, UTC and the head of the tree's hash."""
    return f"{submission}-{device}-{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}-{sha256[:8]}"


def utc_now() -> str:
    """Now, ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn failures to write into one sentence.

    Raises:
        InfraError: the disk is full, read-only or not permitted.
    """
    try:
        yield
    except OSError as error:
        begun = (path / HEADER).is_file()
        again = "resume the run" if begun else "start again"
        mend = {
            **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), f"free some space and {again}"),
            **dict.fromkeys(_NO_PLACE, f"make it writable and {again}" if begun else "choose a writable place with --output"),
            errno.EEXIST: "wait a second and start again" if path.is_dir() else "choose another place with --output",
        }.get(error.errno or 0, f"see to that and {again}")
        raise InfraError(f"{path} cannot be written ({error.strerror}); {mend}.") from error


def _read_lines(path: Path, kind: type[_Line]) -> Iterator[_Line]:
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    # What follows the last newline was torn off by a kill; everything before it must be valid.
    for number, line in enumerate(lines[:-1], start=1):
        yield kind.parse(line, f"{path}, line {number}")


def _cut_torn_line(path: Path) -> None:
    if path.exists():
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)


def _check_keys(records: list[Record], path: Path) -> None:
    final: dict[Problem, Record] = {}
    for record in records:
        before = final.get(record.problem)
        if before is not None and (before.status is not Status.INFRA_ERROR or record.attempt <= before.attempt):
            raise DataError(f"{path / RECORDS} holds {record.problem} twice; only an infra_error may get another attempt.")
        final[record.problem] = record


def _cut_samples(path: Path, end: int) -> None:
    size = path.stat().st_size if path.exists() else 0
    if size < end:
        raise DataError(f"{path} has {size} bytes where the records need {end}, so samples were lost; start a new run.")
    if size > end:
        os.truncate(path, end)


def _append(path: Path, data: bytes) -> None:
    """Append all of it, on the disk, or nothing."""
    with path.open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            left = memoryview(data)
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        except BaseException:
            file.truncate(size)
            raise


def _write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + PARTIAL)
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
