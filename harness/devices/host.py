"""The untrusted side of the CPU device: runs in the worker, together with the submission's library and the baselines."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import mmap
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.baselines.torch_matmul import cpu_candidates
from harness.devices import ArenaLayout, BufferSet, SubmissionFault, WindowTime
from harness.devices.cpu import ARENA_BYTES, host_uuid
from harness.messages import (
    ArmWindow,
    BindBaselines,
    BindStandIn,
    BindSubmission,
    Bound,
    Done,
    Open,
    OpenProblem,
    RunOnce,
    TimeWindow,
)
from harness.plan import Call, Layout, Plan
from harness.record import SUBMISSION, L2State, Reason
from harness.run import DeviceInfo

if TYPE_CHECKING:
    import torch

FLUSH_BYTES = 32 << 20
"""Written, then read, before a cold window."""


class HostOperation(NamedTuple):
    """An operation: the layout that it reads, and the function that runs it."""

    layout: Layout
    enqueue: Callable[[Any], object]
    """Takes a `BufferSet`, or addresses of A, B, C and the workspace."""
    takes_addresses: bool = False


class Host:
    """Serves the requests of `CpuDevice`.

    What only verifies needs no torch, whose import would take most of a worker's life; it comes with the baselines.
    """

    def __init__(self, descriptor: int) -> None:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        self._mapping = mmap.mmap(descriptor, ARENA_BYTES)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        self._operations: dict[str, HostOperation] = {}

    def open(self, request: Open) -> DeviceInfo:
        """Describe this host."""
        return DeviceInfo(
            profile="cpu",
            name=_processor(),
            uuid=host_uuid(),
            driver=platform.release(),
            libraries={
                "python": platform.python_version(),
                "torch": importlib.metadata.version("torch"),
                "numpy": importlib.metadata.version("numpy"),
            },
            timer="time.perf_counter_ns",
            conditions={"threads": "1, pinned", "cores": str(os.cpu_count())},
        )

    def open_problem(self, request: OpenProblem) -> Done:
        """Use another arena."""
        self._layout: ArenaLayout = request.layout
        self._operations = {}
        return Done()

    def bind_submission(self, request: BindSubmission) -> Done:
        """Load the submission's library."""
        plan = request.plan
        (step,) = (step for step in plan.steps if isinstance(step, Call))
        call = _function(Path(request.artifacts[step.kernel]), plan, step.kernel)
        problem = self._layout.problem

        def enqueue(addresses: tuple[int, ...]) -> None:
            call(*addresses, problem.m, problem.n, problem.k)

        self._operations[SUBMISSION] = HostOperation(plan.layout, enqueue, takes_addresses=True)
        return Done()

    def bind_stand_in(self, request: BindStandIn) -> Done:
        """Run a baseline in the submission's place, slowed by a delay."""
        original = self._operations[request.key]

        def enqueue(buffers: BufferSet) -> None:
            original.enqueue(buffers)
            until = time.perf_counter_ns() + request.delay_ns
            while time.perf_counter_ns() < until:
                pass

        self._operations[SUBMISSION] = HostOperation(original.layout, enqueue)
        return Done()

    def bind_baselines(self, request: BindBaselines) -> Bound:
        """Have both layouts of every baseline ready, or those of the given keys."""
        _ = self._memory  # Now torch is imported, and not while something is timed.
        found = [each for each in cpu_candidates(request.names) if request.keys is None or each.info.key in request.keys]
        for info, enqueue in found:
            self._operations[info.key] = HostOperation(info.layout, enqueue)
        return Bound(operations=tuple(each.info for each in found))

    def run_once(self, request: RunOnce) -> Done:
        """Run an operation on each slot."""
        operation = self._operations[request.key]
        for buffers in self._buffers(operation, request.slots):
            operation.enqueue(buffers)
        return Done()

    def arm_window(self, request: ArmWindow) -> Done:
        """Flush the caches where data are to be cold, and run the unscored operations."""
        operation = self._operations[request.key]
        unscored = self._buffers(operation, request.slots[: request.unscored])
        self._armed = (operation, self._buffers(operation, request.slots[request.unscored :]))
        if request.l2_state is L2State.COLD:
            self._flush.add_(1)
            self._flush.sum()
        for buffers in unscored:
            operation.enqueue(buffers)
        return Done()

    def time_window(self, request: TimeWindow) -> WindowTime:
        """Time the window that was armed."""
        operation, armed = self._armed
        enqueue = operation.enqueue
        started = time.perf_counter_ns()
        for buffers in armed:
            enqueue(buffers)
        return WindowTime(window_ns=time.perf_counter_ns() - started)

    @functools.cached_property
    def _memory(self) -> torch.Tensor:
        import torch

        torch.set_num_threads(1)
        return torch.frombuffer(self._mapping, dtype=torch.uint8)

    @functools.cached_property
    def _flush(self) -> torch.Tensor:
        import torch

        return torch.zeros(FLUSH_BYTES // 8, dtype=torch.int64)

    def _buffers(self, operation: HostOperation, slots: tuple[int, ...]) -> Sequence[object]:
        if operation.takes_addresses:
            return [self._layout.addresses(self._start, slot) for slot in slots]
        sets = self._layout.sets(self._memory, operation.layout)
        workspace = self._layout.workspace(self._memory)
        return [BufferSet(sets.a[slot], sets.b[slot], sets.c[slot], workspace) for slot in slots]


def _function(library: Path, plan: Plan, kernel: str) -> Callable[..., None]:
    try:
        function = getattr(ctypes.CDLL(str(library)), plan.kernels[kernel].entry)
    except (OSError, AttributeError) as error:
        raise SubmissionFault(Reason.LAUNCH_ERROR, f"the library of {kernel} cannot be loaded: {error}") from error
    function.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 3
    function.restype = None
    return function  # type: ignore[no-any-return]


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
