"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make everything."""
    _board()
    _submissions()
    _runs()
    _records()
    _timings()
    op.execute("INSERT INTO board_state (id, revision, shipped_sha256) VALUES (1, 0, '')")


def _board() -> None:
    op.create_table(
        "board_state",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("shipped_sha256", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "verdicts",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at_utc", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("sha256", "kind"),
    )


def _submissions() -> None:
    op.create_table(
        "submissions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("tree_sha256", sa.String(length=64), nullable=False),
        sa.Column("code_sha256", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("version", sa.String(length=32), nullable=False),
        sa.Column("author", sa.String(length=200), nullable=False),
        sa.Column("authors", sa.JSON(), nullable=False),
        sa.Column("license", sa.String(length=100), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("track", sa.String(length=8), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("targets", sa.JSON(), nullable=False),
        sa.Column("badges", sa.JSON(), nullable=False),
        sa.Column("verdict", sa.String(length=16), nullable=True),
        sa.Column("verdict_reason", sa.Text(), nullable=True),
        sa.Column("verdict_utc", sa.String(length=32), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("tree_sha256"),
    )
    op.create_index("ix_submissions_code_sha256", "submissions", ["code_sha256"], unique=False)
    op.create_index("ix_submissions_name", "submissions", ["name"], unique=False)
    op.create_table(
        "submission_files",
        sa.Column("submission_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=500), nullable=False),
        sa.Column("size_bytes", sa.Integer(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["submission_id"], ["submissions.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("submission_id", "name"),
    )


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("end_sha256", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("submission_id", sa.Integer(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("origin", sa.String(length=16), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("created_utc", sa.String(length=32), nullable=False),
        sa.Column("ended_utc", sa.String(length=32), nullable=False),
        sa.Column("published_utc", sa.String(length=32), nullable=False),
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("device_name", sa.Text(), nullable=False),
        sa.Column("protocol", sa.String(length=64), nullable=False),
        sa.Column("cublas", sa.String(length=32), nullable=False),
        sa.Column("driver", sa.String(length=32), nullable=False),
        sa.Column("shape_set", sa.String(length=64), nullable=False),
        sa.Column("shapes_sha256", sa.String(length=64), nullable=False),
        sa.Column("shapes", sa.Integer(), nullable=False),
        sa.Column("verified", sa.Integer(), nullable=False),
        sa.Column("rejected", sa.Integer(), nullable=False),
        sa.Column("unsupported", sa.Integer(), nullable=False),
        sa.Column("not_attempted", sa.Integer(), nullable=False),
        sa.Column("rankable", sa.Boolean(), nullable=False),
        sa.Column("because", sa.Text(), nullable=False),
        sa.Column("header", sa.Text(), nullable=False),
        sa.Column("segments", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["submission_id"],
            ["submissions.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("end_sha256"),
        sa.UniqueConstraint("name"),
    )
    op.create_index("ix_runs_submission_id", "runs", ["submission_id"], unique=False)
    op.create_table(
        "scores",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("mode", sa.String(length=16), nullable=False),
        sa.Column("l2_state", sa.String(length=16), nullable=False),
        sa.Column("baseline", sa.String(length=64), nullable=False),
        sa.Column("regime", sa.String(length=16), nullable=False),
        sa.Column("shapes", sa.Integer(), nullable=False),
        sa.Column("geomean", sa.Double(), nullable=True),
        sa.Column("geomean_low", sa.Double(), nullable=True),
        sa.Column("geomean_high", sa.Double(), nullable=True),
        sa.Column("total_time", sa.Double(), nullable=True),
        sa.Column("win_rate", sa.Double(), nullable=True),
        sa.Column("arithmetic_mean", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "mode", "l2_state", "baseline", "regime"),
    )


def _records() -> None:
    op.create_table(
        "records",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("m", sa.Integer(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("k", sa.Integer(), nullable=False),
        sa.Column("regime", sa.String(length=16), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=32), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("segment", sa.Integer(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("verification", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "place"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_records_shape", "records", ["m", "n", "k"], unique=False)


def _timings() -> None:
    op.create_table(
        "timings",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("mode", sa.String(length=16), nullable=False),
        sa.Column("l2_state", sa.String(length=16), nullable=False),
        sa.Column("contender", sa.String(length=64), nullable=False),
        sa.Column("launch_ns", sa.Double(), nullable=False),
        sa.Column("launch_min_ns", sa.Double(), nullable=False),
        sa.Column("launch_max_ns", sa.Double(), nullable=False),
        sa.Column("launches", sa.Integer(), nullable=False),
        sa.Column("rounds", sa.Integer(), nullable=False),
        sa.Column("layout", sa.String(length=8), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("sm_clock_mhz", sa.Integer(), nullable=True),
        sa.Column("speedup", sa.Double(), nullable=True),
        sa.Column("speedup_low", sa.Double(), nullable=True),
        sa.Column("speedup_high", sa.Double(), nullable=True),
        sa.Column("best", sa.Boolean(), nullable=False),
        sa.CheckConstraint("(contender = 'submission') = (speedup IS NULL)", name="submission_has_no_speedup"),
        sa.ForeignKeyConstraint(["run_id", "place"], ["records.run_id", "records.place"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "place", "mode", "l2_state", "contender"),
        sqlite_with_rowid=False,
    )
