"""Unmeasured: who could be on a list and is not, since no run of theirs has its measure."""

from __future__ import annotations

from sqlalchemy import and_, case, func, select

from leaderboard.models import ALL_REGIMES, RunRow, ScoreRow, SubmissionRow
from leaderboard.queries import KEY_COLUMNS
from leaderboard.ranking import RankingKey
from leaderboard.store import Board


def unmeasured(board: Board, key: RankingKey) -> tuple[str, ...]:
    """Names of submissions on lists that differ from this one in the measure alone. Those with a verdict are left out."""
    same = [column == str(getattr(key, field)) for field, column in KEY_COLUMNS.items() if field not in ("mode", "l2_state")]
    here = and_(ScoreRow.mode == key.mode.value, ScoreRow.l2_state == key.l2_state.value)
    query = (
        select(SubmissionRow.name)
        .join(RunRow, RunRow.submission_id == SubmissionRow.id)
        .join(ScoreRow, ScoreRow.run_id == RunRow.id)
        .where(*same, ScoreRow.regime == ALL_REGIMES, SubmissionRow.verdict.is_(None))
        .group_by(SubmissionRow.name)
        .having(func.max(case((here, 1), else_=0)) == 0)
    )
    with board.database.reading() as session:
        return tuple(sorted(session.scalars(query)))
