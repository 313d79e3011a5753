"""Tables for a person: a run as a whole, and one record of it. Rounding happens here and nowhere before."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.protocol import CPU_BASELINES, CUDA_BASELINES, Purpose
from harness.record import SUBMISSION, Interval, L2State, Mode, Record, Status, Timing, Verification
from harness.scores import BEST, Regime, Score, Tables, regime

if TYPE_CHECKING:
    from harness.profiles import DeviceProfile
    from harness.run import Run
    from harness.run_report import RunReport

PIPE_WIDTH = 120
"""Columns of output that goes to a file or a pipe."""
SHOWN_WORST = 5
SHOWN_FAILURES = 20

CPU_IS_WORTH = (
    "Measured on a CPU, so it only exercises the pipeline: these ranks say nothing about a GPU. "
    f"The baselines {', '.join(name for name in CUDA_BASELINES if name not in CPU_BASELINES)} need CUDA and were not run."
)


def stdout() -> Console:
    """Standard output; as wide as the terminal, or of a fixed width where there is none."""
    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def say(console: Console, text: str) -> None:
    """A line of text: wrapped between words on a terminal, whole in a file or a pipe."""
    console.print(text, soft_wrap=not console.is_terminal)


def plural(count: int, noun: str) -> str:
    """A count with its noun: `1 kernel`, `2 kernels`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def plain_table(*heads: str) -> Table:
    """A table without lines."""
    return Table(*heads, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")


def print_run(report: RunReport, run: Run) -> None:
    """The result of a run: scores by regime, the worst shapes, what was not verified, and what it is worth."""
    console = stdout()
    console.print(f"{report.run.submission} {report.run.version} on {report.run.device}, shapes {report.run.shape_set}")
    console.print(_counts(report))
    tables = report if report.complete else report.partial
    if tables is not None:
        _print_tables(console, tables, report)
    _print_failures(console, report)
    console.print()
    if len(report.seconds) > 1:
        parts = ", ".join(f"{name} {seconds:,.0f}" for name, seconds in report.seconds.items())
        say(console, f"It took {sum(report.seconds.values()):,.0f} s of one device, builds not counted: {parts}.")
    for sentence in _worth(report):
        say(console, sentence)
    say(console, f"one shape: hgemm show {run.path} --shape {run.header.shapes[0]}")
    if not report.run.complete:
        say(console, f"the rest:  hgemm run --resume {run.path}")


def print_record(record: Record, device: DeviceProfile) -> None:
    """One record whole: times in µs, what each contender chose, and what verification measured."""
    console = stdout()
    problem = record.problem
    status = f"{record.status}" if record.reason is None else f"{record.status}, {record.reason}"
    console.print(f"{problem} {status}, track {problem.track}, attempt {record.attempt}, {record.seconds:.1f} s")
    if record.reason is not None:
        say(console, f"{record.detail}\n({record.reason.__doc__})")
    roof_us = device.roof_ns(problem) / 1000
    console.print(f"regime {regime(problem, device)}, speed of light {roof_us:,.2f} µs on {device.name}")
    for timing in record.timings:
        console.print()
        rounds = f"{timing.rounds} rounds ({timing.stopped}{_repeated(timing)})"
        say(console, f"{timing.measure}: {rounds}, best baseline {timing.best_baseline}, times per launch in µs")
        console.print(_contender_table(timing))
    for measure in record.not_applicable:
        console.print(f"\n{measure}: does not apply, one set of buffers does not fit in the cache")
    if record.verification is not None:
        console.print()
        console.print(_verification_table(record.verification))
        say(console, _verification_summary(record.verification))
    console.print(f"\nplan {record.plan_sha256 or 'none'}\nseed {record.seed or 'none'}, segment {record.segment}")


def _print_tables(console: Console, tables: Tables, report: RunReport) -> None:
    for mode, states in tables.scores.items():
        for l2_state, scores in states.items():
            shapes = scores[BEST].shapes
            scope = plural(shapes, "shape") if report.complete else f"{plural(shapes, 'verified shape')} only, so no score"
            console.print()
            console.print(f"{mode}, {l2_state}: speedup over each baseline ({scope})")
            console.print(_score_table(scores, tables.regimes[mode][l2_state]))
    worst = tables.worst.get(Mode.OFFLINE, {}).get(L2State.COLD, ())[:SHOWN_WORST]
    if worst:
        table = plain_table("worst shapes", "speedup", "95 % interval", "best baseline")
        table.columns[1].justify = table.columns[2].justify = "right"
        for row in worst:
            table.add_row(row.shape, _ratio(row.speedup), _ends(row.speedup), row.baseline)
        console.print()
        console.print(table)


def _score_table(scores: dict[str, Score], regimes: dict[str, dict[Regime, Score]]) -> Table:
    present = [member for member in Regime if member in regimes[BEST]]
    heads = [f"{member.replace('_', ' ')}\n({regimes[BEST][member].shapes})" for member in present]
    table = plain_table("baseline", "geomean", "95 % interval", "wins", "total\ntime", *heads)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, score in scores.items():
        table.add_row(
            "best per shape" if name == BEST else name,
            _ratio(score.geomean),
            _ends(score.geomean),
            f"{score.win_rate:.0%}",
            f"{score.total_time:.3f}",
            *(_ratio(regimes[name][member].geomean) for member in present),
        )
    return table


def _print_failures(console: Console, report: RunReport) -> None:
    if not report.not_verified:
        return
    table = plain_table("not verified", "status", "reason", "detail")
    table.columns[3].overflow = "fold"
    for outcome in report.not_verified[:SHOWN_FAILURES]:
        table.add_row(outcome.shape, outcome.status, outcome.reason, outcome.detail)
    console.print()
    console.print(table)
    if len(report.not_verified) > SHOWN_FAILURES:
        console.print(f"and {len(report.not_verified) - SHOWN_FAILURES} more: hgemm show {report.run.name} --json")


def _counts(report: RunReport) -> str:
    counts = report.counts
    others = [f"{number} {status.replace('_', ' ')}" for status in Status if (number := getattr(counts, status.value))]
    if counts.verified:
        others = others[1:]
    measured = sum(getattr(counts, status.value) for status in Status)
    if measured < counts.expected:
        others.append(f"{counts.expected - measured} not measured yet")
    return f"{counts.verified} of {plural(counts.expected, 'shape')} verified" + "".join(f", {other}" for other in others)


def _worth(report: RunReport) -> list[str]:
    """What the result can be used for."""
    sentences = []
    if report.run.profile == "cpu":
        sentences.append(CPU_IS_WORTH)
    elif not report.run.rankable:
        sentences.append(f"It cannot be ranked: {report.run.not_rankable_because}.")
    if report.run.purpose is not Purpose.FULL:
        sentences.append(f"It cannot be ranked: its protocol is for purpose {report.run.purpose}.")
    if not report.complete:
        sentences.append("It has no score: only a run that verifies every shape of its set does.")
    best = report.scores.get(Mode.OFFLINE, {}).get(L2State.COLD, {}).get(BEST)
    if best is not None and best.imprecise and report.rankable:
        sentences.append("Its geometric mean is known to no better than ±1 %, so it would be listed as imprecise.")
    return sentences


def _contender_table(timing: Timing) -> Table:
    clocked = any(contender.sm_clock_median_mhz is not None for contender in timing.contenders.values())
    numbers = ["median", "fastest", "slowest", "launches", *(["MHz"] if clocked else []), "speedup", "95 % interval"]
    table = plain_table("contender", *numbers, "B", "choice")
    for column in table.columns[1:-2]:
        column.justify = "right"
    table.columns[-1].overflow = "fold"
    order = sorted(timing.contenders, key=lambda name: (name != SUBMISSION, timing.contenders[name].launch_ns))
    for name in order:
        contender = timing.contenders[name]
        windows = (contender.window_median_ns, contender.window_min_ns, contender.window_max_ns)
        speedup = timing.speedups.get(name)
        table.add_row(
            name,
            *(f"{window / contender.launches_per_window / 1000:,.3f}" for window in windows),
            str(contender.launches_per_window),
            *([str(contender.sm_clock_median_mhz or "-")] if clocked else []),
            *((_ratio(speedup), _ends(speedup)) if speedup is not None else ("", "")),
            contender.layout,
            contender.description,
        )
    return table


def _verification_table(found: Verification) -> Table:
    table = plain_table("inputs", "draws", "outputs", "rms error", "worst block", "of the bound", "inexact")
    for column in table.columns[1:]:
        column.justify = "right"
    baselines = {f"{stats.inputs}, {name}": stats for name, stats in found.baselines.items()}
    for label, draw in {**{draw.inputs: draw for draw in found.draws}, **baselines}.items():
        sizes = [draw.rms_relative, draw.block_rms_relative]
        table.add_row(
            label,
            str(draw.draws),
            f"{draw.outputs:,}",
            *("not finite" if size is None else f"{size:.2e}" for size in sizes),
            "not finite" if draw.bound_ratio is None else f"{draw.bound_ratio:.2f}",
            str(draw.inexact),
        )
    return table


def _verification_summary(found: Verification) -> str:
    repeatable = {True: "equal inputs gave equal bits", False: "equal inputs gave different bits", None: "bits not compared"}
    return (
        f"class {found.precision_class or 'unknown'}; {repeatable[found.bitwise_repeatable]}; in timed windows "
        f"{found.timed_outputs_checked:,} outputs compared in full and {found.timed_outputs_projected:,} projected"
    )


def _repeated(timing: Timing) -> str:
    return f", {timing.repeated_rounds} repeated for their clocks" if timing.repeated_rounds else ""


def _ratio(interval: Interval) -> Text:
    style = "green" if interval.low > 1 else "red" if interval.high < 1 else ""
    return Text(f"{interval.value:.3f}", style=style)


def _ends(interval: Interval) -> str:
    return f"{interval.low:.3f}-{interval.high:.3f}"
