"""`hgemm shapes`: the sets of shapes that `--shapes` takes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

import shapes as shape_data
from harness.model import Document, Hash, Model, Positive
from harness.problem_sets import ShapeSet, resolve_shapes
from harness.profiles import DeviceProfile, load_profile

if TYPE_CHECKING:
    from rich.table import Table


class SetSummary(Model):
    """One set of shapes."""

    name: str
    """What `--shapes` takes."""
    description: str
    """What it is for."""
    source: str
    """Where its shapes come from."""
    count: Positive
    """Shapes in it."""
    shapes_sha256: Hash
    """Hash of its shapes: only runs with equal hashes are compared."""


class ShapeSetList(Document):
    """What `hgemm shapes --json` prints."""

    sets: tuple[SetSummary, ...]
    """The sets that come with hgemm-arena."""


class ShapeSetDetails(Document):
    """What `hgemm shapes NAME --json` prints."""

    set: SetSummary
    """The set."""
    device: str
    """Profile that decides the regimes."""
    regimes: dict[str, Positive]
    """Shapes by regime; regimes without shapes are absent."""
    shapes: tuple[str, ...]
    """All shapes, `MxNxK`, in the order in which they run."""


def shapes(
    name: Annotated[
        str | None, typer.Argument(help="A set, a file, or a comma list of MxNxK; without it all sets are listed.")
    ] = None,
    device: Annotated[str, typer.Option(help="Device profile that decides the regimes.")] = "h200",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")] = False,
) -> None:
    """List the sets of shapes, or describe one."""
    document = _list() if name is None else _details(resolve_shapes(name), load_profile(device))
    if json:
        typer.echo(document.model_dump_json(indent=2))
        return
    from rich.console import Console

    console = Console()
    if isinstance(document, ShapeSetDetails):
        described = document.set
        for line in (described.description, described.source and f"Source: {described.source}"):
            if line:
                console.print(line, highlight=False, markup=False)
        console.print(f"{described.count} shape(s), sha256 {described.shapes_sha256[:16]}", highlight=False)
        console.print(_regime_table(document, load_profile(device)))
    else:
        console.print(_set_table(document))


def _list() -> ShapeSetList:
    return ShapeSetList(sets=tuple(_summary(resolve_shapes(name)) for name in shape_data.names()))


def _summary(found: ShapeSet) -> SetSummary:
    return SetSummary(
        name=found.name,
        description=found.description,
        source=found.source,
        count=len(found.problems),
        shapes_sha256=found.sha256,
    )


def _details(found: ShapeSet, profile: DeviceProfile) -> ShapeSetDetails:
    from harness.scores import Regime, regime

    counts = Counter(regime(problem, profile) for problem in found.problems)
    return ShapeSetDetails(
        set=_summary(found),
        device=profile.name,
        regimes={member.value: counts[member] for member in Regime if counts[member]},
        shapes=tuple(str(problem) for problem in found.problems),
    )


def _set_table(document: ShapeSetList) -> Table:
    from rich.table import Table

    table = Table("set", "shapes", "what it is for", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.columns[1].justify = "right"
    for summary in document.sets:
        table.add_row(summary.name, str(summary.count), summary.description)
    return table


def _regime_table(document: ShapeSetDetails, profile: DeviceProfile) -> Table:
    """Per regime the number of shapes, and the fastest and the slowest by speed-of-light time in µs."""
    from rich.table import Table

    from harness.problem import Problem
    from harness.scores import Regime, regime

    table = Table(f"regime on {profile.name}", "shapes", "shortest", "longest", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.columns[1].justify = "right"
    problems = [Problem.parse(shape) for shape in document.shapes]
    for member in Regime:
        those = sorted((p for p in problems if regime(p, profile) is member), key=profile.roof_ns)
        if those:
            ends = [f"{p} ({profile.roof_ns(p) / 1000:,.2f} µs)" for p in (those[0], those[-1])]
            table.add_row(member.value, str(len(those)), *ends)
    return table
