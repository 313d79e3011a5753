"""`hgemm build`: build every kernel that a submission needs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.commands.devices import profile_for
from harness.commands.kernels import KernelReport, kernel_reports, kernel_table, print_refusals, refusals, remarks, show_step
from harness.commands.tables import plural, say, stdout
from harness.model import Document, Hash, Name
from harness.record import Status
from harness.run_report import ShapeOutcome


class BuildList(Document):
    """What `hgemm build --json` prints."""

    submission: Name
    """Name of the submission."""
    tree_sha256: Hash
    """Identity of its tree."""
    profile: Name
    """Profile of the device that was built for."""
    shape_set: str
    """Name of the set of shapes, or `custom`."""
    shapes: int
    """Shapes planned."""
    kernels: tuple[KernelReport, ...]
    """Every kernel of the plans."""
    refused: tuple[ShapeOutcome, ...]
    """Shapes without a built plan: unsupported, or rejected."""


def build(
    submission: Annotated[Path, typer.Argument(help="Directory of the submission.", show_default=False)],
    device: Annotated[str, typer.Option(help="Profile (h200, a100, …) or device; auto takes one of the targets.")] = "auto",
    shapes: Annotated[str | None, typer.Option(help="Shapes to plan; default grid1000, or cpu for the CPU.")] = None,
    compiler: Annotated[str, typer.Option(help="nvrtc or nvcc.")] = "nvrtc",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")] = False,
) -> None:
    """Build every kernel that a submission's plans need for some shapes; the device need not be here.

    Exit codes: 0 all built, 1 a plan or a kernel failed, 3 a compiler is missing, 4 every shape is unsupported.
    """
    from harness.build import BuildOptions
    from harness.evaluate import prepare
    from harness.problem_sets import resolve_shapes
    from harness.submission import Submission

    tree = Submission.read(submission)
    profile = profile_for(tree.manifest, device)
    usual = "cpu" if profile.is_cpu else "grid1000"
    shape_set = resolve_shapes(usual if shapes is None else shapes, tree.manifest.track)
    prepared = prepare(tree, shape_set.problems, profile, BuildOptions(compiler=compiler), show_step)
    document = BuildList(
        submission=tree.manifest.name,
        tree_sha256=tree.tree_sha256,
        profile=profile.name,
        shape_set=shape_set.name,
        shapes=len(shape_set.problems),
        kernels=kernel_reports(prepared),
        refused=refusals(prepared),
    )
    if json:
        typer.echo(document.model_dump_json(indent=2))
    else:
        _print(document)
    sys.exit(_exit_code(document))


def _print(document: BuildList) -> None:
    console = stdout()
    cached = sum(kernel.cached for kernel in document.kernels)
    say(
        console,
        f"{document.submission} for {document.profile}, {plural(document.shapes, 'shape')} of {document.shape_set}: "
        f"{plural(len(document.kernels), 'kernel')}, {cached} cached",
    )
    if document.kernels:
        console.print(kernel_table(document.kernels))
    for remark in remarks(document.kernels):
        say(console, remark)
    print_refusals(console, document.refused)


def _exit_code(document: BuildList) -> int:
    if any(outcome.status is Status.REJECTED for outcome in document.refused):
        return 1
    return 0 if document.kernels else 4
