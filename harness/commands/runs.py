"""Runs as people name them on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.model import DataError

RUNS = Path("runs")
SHIPPED = Path(__file__).resolve().parents[2] / "leaderboard" / "data"

ThisRun = Annotated[
    str, typer.Argument(help="A run's directory, or its name in ./runs or leaderboard/data.", show_default=False)
]
"""A run to read; `find_run` finds it."""


def find_run(text: str) -> Path:
    """The directory of a run, by path or by name.

    Raises:
        DataError: there is none; names those that there are.
    """
    if Path(text).is_dir():
        return Path(text)
    for folder in (RUNS, SHIPPED):
        if (folder / text).is_dir():
            return folder / text
    there = [path.parent.name for folder in (RUNS, SHIPPED) for path in folder.glob("*/run.json")]
    newest = sorted(there, key=lambda name: name.split("-")[-2:-1], reverse=True)[:3]
    known = f"the newest are {', '.join(newest)}" if newest else "there is none yet; `hgemm run` makes one"
    raise DataError(f"{text!r} is neither a run's directory nor its name in ./{RUNS} or {SHIPPED}; {known}.")
