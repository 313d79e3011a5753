"""What a run shows: progress on standard error while it goes, its result on standard output when it ends."""

from __future__ import annotations

import time
from collections import Counter
from types import TracebackType
from typing import TYPE_CHECKING, Self

import typer

from harness.profiles import DeviceProfile
from harness.record import Interval, Record, Status
from harness.session import RunSession
from harness.timing.statistics import geomean_interval

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from harness.problem import Problem
    from harness.run import Run

DOUBLE_COST_NS = 200_000
"""A shape whose speed-of-light time is this long takes about twice as long as a tiny one. For the time left only."""


class RunDisplay:
    """Progress of a run on standard error: a live display, or one plain line per shape where that is no terminal."""

    def __init__(self, session: RunSession, quiet: bool) -> None:
        self._profile: DeviceProfile = session.evaluator.profile
        self._waiting: list[Problem] = session.run.remaining()
        self._total = len(session.run.header.problems)
        self._records = {problem: record for problem, record in session.run.latest().items() if problem not in self._waiting}
        self._quiet = quiet
        self._building = "planning"
        self._live: Live | None = None
        self._started = self._changed = time.monotonic()
        self._cost_done = self._left_s = 0.0

    def __enter__(self) -> Self:
        """Begin to show."""
        if not self._quiet:
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True)
            self._live = Live(console=console, transient=True, refresh_per_second=4, get_renderable=self._render)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Clear what was shown live."""
        if self._live is not None:
            self._live.stop()

    def step(self, done: int, total: int, what: str) -> None:
        """Take note of a compilation."""
        self._building = f"compiled {done}/{total} {what}" if done < total else ""
        self._started = time.monotonic()
        if self._quiet and done == total:
            typer.echo(f"compiled {total} source{'s' if total > 1 else ''}", err=True)

    def record(self, record: Record) -> None:
        """Take note of a shape's last record."""
        self._building, self._changed = "", time.monotonic()
        self._records[record.problem] = record
        self._waiting = [problem for problem in self._waiting if problem != record.problem]
        self._cost_done += self._cost(record.problem)
        per_cost = (self._changed - self._started) / self._cost_done
        self._left_s = per_cost * sum(map(self._cost, self._waiting))
        line = f"{len(self._records)}/{self._total} {outcome_line(record)}"
        if self._quiet:
            typer.echo(line, err=True)
        elif self._live is not None and record.status is not Status.VERIFIED:
            self._live.console.print(line, highlight=False, markup=False)

    def _cost(self, problem: Problem) -> float:
        return 1 + self._profile.roof_ns(problem) / DOUBLE_COST_NS

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        line = Table.grid(padding=(0, 2), expand=True)
        for ratio in (None, 1, None, None):
            line.add_column(no_wrap=True, ratio=ratio)
        now = self._building or (f"measuring {self._waiting[0]}" if self._waiting else "done")
        shapes = f"{len(self._records)}/{self._total} shapes"
        line.add_row(now, ProgressBar(self._total, len(self._records)), shapes, self._left())
        return Group(line, Text(self._standing(), no_wrap=True, overflow="ellipsis"))

    def _left(self) -> str:
        if not self._cost_done:
            return ""
        seconds = int(max(0.0, self._left_s - (time.monotonic() - self._changed)))
        return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} left"

    def _standing(self) -> str:
        counts = Counter(record.status for record in self._records.values())
        parts = [f"{counts[status]} {status}" for status in Status if counts[status]]
        speedups = [found for record in self._records.values() if (found := _first_speedup(record)) is not None]
        if speedups:
            parts.insert(0, f"geomean speedup {show_interval(geomean_interval(speedups))} over the best baseline")
        return ", ".join(parts)


def print_report(run: Run, as_json: bool) -> None:
    """Print what a run adds up to on standard output: tables for a person, or one RunReport."""
    from harness.run_report import report_of

    report = report_of(run)
    if as_json:
        typer.echo(report.model_dump_json(indent=2))
        return
    from harness.commands.tables import print_run

    print_run(report, run)


def outcome_line(record: Record) -> str:
    """What became of a shape, on one line."""
    if record.status is not Status.VERIFIED:
        return f"{record.problem} {record.status}, {record.reason}: {' '.join(record.detail.split())}"
    if not record.timings:
        return f"{record.problem} verified"
    timing = record.timings[0]
    speedup = show_interval(timing.speedups[timing.best_baseline])
    return f"{record.problem} verified, {timing.measure} speedup {speedup} over {timing.best_baseline}, {record.seconds:.1f} s"


def show_interval(interval: Interval) -> str:
    """A ratio with its 95 % interval: `0.812 (0.790-0.835)`."""
    return f"{interval.value:.3f} ({interval.low:.3f}-{interval.high:.3f})"


def _first_speedup(record: Record) -> Interval | None:
    if not record.timings:
        return None
    timing = record.timings[0]
    return timing.speedups[timing.best_baseline]
