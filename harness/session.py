"""RunSession: Evaluators that write into a Run, so that it can be stopped anywhere and resumed.

Every further device has a thread, an evaluator and segments of its own, and takes its shapes from the same line: a shape is
measured wholly on one card.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Self

from harness import interrupts
from harness.build import BuildOptions
from harness.evaluate import Evaluator, Prepared, Progress
from harness.model import DataError
from harness.problem import Problem
from harness.problem_sets import ShapeSet
from harness.record import Record
from harness.run import SNAPSHOT, DeviceInfo, Header, Run, run_name, utc_now
from harness.sharing import share
from harness.submission import Submission

MUST_MATCH = ("profile", "name", "driver", "libraries")
"""What of a device must be equal for a run to go on: the card itself may be another of its kind."""


Done = Callable[[Record], None]


class RunSession:
    """Measures what a run still lacks. A context manager that holds the devices and the run's lock."""

    def __init__(self, evaluator: Evaluator, submission: Submission, run: Run) -> None:
        self.evaluator = evaluator
        self.submission = submission
        self.run = run
        evaluator.on_segment = self._begin_segment
        self._is_new = False
        self._helpers: list[Evaluator] = []
        self._stopped = threading.Event()
        self._lock = threading.RLock()

    @classmethod
    def start(
        cls, evaluator: Evaluator, submission: Submission, shapes: ShapeSet, parent: Path, command: tuple[str, ...]
    ) -> Self:
        """Begin a run on the evaluator's device.

        Raises:
            DataError: the submission's kind has not what the protocol asks for.
            InfraError: the device is in use, or the run's directory cannot be written.
        """
        with _entered(evaluator):
            evaluator.expect(submission)
            run = Run.create(parent, submission, _header(evaluator, submission, shapes, command))
            # What is built is the snapshot that was hashed, whatever becomes of the directory meanwhile.
            session = cls(evaluator, submission._replace(root=(run.path / SNAPSHOT).resolve()), run)
            session._is_new = True
            return session

    @classmethod
    def resume(cls, path: Path, device: str, build: BuildOptions) -> Self:
        """Go on with a run from its own snapshot and protocol.

        Raises:
            DataError: not a run, complete, in use, or its snapshot was changed.
        """
        run = Run.resume(path)
        try:
            submission = Submission.read(path / SNAPSHOT)
            if submission.tree_sha256 != run.header.submission.tree_sha256:
                raise DataError(f"{path / SNAPSHOT} was changed since the run began; start a new run.")
            if device == "auto" and run.header.device.profile == "cpu":
                device = "cpu"
            evaluator = Evaluator(device, run.header.protocol, build=build)
            with _entered(evaluator):
                evaluator.expect(submission)
                _check_device(evaluator.info, run.header.device)
                return cls(evaluator, submission, run)
        except BaseException:
            run.close()
            raise

    def join(self, devices: Sequence[str], build: BuildOptions) -> None:
        """Have further devices measure as well. Where one cannot, a run that was only just begun is removed.

        Raises:
            DataError: one is of another kind than the run's.
            InfraError: one is not there, or in use.
        """
        try:
            for device in devices:
                helper = Evaluator(device, self.evaluator.protocol, build=build)
                with _entered(helper):
                    helper.expect(self.submission)
                    _check_device(helper.info, self.run.header.device)
                helper.on_segment = self._begin_segment
                self._helpers.append(helper)
        except BaseException:
            if self._is_new:
                shutil.rmtree(self.run.path, ignore_errors=True)
            raise

    def __enter__(self) -> Self:
        """The devices and the run are taken already, when the session is made."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Give back the devices and the run."""
        for evaluator in (self.evaluator, *self._helpers):
            evaluator.__exit__(kind, error, trace)
        self.run.close()

    def go(self, step: Progress | None, done: Done | None, stop_at: float | None = None) -> None:
        """Measure until nothing remains or `stop_at` (time.monotonic) has passed, looking at it between shapes."""
        waiting = deque(self.run.remaining())
        prepared = self.evaluator.prepare(self.submission, list(waiting), step)

        def work(evaluator: Evaluator) -> None:
            while not self._stopped.is_set() and (stop_at is None or time.monotonic() < stop_at):
                try:
                    problem = waiting.popleft()
                except IndexError:
                    return
                self._measure(evaluator, prepared, problem, done)
                if evaluator is self.evaluator:
                    interrupts.check()

        interrupts.check()
        share(work, (self.evaluator, *self._helpers), self._stopped)
        if not self.run.remaining():
            self.run.finish()

    def _measure(self, evaluator: Evaluator, prepared: Prepared, problem: Problem, done: Done | None) -> None:
        with self._lock:
            latest = self.run.latest().get(problem)
        first = 0 if latest is None else latest.attempt + 1
        for measured in evaluator.attempts(prepared, problem, first):
            with self._lock:
                if self._stopped.is_set():
                    return
                record = self.run.append(measured.record, measured.samples)
        if done is not None:
            with self._lock:
                done(record)

    def _begin_segment(self, info: DeviceInfo, secret: bytes, not_rankable: str) -> int:
        with self._lock:
            return self.run.begin_segment(info, secret, not_rankable).index


@contextlib.contextmanager
def _entered(evaluator: Evaluator) -> Iterator[None]:
    """Take the device, and give it back only if what follows fails."""
    evaluator.__enter__()
    try:
        yield
    except BaseException:
        evaluator.close(at_once=True)
        raise


def _header(evaluator: Evaluator, submission: Submission, shapes: ShapeSet, command: tuple[str, ...]) -> Header:
    info = evaluator.info
    return Header(
        name=run_name(submission.manifest.name, info.profile, submission.tree_sha256),
        created_utc=utc_now(),
        harness_version=version("hgemm-arena"),
        command=command,
        submission=submission.reference(),
        device=info,
        protocol=evaluator.protocol,
        shape_set=shapes.name,
        shapes_sha256=shapes.sha256,
        shapes=tuple(str(problem) for problem in shapes.problems),
    )


def _check_device(here: DeviceInfo, begun_on: DeviceInfo) -> None:
    """Refuse to mix what two kinds of machine measured.

    Raises:
        DataError: names what differs.
    """
    for field in MUST_MATCH:
        if getattr(here, field) != getattr(begun_on, field):
            raise DataError(
                f"the run was begun with {field} {getattr(begun_on, field)} and this machine has {getattr(here, field)}; "
                "start a new run here."
            )
