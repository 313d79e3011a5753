"""`hgemm show`: the result of a run, or one record of it."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.commands.runs import ThisRun, find_run
from harness.model import DataError


def show(
    run: ThisRun,
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
