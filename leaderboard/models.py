"""Tables of the board. The truth is in run directories; these rows follow from them and are rebuilt at any time.

    submissions ─┬─ submission_files      a tree of files, by hash
                 └─ runs ─┬─ scores       per mode, L2 state, baseline and regime: what ranking reads
                          └─ records ─── timings     per shape; per measure and contender
    verdicts       withdrawals and cheating, by hash, so that they also meet what is published later
    board_state    one row: a counter that every change raises

Documents (header, segments one per line, verification) are the JSON of their models. Integers of nanoseconds per window stay in
the run directories; here times per launch are doubles, for reading.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    CheckConstraint,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

ALL_REGIMES = "all"
"""Regime of a score over the whole set."""


class Base(DeclarativeBase):
    """All tables."""


class BoardState(Base):
    """The one row that says which content the board has."""

    __tablename__ = "board_state"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    revision: Mapped[int]
    shipped_sha256: Mapped[str] = mapped_column(String(64))


class SubmissionRow(Base):
    """One tree of files; its runs refer to it."""

    __tablename__ = "submissions"
    id: Mapped[int] = mapped_column(primary_key=True)
    tree_sha256: Mapped[str] = mapped_column(String(64), unique=True)
    code_sha256: Mapped[str] = mapped_column(String(64), index=True)
    name: Mapped[str] = mapped_column(String(64), index=True)
    version: Mapped[str] = mapped_column(String(32))
    author: Mapped[str] = mapped_column(String(200))
    authors: Mapped[list[str]] = mapped_column(JSON)
    license: Mapped[str] = mapped_column(String(100))
    description: Mapped[str] = mapped_column(Text)
    track: Mapped[str] = mapped_column(String(8))
    kind: Mapped[str] = mapped_column(String(16))
    targets: Mapped[list[str]] = mapped_column(JSON)
    badges: Mapped[list[str]] = mapped_column(JSON)
    verdict: Mapped[str | None] = mapped_column(String(16))
    verdict_reason: Mapped[str | None] = mapped_column(Text)
    verdict_utc: Mapped[str | None] = mapped_column(String(32))


class FileRow(Base):
    """One file of a submission."""

    __tablename__ = "submission_files"
    submission_id: Mapped[int] = mapped_column(ForeignKey("submissions.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(String(500), primary_key=True)
    size_bytes: Mapped[int]
    content: Mapped[bytes] = mapped_column(LargeBinary)


class RunRow(Base):
    """One published run. Its identity is the hash of its `end.json`, which holds the hashes of all its files."""

    __tablename__ = "runs"
    id: Mapped[int] = mapped_column(primary_key=True)
    end_sha256: Mapped[str] = mapped_column(String(64), unique=True)
    name: Mapped[str] = mapped_column(String(200), unique=True)
    submission_id: Mapped[int] = mapped_column(ForeignKey("submissions.id"), index=True)
    path: Mapped[str] = mapped_column(Text)
    origin: Mapped[str] = mapped_column(String(16))
    source: Mapped[str] = mapped_column(Text)
    created_utc: Mapped[str] = mapped_column(String(32))
    ended_utc: Mapped[str] = mapped_column(String(32))
    published_utc: Mapped[str] = mapped_column(String(32))
    device: Mapped[str] = mapped_column(String(64))
    device_name: Mapped[str] = mapped_column(Text)
    protocol: Mapped[str] = mapped_column(String(64))
    cublas: Mapped[str] = mapped_column(String(32))
    driver: Mapped[str] = mapped_column(String(32))
    shape_set: Mapped[str] = mapped_column(String(64))
    shapes_sha256: Mapped[str] = mapped_column(String(64))
    shapes: Mapped[int]
    verified: Mapped[int]
    rejected: Mapped[int]
    unsupported: Mapped[int]
    not_attempted: Mapped[int]
    rankable: Mapped[bool]
    because: Mapped[str] = mapped_column(Text)
    header: Mapped[str] = mapped_column(Text)
    segments: Mapped[str] = mapped_column(Text)


class ScoreRow(Base):
    """A run against one baseline over its set or one regime of it. Figures are null for a run that is not complete."""

    __tablename__ = "scores"
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    mode: Mapped[str] = mapped_column(String(16), primary_key=True)
    l2_state: Mapped[str] = mapped_column(String(16), primary_key=True)
    baseline: Mapped[str] = mapped_column(String(64), primary_key=True)
    regime: Mapped[str] = mapped_column(String(16), primary_key=True)
    shapes: Mapped[int]
    geomean: Mapped[float | None] = mapped_column(Double)
    geomean_low: Mapped[float | None] = mapped_column(Double)
    geomean_high: Mapped[float | None] = mapped_column(Double)
    total_time: Mapped[float | None] = mapped_column(Double)
    win_rate: Mapped[float | None] = mapped_column(Double)
    arithmetic_mean: Mapped[float | None] = mapped_column(Double)


class RecordRow(Base):
    """What happened to one shape of a run, at its place in the set."""

    __tablename__ = "records"
    __table_args__ = (Index("ix_records_shape", "m", "n", "k"), {"sqlite_with_rowid": False})
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    place: Mapped[int] = mapped_column(Integer, primary_key=True)
    m: Mapped[int]
    n: Mapped[int]
    k: Mapped[int]
    regime: Mapped[str] = mapped_column(String(16))
    status: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str | None] = mapped_column(String(32))
    detail: Mapped[str] = mapped_column(Text)
    attempt: Mapped[int]
    segment: Mapped[int]
    seconds: Mapped[float] = mapped_column(Double)
    verification: Mapped[str | None] = mapped_column(Text)


class TimingRow(Base):
    """One contender in one measure of one record. The submission has no speedup; `best` marks the best baseline."""

    __tablename__ = "timings"
    __table_args__ = (
        ForeignKeyConstraint(["run_id", "place"], ["records.run_id", "records.place"], ondelete="CASCADE"),
        CheckConstraint("(contender = 'submission') = (speedup IS NULL)", name="submission_has_no_speedup"),
        {"sqlite_with_rowid": False},
    )
    run_id: Mapped[int] = mapped_column(primary_key=True)
    place: Mapped[int] = mapped_column(primary_key=True)
    mode: Mapped[str] = mapped_column(String(16), primary_key=True)
    l2_state: Mapped[str] = mapped_column(String(16), primary_key=True)
    contender: Mapped[str] = mapped_column(String(64), primary_key=True)
    launch_ns: Mapped[float] = mapped_column(Double)
    launch_min_ns: Mapped[float] = mapped_column(Double)
    launch_max_ns: Mapped[float] = mapped_column(Double)
    launches: Mapped[int]
    rounds: Mapped[int]
    layout: Mapped[str] = mapped_column(String(8))
    description: Mapped[str] = mapped_column(Text)
    sm_clock_mhz: Mapped[int | None]
    speedup: Mapped[float | None] = mapped_column(Double)
    speedup_low: Mapped[float | None] = mapped_column(Double)
    speedup_high: Mapped[float | None] = mapped_column(Double)
    best: Mapped[bool]


class VerdictRow(Base):
    """A verdict on a tree (withdrawn) or on code (cheating)."""

    __tablename__ = "verdicts"
    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    reason: Mapped[str] = mapped_column(Text)
    at_utc: Mapped[str] = mapped_column(String(32))
