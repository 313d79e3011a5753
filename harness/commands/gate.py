"""`hgemm gate`: has a submission become slower than a pinned baseline says, and pinning a new one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.gate import Verdict
    from harness.gate_data import Benchmark, Pin, Results


def gate(
    result: Annotated[Path, typer.Argument(help="What `pytest --hgemm-submission DIR --benchmark-json=FILE` wrote.")],
    baseline: Annotated[Path, typer.Argument(help="The pinned baseline; with --accept the file to pin.")],
    accept: Annotated[str | None, typer.Option(help="Pin RESULT as the baseline, for this reason.", metavar="REASON")] = None,
    max_regression: Annotated[str, typer.Option(help="How much slower things may be, as in 5% or 2.5%.")] = "5%",
    regime: Annotated[list[str] | None, typer.Option(help="A limit of one regime, as in latency=3%; repeatable.")] = None,
    ratio: Annotated[str, typer.Option(help="Compare times relative to this baseline or other submission of the file.")] = "",
    again: Annotated[list[Path] | None, typer.Option(help="Submission to measure what is ambiguous again; repeatable.")] = None,
    device: Annotated[str, typer.Option(help="Device for --again: auto, cpu, cuda:0, …")] = "auto",
    budget: Annotated[float, typer.Option(help="Seconds for --again.", min=0)] = 120.0,
    markdown: Annotated[Path | None, typer.Option(help="File to write the verdict to as Markdown.")] = None,
    junit: Annotated[Path | None, typer.Option(help="File to write the verdict to as JUnit XML.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """Compare a result with a pinned baseline; with --accept, pin a result as the baseline.

    Exit codes: 0 pass, 1 fail, 10 ambiguous, 11 invalid: something is missing, unverified or not comparable.
    """
    from harness.gate import Limits, judge
    from harness.gate_data import read_baseline, read_results
    from harness.gate_report import lines, write

    limits = Limits.parse([max_regression, *(regime or ())])
    now = read_results(result)
    if accept is not None:
        pin = _accept(now, baseline, accept)
        if json:
            typer.echo(pin.model_dump_json(indent=2))
        return
    pinned = read_baseline(baseline)

    def decide(results: Results) -> Verdict:
        return judge(results, pinned, limits, ratio)

    verdict = _settle(now, decide, _Again(again, device, budget)) if again else decide(now)
    write(verdict, markdown, junit)
    typer.echo(verdict.model_dump_json(indent=2) if json else "\n".join(lines(verdict)))
    sys.exit(verdict.exit_code)


class _Again:
    """Measures benchmarks of a file again, with the submissions that they came from."""

    def __init__(self, directories: list[Path], device: str, budget_s: float) -> None:
        from harness.gate_measure import Bench, Budget

        self.bench = Bench(device)
        self._targets = {target.submission.manifest.name: target for target in map(self.bench.target, directories)}
        self._budget = Budget(budget_s)

    def __call__(self, benchmark: Benchmark) -> Benchmark | str | None:
        """One more sitting; what is wrong; or None once the budget is spent."""
        target = self._targets.get(benchmark.submission.name)
        if target is None:
            return f"{benchmark.submission.name} is not among the submissions of --again"
        if target.submission.tree_sha256 != benchmark.submission.tree_sha256:
            return f"{target.submission.root} is not what the result was measured with; measure it anew"
        if self._budget.spent:
            return None
        from harness.gate_measure import NotVerifiedError

        try:
            return self.bench.again(target, benchmark)
        except NotVerifiedError as error:
            return str(error)


def _settle(now: Results, decide: Callable[[Results], Verdict], again: _Again) -> Verdict:
    from harness.gate import settle

    try:
        return settle(now, decide, again)[1]
    finally:
        again.bench.close()


def _accept(now: Results, path: Path, reason: str) -> Pin:
    """Pin the results at that path, in place of what is pinned there, whose history goes on."""
    from harness.gate import differences
    from harness.gate_data import accept, read_baseline, write_baseline

    previous = read_baseline(path) if path.exists() else None
    before = previous.benchmarks if previous is not None else {}
    common = [key for key in now.benchmarks if key in before]
    compares = bool(common) and not any(list(differences(now.benchmarks[key], before[key])) for key in common)
    pinned = accept(now, previous, reason, compares)
    write_baseline(pinned, path)
    assert pinned.pin is not None
    latest = pinned.pin.latest
    typer.echo(f"pinned {len(now.benchmarks)} benchmarks in {path}: {reason}", err=True)
    if latest.slowdown is not None and latest.drift is not None:
        since = f"{latest.drift - 1:+.1%} since the anchor of {pinned.pin.anchor_utc}"
        typer.echo(f"time {latest.slowdown - 1:+.1%} against the baseline before, {since}", err=True)
    elif previous is not None:
        typer.echo("it does not compare with the baseline before, so it becomes the anchor", err=True)
    return pinned.pin
