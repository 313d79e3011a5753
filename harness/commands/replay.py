"""`hgemm replay`: measure one shape of a run again, from its stored seed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from harness.commands.devices import device_of
from harness.commands.runs import ThisRun, find_run
from harness.model import InfraError

if TYPE_CHECKING:
    from harness.replay import Replay


def replay(
    run: ThisRun,
    shape: Annotated[str, typer.Option(help="The shape, MxNxK.", show_default=False)],
    device: Annotated[str, typer.Option(help="auto, cpu, cuda:0, …")] = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")] = False,
) -> None:
    """Measure one shape of a run again, from the seed that its record holds, and say whether it comes out the same.

    The same inputs, orders and arrivals are drawn; times differ as far as their intervals allow.

    Exit codes: 0 it reproduces, 1 it does not, 3 the machine failed.
    """
    from harness.evaluate import Evaluator
    from harness.problem import Problem
    from harness.profiles import load_profile
    from harness.replay import replay as replay_record
    from harness.run import Run

    recorded = Run.read(find_run(run))
    problem = Problem.parse(shape, recorded.header.submission.track)
    choice = device_of(load_profile(recorded.header.device.profile), device)
    if choice is None:
        raise InfraError(f"{recorded.header.name} was measured on {recorded.header.device.name}; replay it on one of these.")
    with Evaluator(choice.name, recorded.header.protocol) as evaluator:
        result = replay_record(recorded, problem, evaluator)
    if json:
        typer.echo(result.model_dump_json(indent=2))
    else:
        _print(result)
    sys.exit(0 if result.reproduces else 1)


def _print(result: Replay) -> None:
    from harness.commands.tables import plain_table, stdout

    out = stdout()
    out.print(f"{result.run}, {result.problem}: {result.then.status} then, {result.now.status} now", highlight=False)
    if result.now.detail:
        out.print(result.now.detail, highlight=False)
    table = plain_table("measure", "baseline", "then", "now", "")
    for ratio in result.ratios:
        then, now = (f"{each.value:.3f} ({each.low:.3f}-{each.high:.3f})" for each in (ratio.then, ratio.now))
        table.add_row(str(ratio.measure), ratio.baseline, then, now, "" if ratio.reproduces else "differs")
    if result.ratios:
        out.print(table)
    out.print("it reproduces" if result.reproduces else "it does not reproduce", highlight=False)
