"""The parent's side of a device whose worker runs host code of a submission, and so is not trusted.

The parent owns the memory, fills inputs and checks outputs; the worker only runs and times what it is told, and every time
that it reports is held against the parent's own clock.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

from harness.channel import WorkerFailed, WorkerProcess
from harness.devices import ArenaLayout, MachineFault, OperationInfo, SubmissionFault, WindowTime
from harness.messages import (
    ArmWindow,
    BindBaselines,
    BindStandIn,
    BindSubmission,
    Bound,
    Done,
    OpenProblem,
    RunOnce,
    TimeWindow,
)
from harness.model import Model
from harness.plan import Call, Plan
from harness.record import MACHINE_REASONS, SUBMISSION, L2State, Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.telemetry import Conditions
    from harness.timing.server import Arrival, Port

_Reply = TypeVar("_Reply", bound=Model)

CLOCK_SLACK_NS = 300_000
"""What the pipe and the scheduler may add between a window's own clock and the parent's."""
CLOCK_SLACK_SHARE = 0.05
CLOCK_AHEAD_NS = 20_000
"""By how much a window's own clock may exceed the parent's, which encloses it."""
CLOCK_TRIES = 200
"""Windows in a row whose clocks may disagree, since either side can lose the processor, before it is no accident."""


class Reported(NamedTuple):
    """A window as the two clocks saw it."""

    key: str
    """Whose."""
    timed: int
    """Timed operations."""
    unscored: int
    """Operations before them."""
    reported_ns: int
    """What the worker says that the timed ones took."""
    elapsed_ns: int
    """What passed for the parent."""


class UntrustedDevice:
    """What all of them share: requests to the worker, and the parent's clock."""

    clock_tries: ClassVar[int] = CLOCK_TRIES

    worker: WorkerProcess
    deadline: float
    """Until when (time.monotonic) requests must be answered."""

    def open_problem(self, layout: ArenaLayout) -> None:
        """Tell the worker where the buffers are."""
        self._call(OpenProblem(layout=layout), Done)

    def bind_submission(self, plan: Plan, artifacts: dict[str, str]) -> OperationInfo:
        """Have the library loaded."""
        started = time.perf_counter_ns()
        self._call(BindSubmission(plan=plan, artifacts=artifacts), Done)
        took_ms = (time.perf_counter_ns() - started) / 1e6
        (step,) = (step for step in plan.steps if isinstance(step, Call))
        kernel = plan.kernels[step.kernel]
        description = f"{kernel.entry} ({kernel.language}, loaded and created in {took_ms:.1f} ms)"
        return OperationInfo(key=SUBMISSION, contender=SUBMISSION, layout=plan.layout, description=description)

    def bind_baselines(self, names: tuple[str, ...], keys: tuple[str, ...] | None) -> tuple[OperationInfo, ...]:
        """Every candidate of the named baselines, or only those of the given keys.

        Raises:
            SubmissionFault: the worker passes off something else as a candidate.
        """
        found = self._call(BindBaselines(names=names, keys=keys), Bound).operations
        wanted = {operation.key for operation in found} - {SUBMISSION} if keys is None else set(keys)
        if any(operation.contender not in names or operation.key not in wanted for operation in found):
            raise SubmissionFault(Reason.CRASH, "the worker named operations that nobody asked for", fatal=True)
        return found

    def bind_stand_in(self, original: OperationInfo, delay_ns: int) -> OperationInfo:
        """Have a baseline run in the submission's place."""
        self._call(BindStandIn(key=original.key, delay_ns=delay_ns), Done)
        return original.model_copy(update={"key": SUBMISSION, "contender": SUBMISSION})

    def port(self, keys: dict[str, str], sets: int, between: Callable[[Arrival | None], None] | None) -> Port:
        """There is no server mode: its loop polls the device, which is the worker's.

        Raises:
            MachineFault: always.
        """
        raise MachineFault(Reason.DEVICE_ERROR, "server mode needs a CUDA device and kind device", fatal=False)

    def conditions(self) -> Conditions | None:
        """There are no readings unless a device has some."""
        return None

    def drop(self, keys: tuple[str, ...]) -> None:
        """Nothing to do, unless an operation holds memory."""

    def run(self, key: str, slots: tuple[int, ...]) -> None:
        """Run an operation on each slot."""
        self._call(RunOnce(key=key, slots=slots), Done)

    def window(self, key: str, slots: tuple[int, ...], l2_state: L2State, unscored: int) -> WindowTime:
        """Time a window in the worker and compare with this side's clock.

        Raises:
            SubmissionFault: the worker claims less time than passed.
        """
        for _ in range(self.clock_tries):
            self._call(ArmWindow(key=key, slots=slots, unscored=unscored, l2_state=l2_state), Done)
            started = time.perf_counter_ns()
            result = self._call(TimeWindow(), WindowTime)
            elapsed = time.perf_counter_ns() - started
            if self._agrees(Reported(key, len(slots) - unscored, unscored, result.window_ns, elapsed)):
                return result
            if result.window_ns > elapsed + CLOCK_AHEAD_NS:
                # Who loses the processor makes the parent's time longer, never shorter.
                break
        raise SubmissionFault(
            Reason.CLOCK_MISMATCH,
            f"the worker reported {result.window_ns} ns for a window that took {elapsed} ns by the parent's clock",
        )

    def examine(self, slots: tuple[int, ...], unscored: int) -> None:
        """Nothing to do here: what needs it, `window` does when a library has seen a window."""

    def _agrees(self, window: Reported) -> bool:
        """Whether the two clocks agree; the unscored operations ran before the parent's was read."""
        return window.elapsed_ns * (1 - CLOCK_SLACK_SHARE) - CLOCK_SLACK_NS <= window.reported_ns <= window.elapsed_ns

    def close(self) -> None:
        """End the worker."""
        self.worker.close()
        self._release()

    def kill(self) -> None:
        """End the worker at once."""
        self.worker.kill()
        self._release()

    def _release(self) -> None:
        """Give back what the parent holds for the worker."""

    def _call(self, request: Model, reply: type[_Reply]) -> _Reply:
        return ask(self.worker, request, reply, self.deadline)


def ask(worker: WorkerProcess, request: Model, reply: type[_Reply], deadline: float) -> _Reply:
    """A worker's answer, or the fault that it reports.

    Args:
        worker: whom to ask.
        request: what.
        reply: type of the answer.
        deadline: until when (time.monotonic) it must come.

    Raises:
        SubmissionFault, MachineFault: it says that it could not.
        WorkerTimeout, WorkerDied: no answer came.
    """
    try:
        return worker.call(request, reply, max(0.1, deadline - time.monotonic()))
    except WorkerFailed as error:
        failure = error.failure
        if failure.reason in MACHINE_REASONS:
            raise MachineFault(failure.reason, str(error), failure.fatal) from error
        raise SubmissionFault(failure.reason, str(error), failure.fatal) from error
