"""What the pytest plugin does once it is used: collecting, measuring, reporting, and the gate when all is measured."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness.bench import WARM_SHARE_OF_L2
from harness.gate import Limits, Verdict, judge, settle
from harness.gate_data import EXTRA, Benchmark, InvalidGateError, Results, collect, read_baseline
from harness.gate_measure import DEFAULT_BUDGET_S, Bench, Budget, Target
from harness.gate_report import lines, write
from harness.machine import choose_device
from harness.model import DataError, HgemmError
from harness.problem import Problem
from harness.problem_sets import resolve_shapes
from harness.protocol import protocol_for
from harness.pytest_plugin import CLOCK, option
from harness.record import L2State, Measure, Mode
from harness.submission import MANIFEST_NAME, Submission

DEFAULT_MEASURE = "offline/cold"
KEPT_STATUS = frozenset({pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR})
"""Ways in which pytest itself failed: the gate has nothing to add."""


class Gate(NamedTuple):
    """What `--hgemm-gate` asks for."""

    baseline: Results
    limits: Limits
    ratio: str
    budget: Budget
    markdown: Path | None
    junit: Path | None


class HgemmSession:
    """The plugin of one pytest session.

    Raises:
        pytest.UsageError: an option is wrong.
        pytest.exit.Exception: a gate was asked for that could not judge anything; ends pytest with the code of `invalid`.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.bench = Bench(option(config, "device") or "auto")
        self._reported: dict[str, _Reported] = {}
        self._faults: list[str] = []
        self._doubles: list[Benchmark] = []
        self._verdict: Verdict | None = None
        self._manifests: list[Path] = []
        try:
            self._gate = self._read_gate()
            self._manifests = [_manifest(directory) for directory in option(config, "submission") or ()]
        except InvalidGateError as error:
            pytest.exit(f"hgemm gate: invalid: {error}", returncode=error.exit_code)
        except HgemmError as error:
            raise pytest.UsageError(str(error)) from error
        if self._manifests:
            named = config.args if config.args_source is pytest.Config.ArgsSource.ARGS else []
            config.args = [*named, *map(str, self._manifests)]

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """A submission that an option names is a file of benchmarks."""
        if file_path not in self._manifests:
            return None
        return SubmissionBenchmarks.from_parent(parent, path=file_path, session_of_hgemm=self)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Measure all submissions at one shape before the next: what is compared with each other lies close in time."""
        mine = [item for item in items if isinstance(item, SubmissionBenchmark)]
        order = {shape: place for place, shape in enumerate(dict.fromkeys(str(item.problem) for item in mine))}
        ordered = iter(sorted(mine, key=lambda item: order[str(item.problem)]))
        items[:] = [next(ordered) if isinstance(item, SubmissionBenchmark) else item for item in items]

    def measurer(self, fixture: Any) -> Measurer:
        """What the fixture `hgemm` gives to a test."""
        return Measurer(self, fixture)

    def report(self, fixture: Any, target: Target, benchmark: Benchmark) -> None:
        """Show a benchmark as pytest-benchmark's."""
        line = benchmark.sittings[0].lines["submission"]
        fixture.extra_info[EXTRA] = benchmark.model_dump(mode="json")
        CLOCK.replay(fixture, line.window_ns, line.launches_per_window)
        if benchmark.key in self._reported:
            self._doubles.append(benchmark)
        self._reported[benchmark.key] = _Reported(target, benchmark, fixture)

    def fault(self, text: str) -> None:
        """Take note of what keeps the gate from judging."""
        self._faults.append(text)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None]:
        """Judge before pytest-benchmark writes its files, so that they hold what was measured again."""
        try:
            if self._gate is not None and exitstatus not in KEPT_STATUS:
                self._verdict = self._judge(self._gate)
                session.exitstatus = _status(self._verdict, exitstatus)
        finally:
            self.bench.close()
        with warnings.catch_warnings():
            # Where warnings are errors, this one would end pytest with a traceback and the code of `fail`.
            warnings.filterwarnings("ignore", "Not saving anything")
            yield

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the verdict below pytest-benchmark's tables."""
        if self._verdict is None:
            return
        terminalreporter.section("hgemm gate")
        for line in lines(self._verdict):
            terminalreporter.write_line(line)

    def _read_gate(self) -> Gate | None:
        config = self._config
        path = option(config, "gate")
        if path is None:
            return None
        limits = Limits.parse(option(config, "max-regression") or ())
        if config.getoption("benchmark_disable", False) or config.getoption("benchmark_skip", False):
            raise InvalidGateError("benchmarks are disabled or skipped, so nothing would be measured")
        if config.getoption("numprocesses", None) or config.getoption("dist", "no") != "no":
            raise InvalidGateError("xdist runs tests side by side, where no time means anything; leave -n out")
        files = [None if (name := option(config, each)) is None else Path(name) for each in ("summary", "junit")]
        budget = Budget(_seconds(option(config, "budget")))
        return Gate(read_baseline(Path(path)), limits, option(config, "ratio") or "", budget, files[0], files[1])

    def _judge(self, gate: Gate) -> Verdict:
        now = collect([*(each.benchmark for each in self._reported.values()), *self._doubles], self._faults)
        now, verdict = settle(
            now,
            lambda results: judge(results, gate.baseline, gate.limits, gate.ratio),
            lambda benchmark: None if gate.budget.spent else self._again(benchmark),
        )
        write(verdict, gate.markdown, gate.junit)
        return verdict

    def _again(self, benchmark: Benchmark) -> Benchmark | str:
        target, _, fixture = self._reported[benchmark.key]
        try:
            more = self.bench.again(target, benchmark)
        except HgemmError as error:
            return str(error)
        line = more.sittings[-1].lines["submission"]
        for window_ns in line.window_ns:
            # pytest-benchmark divides by the first sitting's launches.
            fixture.stats.update(window_ns / line.launches_per_window / 1e9 * fixture.stats.iterations)
        fixture.extra_info[EXTRA] = more.model_dump(mode="json")
        return more


class Measurer:
    """The fixture `hgemm`: verifies and times one shape, and reports it."""

    def __init__(self, session: HgemmSession, fixture: Any) -> None:
        self._session = session
        self._fixture = fixture

    def __call__(self, submission: str | Path, shape: str | Problem, measure: str | Measure = DEFAULT_MEASURE) -> Any:
        """The record of a shape, verified and timed by the harness's protocol.

        Args:
            submission: its directory.
            shape: as MxNxK.
            measure: what the benchmark shows, such as `offline/warm`.

        Raises:
            pytest.fail.Exception: the record is not verified, or the machine cannot measure.
        """
        try:
            target = self._session.bench.target(Path(submission))
            problem = shape if isinstance(shape, Problem) else Problem.parse(shape, target.submission.manifest.track)
            wanted = measure if isinstance(measure, Measure) else parse_measure(measure)
            benchmark = self._session.bench.measure(target, problem, wanted)
        except HgemmError as error:
            # A test may swallow what is raised here; the gate still knows.
            self._session.fault(str(error).rstrip("."))
            pytest.fail(str(error), pytrace=isinstance(error, DataError))
        self._session.report(self._fixture, target, benchmark)
        return benchmark.sittings[0].record


class SubmissionBenchmarks(pytest.File):
    """A submission's manifest as a file of benchmarks."""

    def __init__(self, session_of_hgemm: HgemmSession, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._hgemm = session_of_hgemm

    def collect(self) -> Iterator[pytest.Item]:
        """One benchmark per shape and measure that applies to it."""
        try:
            target = self._hgemm.bench.target(self.path.parent)
            profile = choose_device(target.device).profile
            text = option(self.config, "shapes") or ("cpu" if profile.is_cpu else "quick")
            problems = resolve_shapes(text, target.submission.manifest.track).problems
        except HgemmError as error:
            raise self.CollectError(str(error)) from error
        for problem in problems:
            for measure in protocol_for(profile).measures:
                fits = problem.bytes_total <= WARM_SHARE_OF_L2 * profile.l2_bytes
                if measure.l2_state is L2State.COLD or fits:
                    name = f"{target.submission.manifest.name}[{problem}-{measure.mode}-{measure.l2_state}]"
                    yield SubmissionBenchmark.make(self, name, problem, measure)


class SubmissionBenchmark(pytest.Function):
    """One shape in one measure."""

    problem: Problem

    @classmethod
    def make(cls, parent: SubmissionBenchmarks, name: str, problem: Problem, measure: Measure) -> pytest.Item:
        """An item that uses the fixture as any test would."""

        def run(hgemm: Measurer) -> None:
            hgemm(parent.path.parent, problem, measure)

        item = cls.from_parent(parent, name=name, callobj=run)
        item.problem = problem
        item.add_marker(pytest.mark.hgemm)
        item.add_marker(pytest.mark.benchmark(group=f"{name.partition('[')[0]} {measure}"))
        return item

    def reportinfo(self) -> tuple[Path, int, str]:
        """Where a report says that the item is."""
        return self.path, 0, self.name


class _Reported(NamedTuple):
    """A benchmark that was measured in this session."""

    target: Target
    benchmark: Benchmark
    fixture: Any
    """pytest-benchmark's."""


def parse_measure(text: str) -> Measure:
    """Read `offline/cold`.

    Raises:
        DataError: it is no measure.
    """
    mode, _, state = text.partition("/")
    if mode not in set(Mode) or state not in set(L2State):
        raise DataError(f"{text!r} is no measure; write one as in {DEFAULT_MEASURE}.")
    return Measure(mode=Mode(mode), l2_state=L2State(state))


def _status(verdict: Verdict, exitstatus: int) -> int:
    """The gate's code, but a test that failed for a reason of its own still fails what the gate lets pass."""
    failed = exitstatus == pytest.ExitCode.TESTS_FAILED
    return 1 if failed and verdict.exit_code in (0, 10) else verdict.exit_code


def _manifest(directory: str) -> Path:
    """Path of the manifest of a submission that can be read."""
    Submission.read(Path(directory))
    return (Path(directory) / MANIFEST_NAME).resolve()


def _seconds(text: str | None) -> float:
    try:
        return DEFAULT_BUDGET_S if text is None else float(text)
    except ValueError as error:
        raise DataError(f"--hgemm-budget takes seconds, not {text!r}.") from error
