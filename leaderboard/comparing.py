"""Comparing: two published runs, from the directories that the board refers to."""

from __future__ import annotations

from harness.compare import Comparison, compare, differences
from leaderboard.queries import run_details
from leaderboard.samples import opened
from leaderboard.store import Board


def forbidding_fields(board: Board, a: str, b: str) -> tuple[str, ...]:
    """What differs around two published runs so that their times do not mean the same.

    Raises:
        DataError: one is not published, or its directory is not on this machine.
    """
    found = differences(*(opened(run_details(board, run).path) for run in (a, b)))
    return tuple(each.field for each in found if each.importance == "forbids")


def compared(board: Board, a: str, b: str, force: bool) -> Comparison:
    """The comparison of two published runs.

    Raises:
        DataError: as above, or they do not compare and `force` is not given.
    """
    first, second = (opened(run_details(board, run).path) for run in (a, b))
    return compare(first, second, force)
