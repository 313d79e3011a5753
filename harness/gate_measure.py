"""Measuring for a gate: submissions on a device, as the benchmarks that a gate compares."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from harness.commands.devices import AUTO, device_for
from harness.evaluate import Evaluator, Prepared
from harness.gate_data import Benchmark, Sitting
from harness.measurement import Measured
from harness.model import HgemmError
from harness.problem import Problem
from harness.record import Measure, Status
from harness.submission import Submission

DEFAULT_BUDGET_S = 120.0


class NotVerifiedError(HgemmError):
    """A submission has no time at a shape."""

    exit_code = 1


class Target(NamedTuple):
    """A submission and the device that it is measured on."""

    submission: Submission
    device: str


class Bench:
    """Measures shapes of submissions, each device with one warm worker. A shape is measured once for all its measures.

    Args:
        device: `auto`, `cpu`, `cuda:0`, …
    """

    def __init__(self, device: str = AUTO) -> None:
        self._device = device
        self._evaluators: dict[str, Evaluator] = {}
        self._targets: dict[Path, Target] = {}
        self._prepared: dict[str, Prepared] = {}
        self._measured: dict[tuple[str, Problem], Measured] = {}

    def target(self, directory: Path) -> Target:
        """The submission of a directory, read once, and its device.

        Raises:
            DataError: it is no submission.
            InfraError: no device here runs it.
        """
        path = directory.resolve()
        if path not in self._targets:
            submission = Submission.read(directory)
            self._targets[path] = Target(submission, device_for(submission.manifest, self._device).name)
        return self._targets[path]

    def evaluator(self, target: Target) -> Evaluator:
        """The device's evaluator, which holds the device from now on.

        Raises:
            InfraError: another process holds it.
        """
        if target.device not in self._evaluators:
            evaluator = Evaluator(target.device)
            evaluator.__enter__()
            self._evaluators[target.device] = evaluator
        return self._evaluators[target.device]

    def prepare(self, target: Target, problems: Sequence[Problem]) -> None:
        """Plan and build for these problems at once."""
        prepared = self.evaluator(target).prepare(target.submission, problems)
        known = self._prepared.get(target.submission.tree_sha256)
        if known is not None:
            prepared = Prepared(target.submission, known.outcomes | prepared.outcomes, known.builds | prepared.builds)
        self._prepared[target.submission.tree_sha256] = prepared

    def measure(self, target: Target, problem: Problem, measure: Measure) -> Benchmark:
        """One shape in one measure.

        Raises:
            NotVerifiedError: the record is not verified, or the measure does not apply; the message names the reason.
        """
        key = (target.submission.tree_sha256, problem)
        if key not in self._measured:
            self._measured[key] = self._sit(target, problem)
        return self._benchmark(target, self._measured[key], measure)

    def again(self, target: Target, benchmark: Benchmark) -> Benchmark:
        """The benchmark with one more sitting.

        Raises:
            NotVerifiedError: the record is not verified this time.
        """
        fresh = self._benchmark(target, self._sit(target, benchmark.problem), benchmark.measure)
        return benchmark.model_copy(update={"sittings": (*benchmark.sittings, *fresh.sittings)})

    def close(self) -> None:
        """End the workers and give the devices back."""
        for evaluator in self._evaluators.values():
            evaluator.close()
        self._evaluators.clear()

    def _sit(self, target: Target, problem: Problem) -> Measured:
        known = self._prepared.get(target.submission.tree_sha256)
        if known is None or problem not in known.outcomes:
            self.prepare(target, [problem])
        *_, last = self.evaluator(target).attempts(self._prepared[target.submission.tree_sha256], problem)
        return last

    def _benchmark(self, target: Target, measured: Measured, measure: Measure) -> Benchmark:
        record, name = measured.record, target.submission.manifest.name
        if record.status is not Status.VERIFIED:
            detail = " ".join(record.detail.split())
            raise NotVerifiedError(f"{name} {record.problem} is {record.status}, {record.reason}: {detail}")
        if all(timing.measure != measure for timing in record.timings):
            raise NotVerifiedError(f"{name} {record.problem} was not timed in {measure}, which does not apply to it here")
        evaluator = self.evaluator(target)
        return Benchmark(
            submission=target.submission.reference(),
            device=evaluator.info,
            protocol=evaluator.protocol,
            harness_version=version("hgemm-arena"),
            measure=measure,
            sittings=(Sitting(record=record, samples=tuple(line for line in measured.samples if line.measure == measure)),),
        )


class Budget:
    """Seconds that may be spent; they run from when it is first asked."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._started: float | None = None

    @property
    def spent(self) -> bool:
        """Whether none is left."""
        self._started = self._started or time.monotonic()
        return not time.monotonic() - self._started < self._seconds
