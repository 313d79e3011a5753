"""Screener: times one candidate after another on one device with the harness's own driver, and verifies those that matter."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from harness.channel import WorkerDied, WorkerTimeout
from harness.devices import MachineFault, SubmissionFault
from harness.drivers import Driver, open_driver
from harness.machine import DeviceLock, choose_device
from harness.measurement import Job, Measurement
from harness.messages import Prepare, Select
from harness.plan import Plan
from harness.problem import Problem
from harness.protocol import Protocol, Purpose, protocol_for
from harness.record import SUBMISSION, Record
from harness.run import DeviceInfo
from harness.seeds import derive, shape_seed
from harness.timing.statistics import median_ns

HEAT_WINDOW_NS = 500_000
"""A heat's windows last a fifth of this (harness.bench): enough to order candidates, a tenth of what a score takes."""
HEAT_DEADLINE_S = 15.0


class Candidate(NamedTuple):
    """A plan that can be measured."""

    problem: Problem
    """The problem."""
    plan: Plan
    """How it is computed."""
    artifacts: dict[str, Path]
    """Built file of each kernel of the plan."""


class HeatTime(NamedTuple):
    """What a heat measured. Nothing is verified in a heat."""

    launch_ns: float
    """Median time per operation."""
    window_ns: tuple[int, ...]
    """Its windows."""
    launches: int
    """Operations in each window."""


class Failed(Exception):
    """A candidate could not be measured."""

    def __init__(self, reason: str, fatal: bool, machine: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.fatal = fatal
        """Whether it cost the worker, so that its kernel should not be tried again."""
        self.machine = machine
        """Whether the machine is at fault."""


class Screener:
    """Holds a device and a warm worker. A context manager."""

    def __init__(self, device: str) -> None:
        choice = choose_device(device)
        self._name = choice.name
        self.profile = choice.profile
        self.protocol: Protocol = protocol_for(choice.profile, Purpose.SCREEN)
        self._lock = DeviceLock(choice.uuid)
        self._driver: Driver | None = None
        self._secret = secrets.token_bytes(32)
        self._count = 0
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
        driver, self._driver = self._driver, None
        if driver is not None:
            (driver.close if kind is None else driver.kill)()
        self._lock.release()

    def abandon(self) -> None:
        """From another thread: end the worker, whatever it is at."""
        driver = self._driver
        if driver is not None:
            driver.kill()

    @property
    def info(self) -> DeviceInfo:
        """The device as the worker sees it."""
        return self._ready().info

    def heat(self, candidate: Candidate) -> HeatTime:
        """Time a candidate briefly, cold, by the windows in which the harness sizes a score's.

        Raises:
            Failed: it cannot be bound or launched, hangs, or costs the worker.
        """
        artifacts = {name: str(path) for name, path in candidate.artifacts.items()}
        request = Prepare(problem=candidate.problem, plan=candidate.plan, artifacts=artifacts, window_ns=HEAT_WINDOW_NS)
        with self._faults() as driver:
            driver.deadline = time.monotonic() + HEAT_DEADLINE_S
            driver.prepare(request)
            selected = driver.select(
                Select(measure=self.protocol.measures[0], contenders=(SUBMISSION,), seed=self._seed(candidate.problem))
            )
        choice = selected.choices[SUBMISSION]
        launch_ns = median_ns(choice.selection_window_ns) / choice.selection_launches
        return HeatTime(launch_ns, choice.selection_window_ns, choice.selection_launches)

    def measure(self, candidate: Candidate) -> Record:
        """Verify a candidate and time it against the anchor: the harness's protocol `screen`, step by step.

        Raises:
            Failed: it cannot be bound or launched, hangs, or costs the worker. A wrong result is a rejected record.
        """
        problem = candidate.problem
        self._count += 1
        job = Job(
            problem=problem,
            plan=candidate.plan,
            artifacts={name: str(path) for name, path in candidate.artifacts.items()},
            attempt=0,
            segment=0,
            seed=shape_seed(self._secret, problem, self._count),
            rankable=False,
        )
        with self._faults() as driver:
            return Measurement(driver, self.protocol, job, self._known.setdefault(problem, {})).run().record

    @contextlib.contextmanager
    def _faults(self) -> Iterator[Driver]:
        """The driver; every fault becomes a Failed, and a worker that it cost is replaced at the next request."""
        driver = self._ready()
        try:
            yield driver
        except (SubmissionFault, MachineFault) as error:
            if error.fatal:
                self._bury()
            raise Failed(f"{error.reason}: {error}", error.fatal, isinstance(error, MachineFault)) from error
        except (WorkerTimeout, WorkerDied) as error:
            self._bury()
            raise Failed(f"{type(error).__name__}: {error}", fatal=True, machine=False) from error

    def _ready(self) -> Driver:
        if self._driver is not None and not self._driver.alive:
            self._bury()
        if self._driver is None:
            self._driver = open_driver(self._name)
        return self._driver

    def _bury(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.kill()

    def _seed(self, problem: Problem) -> int:
        self._count += 1
        return derive(self._secret, f"heat/{problem}/{self._count}")
