"""`hgemm compare`: two runs, what differs around them and per shape."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from harness.compare import Comparison, MeasureComparison, ShapeComparison
    from harness.record import Interval

SHOWN = 10
"""Shapes listed per measure, the largest significant changes first."""


def compare(
    a: Annotated[Path, typer.Argument(help="Directory of the first run.")],
    b: Annotated[Path, typer.Argument(help="Directory of the second run.")],
    force: Annotated[bool, typer.Option(help="Compare runs of different protocols or devices all the same.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document with every shape.")] = False,
) -> None:
    """Compare two runs shape by shape, with a test on raw samples that is corrected for the number of shapes.

    A ratio is A's time over B's, so above 1 the second run is faster.
    """
    from harness.compare import compare as compare_runs
    from harness.run import Run

    found = compare_runs(Run.read(a), Run.read(b), force)
    if json:
        typer.echo(found.model_dump_json(indent=2))
        return
    _print(found)


def _print(found: Comparison) -> None:
    from rich.console import Console

    console = Console(soft_wrap=True, markup=False)
    for letter, side in (("A", found.a), ("B", found.b)):
        console.print(f"{letter}  {side.submission} {side.version}  {side.run}")
    if found.differences:
        console.print(_difference_table(found))
    else:
        console.print("nothing around the two differs")
    if found.forced:
        console.print("Compared by force: times of different protocols or devices do not mean the same.")
    for only, name in ((found.only_a, "A"), (found.only_b, "B")):
        if only:
            console.print(f"{len(only)} shapes are verified in {name} alone, first {only[0]}")
    for measure in found.measures:
        same = len(measure.shapes) - measure.faster - measure.slower
        console.print(
            f"\n{measure.measure}: time A / time B {_text(measure.geomean)} over {len(measure.shapes)} shapes; B is faster at "
            f"{measure.faster}, slower at {measure.slower}, not told apart at {same} "
            f"(of those told apart at most {found.false_discovery_rate:.0%} are chance)",
        )
        if changed := _changed(measure):
            console.print(_shape_table(changed))


def _changed(measure: MeasureComparison) -> list[ShapeComparison]:
    significant = [shape for shape in measure.shapes if shape.significant]
    return sorted(significant, key=lambda s: -max(s.relative_ratio.value, 1 / s.relative_ratio.value))[:SHOWN]


def _difference_table(found: Comparison) -> Table:
    from rich.table import Table

    table = Table("differs", "A", "B", "which", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for each in found.differences:
        table.add_row(each.field, each.a or "-", each.b or "-", each.importance.value)
    return table


def _shape_table(shapes: list[ShapeComparison]) -> Table:
    from rich.table import Table

    columns = ("shape", "A / B", "95 % interval", "raw times", "adjusted p", "relative to")
    table = Table(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for shape in shapes:
        ratio = shape.relative_ratio
        table.add_row(
            shape.shape,
            f"{ratio.value:.3f}",
            f"{ratio.low:.3f} to {ratio.high:.3f}",
            f"{shape.time_ratio:.3f}",
            f"{shape.adjusted_p_value:.1e}",
            ", ".join(shape.shared_baselines) or "nothing",
        )
    return table


def _text(interval: Interval) -> str:
    return f"{interval.value:.4f} ({interval.low:.4f} to {interval.high:.4f})"
