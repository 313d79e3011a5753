"""`hgemm audit`: what a reviewer asks of a submission, answered in a page."""

from __future__ import annotations

import random
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from harness.commands.check import CPU_SHAPES, CUDA_SHAPES, StepOutcome
from harness.commands.devices import AUTO, device_of, profile_for
from harness.commands.kernels import kernel_reports, refusals, show_step
from harness.commands.tables import plain_table, plural, stdout
from harness.evaluate import Evaluator, Prepared, prepare
from harness.model import Document, Hash, InfraError, Model, Name
from harness.plan import Kernel, Language, Plan
from harness.problem import Problem
from harness.protocol import Purpose
from harness.record import Record, Status

if TYPE_CHECKING:
    from harness.submission import Submission

NEAR_MISSES = 6
"""Hidden shapes: some of the usual ones, each side off by a few."""
NOTES = {
    "state in parameters": r"__grid_constant__|cvta\.param",
    "reads a clock": r"\bclock64\b|%globaltimer|%clock|\bclock\(|__builtin_ia32_rdtsc",
    "cache policy or prefetch": r"createpolicy|evict_last|prefetch",
    "absolute address": r"\b0x[0-9a-fA-F]{9,16}\b",
    "system call": r"\bsyscall\b|\bsvc\b",
    "half-precision arithmetic": r"\b__h(add|mul|fma)2?\b|\.f16\.f16\.f16\.f16|\bHMMA\.\d+\.F16\b|\bfma\.rn\.f16",
    "narrow types": r"(?i)e4m3|e5m2|fp8|bf16|bfloat16|\bs8\b|dp4a",
    "atomics": r"\batomic\w+\(|\batom\.|\bred\.",
}
"""What a reviewer looks at, by patterns in the sources. None of it is forbidden."""
GHOSTS = {
    Language.C: ("ghost.c", "void {entry}(void) {{}}\n"),
    Language.CUDA: ("ghost.cu", 'extern "C" __global__ void {entry}() {{}}\n'),
    Language.NATIVE: (
        "ghost.cu",
        "#include <hgemm.h>\n"
        "int hgemm_create(const hgemm_problem *, void **) {{ return 0; }}\n"
        "int {entry}(void *, const void *, const void *, void *, void *, void *) {{ return 0; }}\n"
        "void hgemm_destroy(void *) {{}}\n",
    ),
}


class Finding(Model):
    """One question and its answer."""

    name: Name
    """What was asked."""
    outcome: StepOutcome
    """Whether the answer is as it must be."""
    detail: str
    """The answer."""


class Audit(Document):
    """What `hgemm audit --json` prints."""

    submission: Name
    """Name of the submission."""
    tree_sha256: Hash
    """Identity of its tree."""
    profile: Name
    """Profile of the device that was planned and built for."""
    findings: tuple[Finding, ...]
    """Every question, in order."""


class _Verified(NamedTuple):
    records: list[Record]
    ghosts: list[Record]


def audit(
    submission: Annotated[Path, typer.Argument(help="Directory of the submission.", show_default=False)],
    device: Annotated[str, typer.Option(help="cpu, cuda:0, or a profile such as h200 for the static part.")] = AUTO,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """Ask of a submission what a reviewer would: sources, hidden shapes, two poisons, and whether it fails without its kernels.

    Exit codes: 0 nothing wrong, 1 something wrong, 3 no device here can verify it.
    """
    from harness.problem_sets import resolve_shapes
    from harness.submission import Submission

    tree = Submission.read(submission)
    profile = profile_for(tree.manifest, device)
    usual = resolve_shapes(CPU_SHAPES if profile.is_cpu else CUDA_SHAPES, tree.manifest.track).problems
    hidden = near_misses(usual)
    prepared = prepare(tree, (*usual, *hidden), profile, None, show_step)
    refused = {outcome.shape for outcome in refusals(prepared)}
    choice = device_of(profile, device)
    findings = [*_static(tree, prepared)]
    if choice is not None:
        able = [problem for problem in (*usual, *hidden) if str(problem) not in refused]
        with Evaluator(choice.name, purpose=Purpose.CHECK) as evaluator:
            records = [_last(evaluator, prepared, problem) for problem in able]
            ghost = ghosts(prepared, able[:1], evaluator)
            ended = _Verified(records, [_last(evaluator, ghost, problem) for problem in able[:1]])
        findings += _dynamic(ended, hidden)
    report = Audit(submission=tree.manifest.name, tree_sha256=tree.tree_sha256, profile=profile.name, findings=tuple(findings))
    typer.echo(report.model_dump_json(indent=2)) if json else _print(report)
    if choice is None:
        raise InfraError(f"no device here is {profile.name} ({profile.architecture}), so nothing was run.")
    sys.exit(any(finding.outcome is StepOutcome.FAILED for finding in findings))


def near_misses(usual: Sequence[Problem]) -> tuple[Problem, ...]:
    """Shapes near the usual ones that nobody can know before."""
    rng = random.SystemRandom()
    found: list[Problem] = []
    for problem in rng.sample(list(usual), min(NEAR_MISSES, len(usual))):
        miss = problem
        while miss in usual or miss in found:
            sides = {side: max(1, getattr(problem, side) + rng.choice((-3, -1, 1, 2, 5))) for side in ("m", "n", "k")}
            miss = problem.model_copy(update=sides)
        found.append(miss)
    return tuple(found)


def ghosts(prepared: Prepared, problems: Sequence[Problem], evaluator: Evaluator) -> Prepared:
    """The same plans with kernels that do nothing."""
    from harness.build import build_kernels

    outcomes = dict(prepared.outcomes)
    texts: dict[str, str] = {}
    built: dict[str, Kernel] = {}
    for problem in problems:
        plan = outcomes[problem]
        assert isinstance(plan, Plan)
        hollow = {}
        for name, kernel in plan.kernels.items():
            language = kernel.language if kernel.language.is_host else Language.CUDA
            file, text = GHOSTS[language]
            source = f"kernels/{kernel.entry}-{file}"
            texts[source] = text.format(entry=kernel.entry)
            hollow[name] = Kernel(language=language, source=source, entry=kernel.entry)
            built[hollow[name].sha256()] = hollow[name]
        outcomes[problem] = plan.model_copy(update={"kernels": hollow})
    with tempfile.TemporaryDirectory(prefix="hgemm-ghost-") as directory:
        root = Path(directory)
        (root / "kernels").mkdir()
        for source, text in texts.items():
            (root / source).write_text(text, encoding="utf-8")
        return Prepared(prepared.submission, outcomes, build_kernels(root, built.values(), evaluator.profile))


def _static(tree: Submission, prepared: Prepared) -> Iterator[Finding]:
    manifest = tree.manifest
    size = sum(len(file.data) for file in tree.files)
    binary = ", holds binaries" if any(file.name.endswith(".cubin") for file in tree.files) else ""
    about = f"kind {manifest.kind}, track {manifest.track}, {plural(len(tree.files), 'file')} of {size:,} B{binary}"
    yield Finding(name="manifest", outcome=StepOutcome.OK, detail=about)
    noted = "; ".join(f"{what}: {places}" for what, places in notes(tree).items())
    yield Finding(name="sources", outcome=StepOutcome.OK, detail=noted or "nothing that asks for a second look")
    refused = refusals(prepared)
    wrong = [outcome for outcome in refused if outcome.status is Status.REJECTED]
    kernels = plural(len(kernel_reports(prepared)), "kernel")
    detail = (
        f"{wrong[0].shape}: {wrong[0].reason}: {wrong[0].detail}" if wrong else f"{kernels}, {len(refused)} shapes unsupported"
    )
    yield Finding(name="build", outcome=StepOutcome.FAILED if wrong else StepOutcome.OK, detail=detail)


def notes(tree: Submission) -> dict[str, str]:
    """Per thing to look at, where it stands: `file:line`, at most three."""
    found: dict[str, list[str]] = {}
    for file in tree.files:
        if not file.name.startswith("kernels/"):
            continue
        for number, line in enumerate(file.data.decode("utf-8", "replace").splitlines(), 1):
            for what, pattern in NOTES.items():
                if re.search(pattern, line):
                    found.setdefault(what, []).append(f"{file.name.removeprefix('kernels/')}:{number}")
    return {
        what: ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")
        for what, places in found.items()
    }


def _dynamic(ended: _Verified, hidden: Sequence[Problem]) -> Iterator[Finding]:
    for name, chosen in (
        ("usual-shapes", [record for record in ended.records if record.problem not in hidden]),
        ("hidden-shapes", [record for record in ended.records if record.problem in hidden]),
    ):
        bad = [record for record in chosen if record.status is not Status.VERIFIED]
        outcome = StepOutcome.SKIPPED if not chosen else StepOutcome.FAILED if bad else StepOutcome.OK
        detail = f"{len(chosen) - len(bad)} of {len(chosen)} verified"
        detail += (
            f"; {bad[0].problem} {bad[0].reason}: {bad[0].detail}" if bad else f": {', '.join(str(r.problem) for r in chosen)}"
        )
        yield Finding(name=name, outcome=outcome, detail=detail)
    verifications = [record.verification for record in ended.records if record.verification is not None]
    same = sum(verification.bitwise_repeatable is True for verification in verifications)
    classes = sorted({verification.precision_class for verification in verifications if verification.precision_class})
    detail = f"equal bits in two runs with two poisons on {same} of {len(verifications)} shapes"
    detail += f"; errors are those of {', '.join(classes)}" if classes else ""
    yield Finding(name="two-poisons", outcome=StepOutcome.OK if verifications else StepOutcome.SKIPPED, detail=detail)
    alive = [record for record in ended.ghosts if record.status is not Status.REJECTED]
    detail = "; ".join(f"{record.problem} {record.status} {record.reason or ''}".strip() for record in ended.ghosts)
    outcome = StepOutcome.SKIPPED if not ended.ghosts else StepOutcome.FAILED if alive else StepOutcome.OK
    yield Finding(name="ghost", outcome=outcome, detail=f"with kernels that do nothing: {detail or 'nothing to try'}")


def _last(evaluator: Evaluator, prepared: Prepared, problem: Problem) -> Record:
    *_, last = evaluator.attempts(prepared, problem)
    return last.record


def _print(report: Audit) -> None:
    from rich.text import Text

    styles = {StepOutcome.OK: "green", StepOutcome.FAILED: "red", StepOutcome.SKIPPED: "yellow"}
    table = plain_table("", "", "")
    table.show_header = False
    for finding in report.findings:
        table.add_row(finding.name, Text(finding.outcome, style=styles[finding.outcome]), finding.detail)
    stdout().print(table)
