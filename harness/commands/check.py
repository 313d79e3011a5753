"""`hgemm check`: whether a directory is a submission that plans, builds and computes right."""

from __future__ import annotations

import sys
from collections import Counter
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from harness.commands.devices import AUTO, device_of, profile_for
from harness.commands.kernels import KernelReport, kernel_reports, print_refusals, refusals, remarks, show_step
from harness.commands.tables import plain_table, plural, say, stdout
from harness.evaluate import Evaluator, Prepared, prepare
from harness.machine import DeviceChoice
from harness.model import Count, Document, Hash, InfraError, Model, Name
from harness.problem import Problem
from harness.record import Record, Status
from harness.run_report import ShapeOutcome

CPU_SHAPES = "1x1x1,16x24x40,33x65x17,1x300x129,64x64x64"
CUDA_SHAPES = "64x64x64,128x256x512,33x65x129,1x1024x512,257x1000x1000,512x64x8192"
"""Small, and both multiples of a tile and ragged."""


class StepName(StrEnum):
    """The steps, in order."""

    MANIFEST = "manifest"
    PLAN = "plan"
    BUILD = "build"
    VERIFY = "verify"


class StepOutcome(StrEnum):
    """What became of a step."""

    OK = "ok"
    """It found nothing wrong."""
    FAILED = "failed"
    """It found something wrong."""
    SKIPPED = "skipped"
    """It did not run."""


class Step(Model):
    """One step of a check."""

    name: StepName
    """Which."""
    outcome: StepOutcome
    """What became of it."""
    detail: str
    """One sentence, or why it was skipped."""


class CheckReport(Document):
    """What `hgemm check --json` prints."""

    submission: Name
    """Name of the submission."""
    tree_sha256: Hash
    """Identity of its tree."""
    profile: Name
    """Profile of the device that was planned and built for."""
    device: str | None
    """Device that verified; null where none did."""
    steps: tuple[Step, ...]
    """Every step, in order."""
    kernels: tuple[KernelReport, ...]
    """Every kernel of the plans."""
    verified: Count
    """Shapes verified."""
    not_verified: tuple[ShapeOutcome, ...]
    """Shapes that are unsupported, were rejected, or met a failure of the machine."""


def check(
    submission: Annotated[Path, typer.Argument(help="Directory of the submission.", show_default=False)],
    device: Annotated[str, typer.Option(help="cpu, cuda:0, or a profile such as h200 to plan and build for.")] = AUTO,
    shapes: Annotated[str | None, typer.Option(help="Shapes to check; default a handful of small ones.")] = None,
    build_only: Annotated[bool, typer.Option("--build-only", help="Plan and build, and ask for no device.")] = False,
    compiler: Annotated[str, typer.Option(help="nvrtc or nvcc.")] = "nvrtc",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """Check a submission: manifest, plan, build, and verification of every output on a few small shapes. Nothing is timed.

    Exit codes: 0 nothing wrong and something verified, 1 rejected, 3 no device here can verify it, 4 all shapes unsupported.
    """
    from harness.build import BuildOptions
    from harness.problem_sets import resolve_shapes
    from harness.submission import Submission

    tree = Submission.read(submission)
    profile = profile_for(tree.manifest, device)
    usual = CPU_SHAPES if profile.is_cpu else CUDA_SHAPES
    problems = resolve_shapes(usual if shapes is None else shapes, tree.manifest.track).problems
    prepared = prepare(tree, problems, profile, BuildOptions(compiler=compiler), show_step)
    refused = refusals(prepared)
    choice = None if build_only else device_of(profile, device)
    able = [problem for problem in problems if str(problem) not in {outcome.shape for outcome in refused}]
    records = _verify(choice, prepared, able) if choice is not None and able else []
    missing = "--build-only" if build_only else f"no device here is {profile.name} ({profile.architecture})"
    report = CheckReport(
        submission=tree.manifest.name,
        tree_sha256=tree.tree_sha256,
        profile=profile.name,
        device=choice.name if choice is not None and able else None,
        steps=(*_prepared_steps(prepared), _verify_step(choice, records, missing)),
        kernels=kernel_reports(prepared),
        verified=sum(record.status is Status.VERIFIED for record in records),
        not_verified=(*refused, *(ShapeOutcome.of(record) for record in records if record.status is not Status.VERIFIED)),
    )
    if json:
        typer.echo(report.model_dump_json(indent=2))
    else:
        _print(report)
    if choice is None and able and not build_only and not _rejected(report):
        raise InfraError(f"{missing}, so nothing was verified; --build-only asks for no device.")
    sys.exit(exit_code(report, build_only))


def exit_code(report: CheckReport, build_only: bool) -> int:
    """3 for a failure of the machine, 1 for anything rejected, 4 where nothing could be checked, else 0."""
    if any(outcome.status is Status.INFRA_ERROR for outcome in report.not_verified):
        return 3
    if _rejected(report):
        return 1
    return 0 if (report.kernels if build_only else report.verified) else 4


def _rejected(report: CheckReport) -> bool:
    return any(outcome.status is Status.REJECTED for outcome in report.not_verified)


def _verify(choice: DeviceChoice, prepared: Prepared, problems: list[Problem]) -> list[Record]:
    from rich.console import Console

    from harness.protocol import Purpose

    console = Console(stderr=True)
    records = []
    with Evaluator(choice.name, purpose=Purpose.CHECK) as evaluator, console.status("verifying") as status:
        for problem in problems:
            status.update(f"verifying {problem}")
            *_, last = evaluator.attempts(prepared, problem)
            records.append(last.record)
    return records


def _prepared_steps(prepared: Prepared) -> tuple[Step, ...]:
    manifest, targets = prepared.submission.manifest, " ".join(prepared.submission.manifest.targets)
    about = f"{manifest.name} {manifest.version}, kind {manifest.kind}, track {manifest.track}, targets {targets}"
    first = Step(name=StepName.MANIFEST, outcome=StepOutcome.OK, detail=about)
    counts = Counter(type(outcome).__name__ for outcome in prepared.outcomes.values())
    planned = f"{plural(counts['Plan'], 'shape')} planned"
    planned += f", {counts['Unsupported']} unsupported" if counts["Unsupported"] else ""
    planned += f", {counts['PlanFailure']} failed" if counts["PlanFailure"] else ""
    outcome = StepOutcome.FAILED if counts["PlanFailure"] else StepOutcome.OK
    plan = Step(name=StepName.PLAN, outcome=outcome, detail=planned)
    kernels = kernel_reports(prepared)
    if not kernels:
        return first, plan, Step(name=StepName.BUILD, outcome=StepOutcome.SKIPPED, detail="no plan names a kernel")
    failed, cached = sum(not kernel.built for kernel in kernels), sum(kernel.cached for kernel in kernels)
    detail = f"{plural(len(kernels), 'kernel')}, {f'{failed} failed' if failed else f'{cached} cached'}{_usage(kernels)}"
    outcome = StepOutcome.FAILED if failed else StepOutcome.OK
    return first, plan, Step(name=StepName.BUILD, outcome=outcome, detail=detail)


def _usage(kernels: tuple[KernelReport, ...]) -> str:
    """Registers and spills over all kernels, for device code."""
    registers = [kernel.registers for kernel in kernels if kernel.registers is not None]
    if not registers:
        return ""
    spilled = sum((kernel.spill_store_bytes or 0) + (kernel.spill_load_bytes or 0) for kernel in kernels)
    return f", up to {max(registers)} registers, " + (f"{spilled} B of spills" if spilled else "no spills")


def _verify_step(choice: DeviceChoice | None, records: list[Record], missing: str) -> Step:
    if choice is None:
        return Step(name=StepName.VERIFY, outcome=StepOutcome.SKIPPED, detail=missing)
    if not records:
        return Step(name=StepName.VERIFY, outcome=StepOutcome.SKIPPED, detail="no shape was planned and built")
    right = [record for record in records if record.status is Status.VERIFIED]
    outputs = sum(draw.outputs for record in right if record.verification for draw in record.verification.draws)
    detail = f"{len(right)} of {plural(len(records), 'shape')} on {choice.name}, {outputs:,} outputs compared with float64"
    outcome = StepOutcome.OK if len(right) == len(records) else StepOutcome.FAILED
    return Step(name=StepName.VERIFY, outcome=outcome, detail=detail)


def _print(report: CheckReport) -> None:
    from rich.text import Text

    console = stdout()
    styles = {StepOutcome.OK: "green", StepOutcome.FAILED: "red", StepOutcome.SKIPPED: "yellow"}
    table = plain_table("", "", "")
    table.show_header = False
    for step in report.steps:
        table.add_row(step.name, Text(step.outcome, style=styles[step.outcome]), step.detail)
    console.print(table)
    for remark in remarks(report.kernels):
        say(console, remark)
    print_refusals(console, report.not_verified)
