"""Effort: how much a search measures. The command line's defaults are these."""

from __future__ import annotations

from typing import NamedTuple


class Effort(NamedTuple):
    """How much is measured."""

    candidates: int = 32
    """Configurations of a problem that are timed briefly, each of which divides it otherwise."""
    variants: int = 16
    """Then so many that divide it as the fastest of them do."""
    leaders: int = 3
    """Which are so many."""
    transfers: int = 8
    """Then so many of those that are the fastest for shapes like it."""
    batch: int = 8
    """Configurations after which the next problem has its turn."""
    finalists: int = 3
    """Configurations of a problem that are verified and timed against the anchor."""
    margin: float = 1.10
    """A configuration slower than the fastest by this factor is no finalist."""
    heats_share: float = 0.6
    """Share of the budget after which finals begin."""
