"""The CPU device: the pipeline for real on a machine without a GPU, one pinned thread for every contender.

Its contenders run in an untrusted worker. The parent keeps this object: it owns the memory (shared with the worker),
fills inputs, checks outputs, and holds every reported time against its own clock.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import platform
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from harness.baselines.torch_matmul import cpu_candidates
from harness.channel import WorkerFailed, WorkerProcess
from harness.devices import ArenaLayout, MachineFault, OperationInfo, SubmissionFault, WindowTime, holds
from harness.messages import ArmWindow, BindBaselines, BindStandIn, BindSubmission, Done, Open, OpenProblem, RunOnce, TimeWindow
from harness.model import Model
from harness.plan import Call, Plan
from harness.profiles import load_profile
from harness.record import MACHINE_REASONS, SUBMISSION, L2State, Reason
from harness.run import DeviceInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from harness.timing.server import Arrival, Port

_Reply = TypeVar("_Reply", bound=Model)

ARENA_BYTES = 4 << 30
"""Address space of the shared memory; pages exist only once they are touched."""
CLOCK_SLACK_NS = 300_000
"""What the pipe and the scheduler may add between a window's own clock and the parent's."""
CLOCK_SLACK_SHARE = 0.05
CLOCK_TRIES = 200
"""Windows in a row whose clocks may disagree, since either side can lose the processor, before it is no accident."""


class CpuDevice:
    """The parent's side of the CPU device."""

    def __init__(self) -> None:
        import torch

        self.profile = load_profile("cpu")
        # Idle threads of a thread pool spin, and would take the processor from the worker that is being timed.
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        self._descriptor = os.memfd_create("hgemm-arena")
        os.ftruncate(self._descriptor, ARENA_BYTES)
        self._mapping = mmap.mmap(self._descriptor, ARENA_BYTES)
        self.worker = WorkerProcess((str(self._descriptor),), pass_fds=(self._descriptor,), trusted=False)
        self.deadline = time.monotonic() + 120
        self._salt = secrets.token_bytes(16)
        try:
            self.info = self._call(Open(device="cpu"), DeviceInfo)
        except BaseException:
            self.kill()
            raise

    def memory(self, size_bytes: int) -> torch.Tensor:
        """The shared memory, zeroed afresh.

        Raises:
            MachineFault: it is not enough.
        """
        import torch

        if size_bytes > ARENA_BYTES:
            detail = f"the shape needs {size_bytes >> 20} MiB of buffers; the CPU device has {ARENA_BYTES >> 20}"
            raise MachineFault(Reason.OUT_OF_MEMORY, detail, fatal=False)
        self._mapping.madvise(mmap.MADV_REMOVE)
        return torch.frombuffer(self._mapping, dtype=torch.uint8)

    def open_problem(self, layout: ArenaLayout) -> None:
        """Tell the worker where the buffers are."""
        self._call(OpenProblem(layout=layout), Done)

    def bind_submission(self, plan: Plan, artifacts: dict[str, str]) -> OperationInfo:
        """Have the library loaded."""
        self._call(BindSubmission(plan=plan, artifacts=artifacts), Done)
        (step,) = (step for step in plan.steps if isinstance(step, Call))
        entry = plan.kernels[step.kernel].entry
        return OperationInfo(key=SUBMISSION, contender=SUBMISSION, layout=plan.layout, description=f"{entry} (C)")

    def bind_baselines(self, names: tuple[str, ...], keys: tuple[str, ...] | None) -> tuple[OperationInfo, ...]:
        """Both layouts of every baseline."""
        self._call(BindBaselines(names=names), Done)
        operations = (candidate.info for candidate in cpu_candidates(names))
        return tuple(operation for operation in operations if keys is None or operation.key in keys)

    def port(self, keys: dict[str, str], requests_each: int, between: Callable[[Arrival | None], None] | None) -> Port:
        """There is no server mode on a CPU.

        Raises:
            MachineFault: always.
        """
        raise MachineFault(Reason.DEVICE_ERROR, "server mode needs a CUDA device", fatal=False)

    def bind_stand_in(self, original: OperationInfo, delay_ns: int) -> OperationInfo:
        """Have a baseline run in the submission's place."""
        self._call(BindStandIn(key=original.key, delay_ns=delay_ns), Done)
        return original.model_copy(update={"key": SUBMISSION, "contender": SUBMISSION})

    def conditions(self) -> None:
        """There are no readings of a CPU."""

    def drop(self, keys: tuple[str, ...]) -> None:
        """Nothing to do: an operation holds no memory here."""

    def run(self, key: str, slots: tuple[int, ...]) -> None:
        """Run an operation on each slot."""
        self._call(RunOnce(key=key, slots=slots), Done)

    def window(self, key: str, slots: tuple[int, ...], l2_state: L2State, unscored: int) -> WindowTime:
        """Time a window in the worker and compare with this side's clock.

        Raises:
            SubmissionFault: the worker claims less time than passed.
        """
        for _ in range(CLOCK_TRIES):
            self._call(ArmWindow(key=key, slots=slots, unscored=unscored, l2_state=l2_state), Done)
            started = time.perf_counter_ns()
            result = self._call(TimeWindow(), WindowTime)
            elapsed = time.perf_counter_ns() - started
            if elapsed * (1 - CLOCK_SLACK_SHARE) - CLOCK_SLACK_NS <= result.window_ns <= elapsed:
                return result
        raise SubmissionFault(
            Reason.CLOCK_MISMATCH,
            f"the worker reported {result.window_ns} ns for a window that took {elapsed} ns by the parent's clock",
        )

    def digest(self, tensors: tuple[torch.Tensor, ...]) -> int:
        """Keyed BLAKE2b of the bits."""
        import torch

        state = hashlib.blake2b(digest_size=8, key=self._salt)
        for tensor in tensors:
            state.update(tensor.contiguous().view(torch.int16).numpy().tobytes())
        return int.from_bytes(state.digest(), "little")

    def holds(self, words: tuple[torch.Tensor, ...], bits: int) -> bool:
        """Whether all words have these bits."""
        return holds(words, bits)

    def close(self) -> None:
        """End the worker."""
        self.worker.close()
        self._release()

    def kill(self) -> None:
        """End the worker at once."""
        self.worker.kill()
        self._release()

    def _release(self) -> None:
        import torch

        os.close(self._descriptor)
        torch.set_num_threads(self._threads)

    def _call(self, request: Model, reply: type[_Reply]) -> _Reply:
        try:
            return self.worker.call(request, reply, max(0.1, self.deadline - time.monotonic()))
        except WorkerFailed as error:
            failure = error.failure
            if failure.reason in MACHINE_REASONS:
                raise MachineFault(failure.reason, str(error), failure.fatal) from error
            raise SubmissionFault(failure.reason, str(error), failure.fatal) from error


def host_uuid() -> str:
    """An identifier of this host for locks and segments: a hash of its machine id and processor."""
    try:
        identity = Path("/etc/machine-id").read_text(encoding="utf-8").strip()
    except OSError:
        identity = platform.node()
    return "CPU-" + hashlib.sha256(f"hgemm {identity}".encode()).hexdigest()[:32]
