"""Search: many configurations over many problems on one device, in one process, resumable.

Every problem gets its most promising configurations timed briefly, in batches, so that stopping anywhere has treated all
problems alike. Then the fastest of each problem are verified and timed against the anchor by the harness's protocol
`screen`. What is wrong is found there, however fast it was.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from agents.analytic import estimate_ns, ranked_all
from agents.config import KernelConfig
from agents.effort import Effort
from agents.families.common import Source
from agents.journal import Final, Heat, Journal, Segment
from agents.measuring import Candidate, Failed, Screener
from agents.space import Space, kernels_for, plan_for, sources_for
from harness.artifacts import Artifact
from harness.build import BuildOptions, build_kernels
from harness.plan import Kernel
from harness.problem import Problem
from harness.rewards import MEASURE
from harness.sharing import share

Progress = Callable[[str], None]


class Line(NamedTuple):
    """What devices take their candidates from."""

    step: Callable[[Screener, Problem, KernelConfig], None]
    """What is done with each."""
    candidates: Iterator[tuple[int, tuple[Problem, KernelConfig]]]
    """Numbered from 1."""
    end: float | None
    """By time.monotonic()."""


class Search:
    """What is to be measured, what was, and what comes next."""

    def __init__(self, space: Space, problems: Sequence[Problem], journal: Journal, effort: Effort) -> None:
        self.space = space
        self.problems = problems
        self.journal = journal
        self.effort = effort
        self.artifacts: dict[str, Path] = {}
        self._candidates = ranked_all(space, problems, effort.candidates, distinct=True)
        self._heats: dict[Problem, dict[KernelConfig, Heat]] = defaultdict(dict)
        self._finals: dict[Problem, dict[KernelConfig, Final]] = defaultdict(dict)
        self._dangerous: set[str] = set()
        self._taken: set[tuple[bool, Problem, KernelConfig]] = set()
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        for line in journal.lines:
            self._note(line)

    def build(self, directory: Path, options: BuildOptions | None = None, progress: Progress | None = None) -> None:
        """Build every candidate's kernels through the cache; configurations that do not build well are left out.

        Args:
            directory: where sources are written.
            options: how to build.
            progress: told how far it is.
        """
        sources: dict[str, Source] = {}
        kernels: dict[str, Kernel] = {}
        for problem, config in self._buildable():
            if any(name not in kernels for name in kernels_for(config, problem)):
                sources.update({source.name: source for source in sources_for(config, problem)})
                kernels.update(plan_for(config, problem, self.space.device).kernels)
        (directory / "kernels").mkdir(parents=True, exist_ok=True)
        for source in sources.values():
            (directory / source.path).write_text(source.text, encoding="utf-8")

        def step(done: int, total: int, name: str) -> None:
            if progress is not None and (done % 50 == 0 or done == total):
                progress(f"built {done}/{total}")

        built = build_kernels(directory, kernels.values(), self.space.device, options, step)
        for name, kernel in kernels.items():
            result = built[kernel.sha256()]
            if isinstance(result, Artifact) and not result.report.spill_store_bytes and not result.report.serialized_wgmma:
                self.artifacts[name] = result.path

    def _buildable(self) -> Iterator[tuple[Problem, KernelConfig]]:
        """What may be measured: candidates with their variants, and what an earlier search found fastest."""
        for problem, configs in self._candidates.items():
            for first in configs:
                yield from ((problem, variant) for variant in self.space.variants(first, problem))
        for problem in tuple(self._heats):
            fastest = self._fastest(problem)
            if fastest is not None and fastest in self.space.index:
                yield problem, fastest

    def run(self, screeners: Sequence[Screener], budget_s: float | None, progress: Progress | None = None) -> None:
        """Measure what is missing until the budget is spent, looking at the clock between candidates.

        Args:
            screeners: one for each device; they take their candidates from the same line.
            budget_s: seconds of measuring; None to measure everything.
            progress: told how far it is.
        """
        started = time.monotonic()
        for screener in screeners:
            self._append(Segment.here(screener.info, screener.protocol))
        ends = (None, None) if budget_s is None else (started + budget_s * self.effort.heats_share, started + budget_s)
        for step, remaining, end in ((self._heat, self._next_heats, ends[0]), (self._final, self._next_finals, ends[1])):
            line = Line(step, enumerate(remaining(), start=1), end)

            def work(screener: Screener, line: Line = line) -> None:
                self._work(screener, line, started, progress)

            share(work, screeners, self._stopped)

    def _work(self, screener: Screener, line: Line, started: float, progress: Progress | None) -> None:
        while not self._stopped.is_set() and (line.end is None or time.monotonic() < line.end):
            with self._lock:
                count, candidate = next(line.candidates, (0, None))
            if candidate is None:
                return
            line.step(screener, *candidate)
            if progress is not None and count % 100 == 0:
                progress(f"{line.step.__name__.strip('_')} {count}, {time.monotonic() - started:.0f} s")

    def best(self) -> dict[Problem, Final]:
        """The verified configuration of each problem that beats the anchor by most, where there is one."""
        found = {}
        for problem, finals in self._finals.items():
            verified = [final for final in finals.values() if speedup(final) is not None]
            if verified:
                found[problem] = max(verified, key=lambda final: speedup(final) or 0.0)
        return found

    def _next_heats(self) -> Iterator[tuple[Problem, KernelConfig]]:
        for start in range(0, self.effort.candidates, self.effort.batch):
            for problem in self.problems:
                for config in self._candidates[problem][start : start + self.effort.batch]:
                    if config not in self._heats[problem] and self._is_measurable(config, problem):
                        yield self._take(problem, config, final=False)
        for _ in range(0, self.effort.variants, self.effort.batch):
            for problem in self.problems:
                for config in self._next_variants(problem):
                    yield self._take(problem, config, final=False)
        for problem in self.problems:
            for config in self._next_transfers(problem):
                yield self._take(problem, config, final=False)

    def _next_variants(self, problem: Problem) -> list[KernelConfig]:
        """A batch of those that divide the problem as its fastest configurations do and were not timed yet."""
        heats, timed = self._heats[problem], self._timed(problem)
        had = sum(config not in self._candidates[problem] for config in heats)
        most = max(0, min(self.effort.batch, self.effort.variants - had))
        leaders = sorted(timed, key=lambda config: timed[config])[: self.effort.leaders]
        found = dict.fromkeys(variant for leader in leaders for variant in self.space.variants(leader, problem))
        new = [c for c in found if c not in heats and (False, problem, c) not in self._taken]
        left = [c for c in new if self._is_measurable(c, problem)]
        return sorted(left, key=lambda config: estimate_ns(config, problem, self.space.device))[:most]

    def _next_transfers(self, problem: Problem) -> list[KernelConfig]:
        """What is fastest for the most similar problems, or for their transposes with P and Q in each other's place."""
        found: dict[KernelConfig, None] = {}
        had = self._heats[problem]
        others = ((other, mirrored) for other in self._heats if other.track is problem.track for mirrored in (False, True))
        for other, mirrored in sorted(others, key=lambda pair: _unlikeness(problem, *pair)):
            if len(found) == self.effort.transfers:
                break
            fastest = self._fastest(other)
            config = None if fastest is None else fastest.model_copy(update={"swapped": fastest.swapped ^ mirrored})
            if config is None or config in had or not self.space.is_legal(config, problem):
                continue
            if self._is_measurable(config, problem) and (False, problem, config) not in self._taken:
                found[config] = None
        return list(found)

    def _timed(self, problem: Problem) -> dict[KernelConfig, float]:
        """Nanoseconds of what was timed."""
        return {config: heat.launch_ns for config, heat in self._heats[problem].items() if heat.launch_ns is not None}

    def _fastest(self, problem: Problem) -> KernelConfig | None:
        timed = self._timed(problem)
        return min(timed, key=lambda config: timed[config], default=None)

    def _next_finals(self) -> Iterator[tuple[Problem, KernelConfig]]:
        """First every problem's fastest, then every problem's second, and so on; a wrong one makes room for the next."""
        for _ in range(self.effort.finalists):
            for problem in self.problems:
                config = self._next_finalist(problem)
                if config is not None:
                    yield self._take(problem, config, final=True)

    def _next_finalist(self, problem: Problem) -> KernelConfig | None:
        timed, finals = self._timed(problem), self._finals[problem]
        right = [config for config in timed if config not in finals or speedup(finals[config]) is not None]
        if not right or sum(config in finals for config in right) >= self.effort.finalists:
            return None
        limit_ns = min(timed[config] for config in right) * self.effort.margin
        new = [c for c in right if c not in finals and (True, problem, c) not in self._taken]
        left = [c for c in new if timed[c] <= limit_ns and self._is_measurable(c, problem)]
        return min(left, key=lambda config: timed[config], default=None)

    def _heat(self, screener: Screener, problem: Problem, config: KernelConfig) -> None:
        try:
            timed = screener.heat(self._candidate(problem, config))
        except Failed as failed:
            self._append(Heat(problem=problem, config=config, failure=failed.reason[:300], fatal=failed.fatal))
            return
        self._append(
            Heat(
                problem=problem,
                config=config,
                launch_ns=timed.launch_ns,
                window_ns=timed.window_ns,
                launches=timed.launches,
            )
        )

    def _final(self, screener: Screener, problem: Problem, config: KernelConfig) -> None:
        try:
            record = screener.measure(self._candidate(problem, config))
        except Failed as failed:
            self._append(Final(problem=problem, config=config, failure=failed.reason[:300]))
            return
        self._append(Final(problem=problem, config=config, record=record))

    def _candidate(self, problem: Problem, config: KernelConfig) -> Candidate:
        plan = plan_for(config, problem, self.space.device)
        return Candidate(problem, plan, {name: self.artifacts[name] for name in plan.kernels})

    def _is_measurable(self, config: KernelConfig, problem: Problem) -> bool:
        names = kernels_for(config, problem)
        return all(name in self.artifacts and name not in self._dangerous for name in names)

    def _take(self, problem: Problem, config: KernelConfig, final: bool) -> tuple[Problem, KernelConfig]:
        """Mark a candidate as on its way, so that no other device is given it as well."""
        self._taken.add((final, problem, config))
        return problem, config

    def _append(self, line: Segment | Heat | Final) -> None:
        with self._lock:
            if self._stopped.is_set():
                return
            self.journal.append(line)
            self._note(line)

    def _note(self, line: Segment | Heat | Final) -> None:
        if isinstance(line, Heat):
            self._heats[line.problem][line.config] = line
            if line.fatal:
                self._dangerous.update(kernels_for(line.config, line.problem))
        elif isinstance(line, Final):
            self._finals[line.problem][line.config] = line


def _unlikeness(problem: Problem, other: Problem, mirrored: bool) -> float:
    """How far problems are apart: the octaves between their sides, and a little for a transpose."""
    m, n = (other.n, other.m) if mirrored else (other.m, other.n)
    return sum(abs(math.log2(a / b)) for a, b in ((problem.m, m), (problem.n, n), (problem.k, other.k))) + 0.1 * mirrored


def speedup(final: Final) -> float | None:
    """Lower end of the interval of the anchor's time over the candidate's, offline and cold; null if it was not verified."""
    if final.record is None:
        return None
    timing = next((timing for timing in final.record.timings if timing.measure == MEASURE), None)
    return None if timing is None else timing.speedups[final.record.baselines[-1]].low


def winners(lines: Sequence[Segment | Heat | Final]) -> Mapping[Problem, KernelConfig]:
    """Per problem the verified configuration that beats the anchor by most; where none was verified, the fastest in the heats.

    A kernel that was found wrong for any problem stands for none.
    """
    finals = [line for line in lines if isinstance(line, Final)]
    wrong = {name for final in finals if speedup(final) is None for name in kernels_for(final.config, final.problem)}
    found: dict[Problem, tuple[float, KernelConfig]] = {}
    for line in lines:
        if isinstance(line, Segment) or wrong & set(kernels_for(line.config, line.problem)):
            continue
        # A speedup is positive and a heat counts by its negative time, so that any final beats any heat.
        value = speedup(line) if isinstance(line, Final) else None if line.launch_ns is None else -line.launch_ns
        if value is not None and value > found.get(line.problem, (-math.inf, None))[0]:
            found[line.problem] = (value, line.config)
    return {problem: config for problem, (_, config) in found.items()}
