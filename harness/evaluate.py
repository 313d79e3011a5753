"""Evaluator: from a submission and problems to records, on one device, through a worker that it keeps warm."""

from __future__ import annotations

import secrets
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from harness.build import Artifact, BuildFailure, BuildOptions, build_kernels
from harness.channel import WorkerDied, WorkerTimeout
from harness.devices import MachineFault, SubmissionFault
from harness.drivers import Driver, open_driver
from harness.machine import DeviceLock, choose_device, why_not_rankable
from harness.measurement import Job, Measured, Measurement
from harness.model import DataError, InfraError
from harness.plan import Kernel, Plan, Unsupported
from harness.planner import SNAPSHOT, PlanFailure, PlanOutcome, make_plans
from harness.problem import Problem
from harness.profiles import DeviceProfile
from harness.protocol import Protocol, Purpose, protocol_for
from harness.record import Mode, Reason, Record, Status
from harness.run import DeviceInfo
from harness.seeds import shape_seed
from harness.submission import Kind, Submission

MAX_ATTEMPTS = 3
"""Attempts at a shape whose failures are the machine's."""
MAX_DEATHS = 5
"""Workers that a submission may cost before the rest of its shapes are not attempted."""

SegmentHook = Callable[[DeviceInfo, bytes, str], int]
"""Told of every worker start (device, secret, why it cannot rank); returns the segment's index."""
Progress = Callable[[int, int, str], None]
"""Told how far a long step is: done, total, what."""


class Prepared(NamedTuple):
    """A submission with its plans made and its kernels built, for one device."""

    submission: Submission
    outcomes: dict[Problem, PlanOutcome]
    builds: dict[str, Artifact | BuildFailure]
    """By `Kernel.sha256()`."""


class Evaluator:
    """Measures submissions on one device.

    A context manager: it holds the device's lock and a warm worker until it is closed.

    Args:
        device: `cpu`, `cuda:N`, or `auto`: the first CUDA device, else the CPU.
        protocol: how to measure; default is the device's full protocol.
        purpose: shorthand for that purpose's protocol.
        build: options of the build.
    """

    def __init__(
        self,
        device: str = "auto",
        protocol: Protocol | None = None,
        *,
        purpose: Purpose = Purpose.FULL,
        build: BuildOptions | None = None,
    ) -> None:
        choice = choose_device(device)
        self.device = choice.name
        self.profile: DeviceProfile = choice.profile
        self.protocol = protocol or protocol_for(self.profile, purpose)
        self._build_options = build or BuildOptions()
        self.on_segment: SegmentHook = self._count_segments
        self._lock = DeviceLock(choice.uuid)
        self._driver: Driver | None = None
        self._segments = 0
        self._segment = 0
        self._secret = b""
        self._not_rankable = ""
        self._native = self.profile.is_cpu
        self._tenant = ""
        self._deaths: dict[str, int] = {}
        self._known: dict[Problem, dict[str, dict[str, str]]] = {}

    def __enter__(self) -> Self:
        """Take the device.

        Raises:
            InfraError: another process holds it.
        """
        self._lock.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Let the worker end and give the device back."""
        self.close(at_once=kind is not None)

    def close(self, at_once: bool = False) -> None:
        """End the worker, and give the device back."""
        driver, self._driver, self._secret = self._driver, None, b""
        if driver is not None and at_once:
            driver.kill()
        elif driver is not None:
            driver.close()
        self._lock.release()

    def abandon(self) -> None:
        """From another thread: end the worker, whatever it is at."""
        driver = self._driver
        if driver is not None:
            driver.kill()

    @property
    def info(self) -> DeviceInfo:
        """The device as the worker sees it; starts the worker."""
        return self._ready().info

    def expect(self, submission: Submission) -> None:
        """End a worker that this submission may not use: of the other kind, or in which host code of another one ran.

        Raises:
            DataError: the protocol asks for what its kind does not have.
        """
        native, identity = submission.manifest.kind is Kind.NATIVE, submission.tree_sha256
        if native and any(measure.mode is Mode.SERVER for measure in self.protocol.measures):
            raise DataError("server mode takes submissions of kind device only; leave it out of --modes.")
        if native != self._native or (native and self._tenant not in ("", identity)):
            self._replace_worker()
        self._native, self._tenant = native, identity

    def prepare(self, submission: Submission, problems: Sequence[Problem], progress: Progress | None = None) -> Prepared:
        """Plan and build; needs no device. What fails becomes a record later."""
        return prepare(submission, problems, self.profile, self._build_options, progress)

    def evaluate(self, submission: Submission | Path, problems: Iterable[Problem]) -> Iterator[Record]:
        """Measure every problem; one record each, in order.

        Raises:
            DataError: the submission cannot be read.
            InfraError: the device cannot be opened.
        """
        if isinstance(submission, Path):
            submission = Submission.read(submission)
        problems = list(problems)
        prepared = self.prepare(submission, problems)
        for problem in problems:
            for measured in self.attempts(prepared, problem):
                last = measured.record
            yield last

    def attempts(self, prepared: Prepared, problem: Problem, first_attempt: int = 0) -> Iterator[Measured]:
        """Measure one problem, again while the machine is at fault; every attempt is yielded, the last one counts."""
        early = self._without_device(prepared, problem, first_attempt)
        if early is not None:
            yield Measured(early, ())
            return
        for attempt in range(first_attempt, first_attempt + MAX_ATTEMPTS):
            measured = self._attempt(prepared, problem, attempt)
            yield measured
            if measured.record.status is not Status.INFRA_ERROR:
                return

    def _without_device(self, prepared: Prepared, problem: Problem, attempt: int) -> Record | None:
        """The record of a problem that never reaches the device, or None."""
        outcome = prepared.outcomes[problem]
        if isinstance(outcome, Unsupported):
            return self._refusal(problem, attempt, Status.UNSUPPORTED, Reason.DECLARED, outcome.reason)
        if isinstance(outcome, PlanFailure):
            return self._refusal(problem, attempt, Status.REJECTED, outcome.reason, outcome.detail)
        for kernel in outcome.kernels.values():
            build = prepared.builds[kernel.sha256()]
            if isinstance(build, BuildFailure):
                return self._refusal(problem, attempt, Status.REJECTED, build.reason, build.message)
        if self._deaths.get(prepared.submission.tree_sha256, 0) >= MAX_DEATHS:
            detail = f"the submission ended its worker {MAX_DEATHS} times, so the rest was not attempted"
            return self._refusal(problem, attempt, Status.NOT_ATTEMPTED, Reason.GAVE_UP, detail)
        return None

    def _refusal(self, problem: Problem, attempt: int, status: Status, reason: Reason, detail: str) -> Record:
        return Record(
            problem=problem,
            attempt=attempt,
            segment=self._segment,
            status=status,
            reason=reason,
            detail=detail,
            measures=self.protocol.measures,
            baselines=self.protocol.baselines,
            rankable=self._rankable,
        )

    @property
    def _rankable(self) -> bool:
        return not self._not_rankable and not self.profile.is_cpu and self.protocol.purpose is Purpose.FULL

    def again(self, prepared: Prepared, record: Record) -> Record:
        """Measure what a record tells of once more, from its own seed: the same inputs, orders and arrivals. Never rankable."""
        early = self._without_device(prepared, record.problem, record.attempt)
        measured = early or self._attempt(prepared, record.problem, record.attempt, record.seed).record
        return measured.model_copy(update={"rankable": False})

    def _attempt(self, prepared: Prepared, problem: Problem, attempt: int, seed: str = "") -> Measured:
        self.expect(prepared.submission)
        try:
            driver = self._in_segment()
        except (WorkerDied, WorkerTimeout, MachineFault) as error:
            self._replace_worker()
            detail = f"the worker did not start: {error}"
            return Measured(self._refusal(problem, attempt, Status.INFRA_ERROR, Reason.WORKER_LOST, detail), ())
        measurement = self._measurement(driver, prepared, problem, attempt, seed)
        job = measurement.job
        try:
            return measurement.run()
        except SubmissionFault as error:
            if error.fatal:
                self._bury(prepared)
            return self._failed(measurement, job, Status.REJECTED, error.reason, str(error))
        except MachineFault as error:
            if error.fatal:
                self._replace_worker()
            return self._failed(measurement, job, Status.INFRA_ERROR, error.reason, str(error))
        except WorkerTimeout as error:
            return self._hung(measurement, prepared, job, error)
        except WorkerDied as error:
            return self._died(measurement, prepared, job, error)

    def measurement(self, prepared: Prepared, problem: Problem) -> Measurement:
        """The procedure for one problem, to be driven step by step.

        Raises:
            SubmissionFault: the problem never reaches the device: no plan, or a kernel that does not build.
        """
        early = self._without_device(prepared, problem, 0)
        if early is not None and early.reason is not None:
            raise SubmissionFault(early.reason, early.detail)
        self.expect(prepared.submission)
        return self._measurement(self._in_segment(), prepared, problem, 0, "")

    def _measurement(self, driver: Driver, prepared: Prepared, problem: Problem, attempt: int, seed: str) -> Measurement:
        plan = prepared.outcomes[problem]
        assert isinstance(plan, Plan)
        job = Job(
            problem=problem,
            plan=plan,
            artifacts={name: _artifact(prepared, kernel) for name, kernel in plan.kernels.items()},
            attempt=attempt,
            segment=self._segment,
            seed=seed or shape_seed(self._secret, problem, attempt),
            rankable=self._rankable,
        )
        return Measurement(driver, self.protocol, job, self._known.setdefault(problem, {}))

    def _hung(self, measurement: Measurement, prepared: Prepared, job: Job, error: WorkerTimeout) -> Measured:
        if measurement.blames_submission:
            self._bury(prepared)
            detail = f"it did not finish within the deadline of {self.protocol.deadline_s:.0f} s"
            return self._failed(measurement, job, Status.REJECTED, Reason.DEADLINE, detail)
        self._replace_worker()
        return self._failed(measurement, job, Status.INFRA_ERROR, Reason.DEVICE_ERROR, f"a baseline hung: {error}")

    def _died(self, measurement: Measurement, prepared: Prepared, job: Job, error: WorkerDied) -> Measured:
        # SIGKILL comes from outside (a person, the kernel's memory killer); nothing proves that the submission caused it.
        if measurement.blames_submission and error.returncode != -signal.SIGKILL:
            self._bury(prepared)
            return self._failed(measurement, job, Status.REJECTED, Reason.CRASH, str(error))
        self._replace_worker()
        return self._failed(measurement, job, Status.INFRA_ERROR, Reason.WORKER_LOST, str(error))

    def _failed(self, measurement: Measurement, job: Job, status: Status, reason: Reason, detail: str) -> Measured:
        record = self._refusal(job.problem, job.attempt, status, reason, detail)
        update = {"verification": measurement.verification(), "seed": job.seed, "plan_sha256": job.plan.sha256()}
        return Measured(record.model_copy(update=update), ())

    def _bury(self, prepared: Prepared) -> None:
        """The submission cost a worker."""
        identity = prepared.submission.tree_sha256
        self._deaths[identity] = self._deaths.get(identity, 0) + 1
        self._replace_worker()

    def _replace_worker(self) -> None:
        driver, self._driver, self._secret = self._driver, None, b""
        if driver is not None:
            driver.kill()

    def _ready(self) -> Driver:
        """A running worker. One that ended between shapes is replaced, since nobody knows who is to blame."""
        if self._driver is not None and not self._driver.alive:
            self._replace_worker()
        if self._driver is None:
            self._driver = open_driver(self.device, self._native)
        return self._driver

    def _in_segment(self) -> Driver:
        """A running worker; a fresh one begins a segment and draws its secret only now, after everything is built."""
        driver = self._ready()
        if not self._secret:
            self._secret = secrets.token_bytes(32)
            self._not_rankable = why_not_rankable(driver.info)
            self._segment = self.on_segment(driver.info, self._secret, self._not_rankable)
        return driver

    def _count_segments(self, info: DeviceInfo, secret: bytes, not_rankable: str) -> int:
        self._segments += 1
        return self._segments - 1


def prepare(
    submission: Submission,
    problems: Sequence[Problem],
    profile: DeviceProfile,
    options: BuildOptions | None = None,
    progress: Progress | None = None,
) -> Prepared:
    """Plan and build for a device, which need not be here. What fails is in the result.

    Raises:
        InfraError: a compiler is missing, or the cache is not writable or full.
    """
    outcomes = make_plans(submission, problems, profile)
    kernels: dict[str, Kernel] = {}
    for outcome in outcomes.values():
        if isinstance(outcome, Plan):
            kernels.update({kernel.sha256(): kernel for kernel in outcome.kernels.values()})
    with tempfile.TemporaryDirectory(prefix="hgemm-build-") as directory:
        # What is built is what was read and hashed, whatever plan.py did to the submission's directory meanwhile.
        copy = Path(directory) / SNAPSHOT
        submission.write_to(copy)
        return Prepared(submission, outcomes, build_kernels(copy, kernels.values(), profile, options, progress))


def _artifact(prepared: Prepared, kernel: Kernel) -> str:
    build = prepared.builds[kernel.sha256()]
    if isinstance(build, BuildFailure):
        raise InfraError(f"{kernel.entry} was not built, yet its plan was run; please report this.")
    return str(build.path)
