"""What planning and building gave: one line per kernel, and the shapes that got no kernel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from harness.artifacts import Artifact, BuildFailure, BuildReport
from harness.commands.tables import plain_table, say
from harness.evaluate import Prepared
from harness.model import Count, Model, Name, Positive
from harness.plan import Kernel, Language, Launch, Plan, Unsupported
from harness.planner import PlanFailure
from harness.record import Reason, Status
from harness.run_report import ShapeOutcome

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SHOWN_REFUSALS = 5


class KernelReport(Model):
    """One kernel that the plans name, and what building it gave."""

    name: Name
    """Name of the kernel in the plans."""
    language: Language
    """Language of its source."""
    source: str
    """Its source in the submission."""
    entry: str
    """Entry point."""
    defines: dict[str, str]
    """Preprocessor definitions."""
    shapes: Positive
    """Shapes whose plan uses it."""
    built: bool
    """Whether it was built."""
    cached: bool
    """Whether it was in the cache before."""
    registers: Count | None
    """32-bit registers per thread, the most of all kernels of a native library; null for host C, and where it was not built."""
    static_shared_bytes: Count
    """Static shared memory per CTA."""
    dynamic_shared_bytes: Count
    """Largest dynamic shared memory of its launches."""
    stack_bytes: Count
    """Local-memory stack per thread."""
    spill_store_bytes: Count | None
    """Bytes of register spill stores; null where no compiler reports them."""
    spill_load_bytes: Count | None
    """The same for loads."""
    serialized_wgmma: bool
    """Whether the assembler serialised wgmma instructions, which costs most of their speed."""
    warnings: tuple[str, ...]
    """Warnings of the compiler."""
    error: str
    """Why it was not built, as `file:line: error`; empty where it was."""


class _Use:
    """How the plans use a kernel."""

    def __init__(self, name: str, kernel: Kernel) -> None:
        self.name, self.kernel = name, kernel
        self.shapes = self.dynamic_shared_bytes = 0


def kernel_reports(prepared: Prepared) -> tuple[KernelReport, ...]:
    """Every kernel of the plans, by name."""
    uses: dict[str, _Use] = {}
    for plan in prepared.outcomes.values():
        if not isinstance(plan, Plan):
            continue
        for name, kernel in plan.kernels.items():
            use = uses.setdefault(kernel.sha256(), _Use(name, kernel))
            sizes = [step.dynamic_shared_bytes for step in plan.steps if isinstance(step, Launch) and step.kernel == name]
            use.shapes += 1
            use.dynamic_shared_bytes = max(use.dynamic_shared_bytes, *sizes, 0)
    return tuple(_report(use, prepared) for use in sorted(uses.values(), key=lambda use: use.name))


def refusals(prepared: Prepared) -> tuple[ShapeOutcome, ...]:
    """Shapes that planning and building alone decide: unsupported, or rejected."""
    found = []
    for problem, outcome in prepared.outcomes.items():
        shape = str(problem)
        if isinstance(outcome, Unsupported):
            detail = outcome.reason
            found.append(ShapeOutcome(shape=shape, status=Status.UNSUPPORTED, reason=Reason.DECLARED, detail=detail))
        elif isinstance(outcome, PlanFailure):
            found.append(ShapeOutcome(shape=shape, status=Status.REJECTED, reason=outcome.reason, detail=outcome.detail))
        else:
            builds = (prepared.builds[kernel.sha256()] for kernel in outcome.kernels.values())
            failed = next((build for build in builds if isinstance(build, BuildFailure)), None)
            if failed is not None:
                detail = failed.message
                found.append(ShapeOutcome(shape=shape, status=Status.REJECTED, reason=failed.reason, detail=detail))
    return tuple(found)


def kernel_table(kernels: Iterable[KernelReport]) -> Table:
    """One line per kernel."""
    table = plain_table("kernel", "entry", "registers", "shared", "spills", "shapes", "built")
    for column in table.columns[2:6]:
        column.justify = "right"
    for kernel in kernels:
        spilled = None if kernel.spill_store_bytes is None else kernel.spill_store_bytes + (kernel.spill_load_bytes or 0)
        shared = kernel.static_shared_bytes + kernel.dynamic_shared_bytes
        device = kernel.built and kernel.language is not Language.C
        table.add_row(
            kernel.name,
            kernel.entry,
            "-" if kernel.registers is None else str(kernel.registers),
            f"{shared:,} B" if device else "-",
            "-" if spilled is None else f"{spilled:,} B",
            str(kernel.shapes),
            ("cached" if kernel.cached else "now") if kernel.built else "failed",
        )
    return table


def remarks(kernels: Iterable[KernelReport]) -> list[str]:
    """What of the kernels deserves a look: serialised wgmma, spills, warnings; each once."""
    found = []
    for kernel in kernels:
        if kernel.serialized_wgmma:
            found.append(f"{kernel.name}: wgmma instructions are serialised, which costs most of their speed")
        if kernel.spill_store_bytes:
            found.append(
                f"{kernel.name}: spills {kernel.spill_store_bytes} B of stores and {kernel.spill_load_bytes} B of loads"
            )
        found += kernel.warnings
    return list(dict.fromkeys(found))


def print_refusals(console: Console, refused: tuple[ShapeOutcome, ...]) -> None:
    """The shapes that got no kernel, those with equal reasons together."""
    by_detail: dict[str, list[ShapeOutcome]] = {}
    for outcome in refused:
        by_detail.setdefault(outcome.detail, []).append(outcome)
    for detail, outcomes in list(by_detail.items())[:SHOWN_REFUSALS]:
        others = f" and {len(outcomes) - 1} more" if len(outcomes) > 1 else ""
        say(console, f"{outcomes[0].shape}{others} {outcomes[0].status}, {outcomes[0].reason}: {detail}")
    if len(by_detail) > SHOWN_REFUSALS:
        say(console, f"and {len(by_detail) - SHOWN_REFUSALS} other reasons; --json lists all")


def show_step(done: int, total: int, what: str) -> None:
    """Progress of compilations on standard error: rewrites one line of a terminal, and is silent elsewhere."""
    import sys

    if sys.stderr.isatty():
        text = "" if done == total else f"compiled {done}/{total} {what}"
        typer.echo(f"\r\x1b[K{text}", err=True, nl=False)


def _report(use: _Use, prepared: Prepared) -> KernelReport:
    kernel, build = use.kernel, prepared.builds[use.kernel.sha256()]
    report = build.report if isinstance(build, Artifact) else None
    return KernelReport(
        name=use.name,
        language=kernel.language,
        source=kernel.source,
        entry=kernel.entry,
        defines=kernel.defines,
        shapes=use.shapes,
        built=report is not None,
        cached=isinstance(build, Artifact) and build.cached,
        registers=_registers(report, kernel) if report else None,
        static_shared_bytes=report.static_shared_bytes if report else 0,
        dynamic_shared_bytes=use.dynamic_shared_bytes,
        stack_bytes=report.stack_bytes if report else 0,
        spill_store_bytes=report.spill_store_bytes if report else None,
        spill_load_bytes=report.spill_load_bytes if report else None,
        serialized_wgmma=report is not None and report.serialized_wgmma,
        warnings=report.warnings if report else (),
        error=build.message if isinstance(build, BuildFailure) else "",
    )


def _registers(report: BuildReport, kernel: Kernel) -> int | None:
    if kernel.language is Language.NATIVE:
        return max(report.registers.values(), default=None)
    return report.registers.get(kernel.entry)
