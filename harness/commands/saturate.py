"""`hgemm saturate`: the highest rate of arrivals that meets a bound on p99."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from harness.saturation import Saturation


def saturate(
    submission: Annotated[Path, typer.Argument(help="Directory of the submission.", show_default=False)],
    shape: Annotated[str, typer.Option(help="The shape, MxNxK.", show_default=False)],
    p99_us: Annotated[
        float | None, typer.Option("--p99-us", help="Bound on p99 in µs; default 10 autotuned times.", min=0.1, max=1e9)
    ] = None,
    requests: Annotated[int, typer.Option(help="Requests of a trace; p99 needs 662.", min=662)] = 1_000,
    device: Annotated[str, typer.Option(help="auto, cuda:0, …")] = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")] = False,
) -> None:
    """Find the highest rate of random arrivals at which the submission, and each baseline, keeps its p99 within a bound.

    One contender answers at a time. Latency counts from the scheduled arrival, so it holds the time in line.

    Exit codes: 0 done, 1 the submission is wrong, 3 the machine failed or has no server mode.
    """
    from harness.commands.devices import device_for
    from harness.evaluate import Evaluator
    from harness.problem import Problem
    from harness.protocol import parse_modes, protocol_for
    from harness.record import SUBMISSION
    from harness.saturation import Saturation
    from harness.saturation import saturate as find
    from harness.submission import Submission

    tree = Submission.read(submission)
    choice = device_for(tree.manifest, device)
    protocol = protocol_for(choice.profile, measures=parse_modes("server"))
    problem = Problem.parse(shape, tree.manifest.track)
    bound_ns = None if p99_us is None else round(p99_us * 1000)
    with Evaluator(choice.name, protocol) as evaluator:
        measurement = evaluator.measurement(evaluator.prepare(tree, [problem]), problem)
        found = find(measurement, (SUBMISSION, *protocol.baselines), bound_ns, requests, _tell)
        result = Saturation(
            submission=tree.manifest.name,
            problem=problem,
            device=evaluator.info.name,
            bound_ns=found.bound_ns,
            curves=found.curves,
        )
    if json:
        typer.echo(result.model_dump_json(indent=2))
    else:
        _print(result)


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")


def _print(result: Saturation) -> None:
    from harness.commands.tables import plain_table, stdout

    out = stdout()
    out.print(f"{result.submission} at {result.problem} on {result.device}: p99 within {result.bound_ns / 1000:.1f} µs")
    table = plain_table("contender", "highest rate/s", "p50 µs", "p90 µs", "p99 µs")
    for column in table.columns[1:]:
        column.justify = "right"
    for curve in result.curves:
        met = [point for point in curve.points if point.meets_bound]
        if not met:
            table.add_row(curve.contender, "none")
            continue
        best = met[-1]
        latencies = (f"{value / 1000:.1f}" for value in (best.p50_ns, best.p90_ns, best.p99_ns))
        table.add_row(curve.contender, f"{curve.highest_rate_per_s:,.0f}", *latencies)
    out.print(table)
