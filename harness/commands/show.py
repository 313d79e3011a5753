"""`hgemm show`: the result of a run, or one record of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.model import DataError

RUNS = Path("runs")
SHIPPED = Path(__file__).resolve().parents[2] / "leaderboard" / "data"


def show(
    run: Annotated[
        str, typer.Argument(help="A run's directory, or its name in ./runs or leaderboard/data.", show_default=False)
    ],
    shape: Annotated[str | None, typer.Option(help="Show the record of this shape, MxNxK.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")] = False,
) -> None:
    """Show the result of a run as `hgemm run` printed it, or everything about one shape."""
    from harness.commands.console import print_report
    from harness.problem import Problem
    from harness.profiles import load_profile
    from harness.run import Run

    found = Run.read(find_run(run))
    if shape is None:
        print_report(found, as_json=json)
        return
    problem = Problem.parse(shape, found.header.submission.track)
    record = found.latest().get(problem)
    if record is None:
        state = "not measured yet" if problem in found.header.problems else f"not among its shapes ({found.header.shape_set})"
        raise DataError(f"{problem} is {state} in {found.path}.")
    if json:
        typer.echo(record.model_dump_json(indent=2))
        return
    from harness.commands.tables import print_record

    print_record(record, load_profile(found.header.device.profile))


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
