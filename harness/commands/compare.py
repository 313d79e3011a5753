"""`hgemm compare`: two runs, what differs around them and per shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from harness.commands.runs import ThisRun, find_run

if TYPE_CHECKING:
    from rich.console import Console

    from harness.compare import Comparison, MeasureComparison, ShapeComparison

SHOWN = 10
"""Shapes listed per measure, the largest significant changes first."""


def compare(
    a: ThisRun,
    b: ThisRun,
    force: Annotated[bool, typer.Option(help="Compare runs of different protocols or devices all the same.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document with every shape.")] = False,
) -> None:
    """Compare two runs shape by shape, with a test on raw samples that is corrected for the number of shapes.

    A ratio is A's time over B's, so above 1 the second run is faster.
    """
    from harness.compare import compare as compare_runs
    from harness.run import Run

    found = compare_runs(Run.read(find_run(a)), Run.read(find_run(b)), force)
    if json:
        typer.echo(found.model_dump_json(indent=2))
        return
    _print(found)


def _print(found: Comparison) -> None:
    from harness.commands.tables import plain_table, plural, say, stdout

    console = stdout()
    for letter, side in (("A", found.a), ("B", found.b)):
        say(console, f"{letter}  {side.submission} {side.version}  {side.run}")
    if found.differences:
        table = plain_table("differs", "A", "B", "which")
        for each in found.differences:
            table.add_row(each.field, each.a or "-", each.b or "-", each.importance.value)
        console.print(table)
    else:
        say(console, "nothing around the two differs")
    if found.forced:
        say(console, "Compared by force: times of different protocols or devices do not mean the same.")
    for only, name in ((found.only_a, "A"), (found.only_b, "B")):
        if only:
            say(console, f"{plural(len(only), 'shape')} verified in {name} alone, first {only[0]}")
    for measure in found.measures:
        _print_measure(console, measure, found.false_discovery_rate)


def _print_measure(console: Console, measure: MeasureComparison, rate: float) -> None:
    from harness.commands.tables import plain_table, plural, say
    from harness.compare import p_value_text

    over, geomean = plural(len(measure.shapes), "shape"), measure.geomean
    same = len(measure.shapes) - measure.faster - measure.slower
    say(console, "")
    say(console, f"{measure.measure}: time A / time B {geomean.value:.4f} ({geomean.low:.4f}-{geomean.high:.4f}) over {over}")
    say(console, f"B is faster at {measure.faster}, slower at {measure.slower}, not told apart at {same};")
    say(console, f"of those told apart at most {rate:.0%} are chance.")
    significant = [shape for shape in measure.shapes if shape.significant]
    if not significant:
        return
    table = plain_table("shape", "A / B", "95 % interval", "raw times", "adjusted p", "relative to")
    for shape in sorted(significant, key=_size, reverse=True)[:SHOWN]:
        ratio = shape.relative_ratio
        table.add_row(
            shape.shape,
            f"{ratio.value:.3f}",
            f"{ratio.low:.3f}-{ratio.high:.3f}",
            f"{shape.time_ratio:.3f}",
            p_value_text(shape.adjusted_p_value),
            ", ".join(shape.shared_baselines) or "nothing",
        )
    console.print(table)


def _size(shape: ShapeComparison) -> float:
    """How far the ratio is from 1, either way."""
    return max(shape.relative_ratio.value, 1 / shape.relative_ratio.value)
