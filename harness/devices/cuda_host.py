"""The untrusted side of kind `native` on a CUDA device: runs in the worker, with the submission's library and the baselines.

The library's functions are called here and nowhere else. What it does in `hgemm_run` is held against the rules on the
recorded graph; that its results are right, made in time and not kept from before is the parent's to find out.
"""

from __future__ import annotations

import ctypes
import functools
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.devices import BufferSet, OperationInfo, SubmissionFault, WindowTime
from harness.devices.cuda_graph import Span, StrictRecorder, forbidden, nodes_of, programmatic_edges, spans
from harness.devices.cuda_launch import check
from harness.devices.cuda_memory import MappedMemory
from harness.devices.native_library import Library
from harness.messages import (
    ArmWindow,
    BindBaselines,
    BindStandIn,
    BindSubmission,
    Bound,
    CaptureWindow,
    Done,
    Drop,
    MapMemory,
    Open,
    OpenProblem,
    RunMarked,
    RunOnce,
    TimeWindow,
)
from harness.plan import Call
from harness.problem import HALF_BYTES
from harness.record import SUBMISSION, Reason

if TYPE_CHECKING:
    from harness.devices.cuda import CudaDevice
    from harness.devices.cuda_window import Enqueue, Window
    from harness.run import DeviceInfo

LIMITS = (
    "StackSize", "PrintfFifoSize", "MallocHeapSize", "DevRuntimePendingLaunchCount", "MaxL2FetchGranularity",
    "PersistingL2CacheSize",
)  # fmt: skip
"""Limits of the device that a library leaves as they are."""


class NativeHost:
    """Serves the requests of `NativeCudaDevice`."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._mapped = MappedMemory()
        self._libraries: dict[str, Library] = {}
        self._bound: tuple[Library, ctypes.c_void_p] | None = None
        self._windows: dict[tuple[tuple[int, ...], int], Window] = {}
        self._marked: Window | None = None

    def open(self, request: Open) -> DeviceInfo:
        """Describe the device."""
        return self._device.info

    def map_memory(self, request: MapMemory) -> Done:
        """Let go of the memory that was mapped, and map other memory of the parent."""
        self._device.wait()
        self._device.use_memory(self._mapped.replace(bytes.fromhex(request.handle), request.size_bytes))
        return Done()

    def open_problem(self, request: OpenProblem) -> Done:
        """Use another arena."""
        self._destroy()
        self._device.open_problem(request.layout)
        self._layout = request.layout
        return Done()

    def bind_submission(self, request: BindSubmission) -> Done:
        """Load the library, and have it prepare for the problem."""
        plan = request.plan
        (step,) = (step for step in plan.steps if isinstance(step, Call))
        path = request.artifacts[step.kernel]
        library = self._libraries[path] = self._libraries.get(path) or Library(Path(path))
        limits = self._limits()
        state = library.create(self._layout.problem, plan.layout)
        self._bound = (library, state)
        check(self._runtime.cudaDeviceSynchronize())
        if self._limits() != limits:
            raise SubmissionFault(Reason.FORBIDDEN, "hgemm_create changes limits of the device", fatal=True)
        stream = self._device.stream.cuda_stream
        info = OperationInfo(key=SUBMISSION, contender=SUBMISSION, layout=plan.layout, description=str(Path(path).name))
        self._device.adopt(info, lambda buffers: library.run(state, buffers, stream))
        self._windows = {}
        return Done()

    def bind_stand_in(self, request: BindStandIn) -> Done:
        """Run a baseline in the submission's place, slowed by a delay."""
        self._destroy()
        self._windows = {}
        self._device.bind_stand_in(self._device.operation(request.key), request.delay_ns)
        return Done()

    def bind_baselines(self, request: BindBaselines) -> Bound:
        """Have candidates of the baselines ready."""
        return Bound(operations=self._device.bind_baselines(request.names, request.keys))

    def drop(self, request: Drop) -> Done:
        """Forget operations that lost."""
        self._device.drop(request.keys)
        return Done()

    def capture_window(self, request: CaptureWindow) -> Done:
        """Record the submission's operations, and wait for whatever else was started.

        Raises:
            SubmissionFault: `hgemm_run` failed, or does what it may not.
        """
        recorder = self._recorder(request.slots)
        if recorder is not None and not self._windows:
            self._rehearse(request.slots[:1])
        marked_first = bool(request.marks) and random.SystemRandom().random() < 0.5
        if marked_first:
            self._capture_marked(request)
        captured = self._device.captured(SUBMISSION, request.slots, request.unscored, recorder)
        self._windows[request.slots, request.unscored] = captured
        if request.marks and not marked_first:
            self._capture_marked(request)
        check(self._runtime.cudaDeviceSynchronize())
        return Done()

    def run_marked(self, request: RunMarked) -> Done:
        """Run the window with marks that was captured last."""
        assert self._marked is not None
        self._device.launch(self._marked)
        return Done()

    def run_once(self, request: RunOnce) -> Done:
        """Run an operation on each slot."""
        if request.key != SUBMISSION:
            self._device.run(request.key, request.slots)
            return Done()
        self._device.launch(self._windows[request.slots, 0])
        return Done()

    def arm_window(self, request: ArmWindow) -> Done:
        """Have the window ready, which for the submission was captured before, and flush the caches."""
        if request.key == SUBMISSION:
            self._armed = self._windows[request.slots, request.unscored]
        else:
            self._armed = self._device.captured(request.key, request.slots, request.unscored)
        self._device.windows.flush()
        self._device.wait()
        return Done()

    def time_window(self, request: TimeWindow) -> WindowTime:
        """Time the window that was armed."""
        return self._device.windows.measure(self._armed)

    def _capture_marked(self, request: CaptureWindow) -> None:
        """The same window with a mark in the inputs right before each operation."""
        self._release_marked()
        device = self._device
        buffers = device.buffers(SUBMISSION, request.slots)
        start = device.address
        marks = frozenset(Span(start + offset, start + offset + HALF_BYTES) for offset in request.marks)
        enqueue, recorder = device.marking(request.marks, request.mark_bits), self._recorder(request.slots, marks)
        self._marked = device.windows.capture(enqueue, buffers, request.unscored, recorder=recorder)

    def _release_marked(self) -> None:
        if self._marked is not None:
            self._device.windows.release(self._marked)
            self._marked = None

    @property
    def _runtime(self) -> Any:
        from cuda.bindings import runtime

        return runtime

    def _recorder(
        self, slots: tuple[int, ...], marks: frozenset[Span] = frozenset(), mode: str = "Global"
    ) -> StrictRecorder | None:
        """What records the submission on these slots; None where a baseline stands in for it."""
        if self._bound is None:
            return None
        writable = spans(self._device.buffers(SUBMISSION, slots)) | marks
        return StrictRecorder(self._device.stream.cuda_stream, self._bound[0].kernels, writable, self._limits, mode)

    def _rehearse(self, slots: tuple[int, ...]) -> None:
        """One operation, then two: the second must be like the first, and wait for it."""
        enqueue, (buffers,) = self._device.enqueuer(SUBMISSION), self._device.buffers(SUBMISSION, slots)
        graphs = []
        try:
            for times, mode in ((1, "Relaxed"), (2, "Global")):
                recorder = self._recorder(slots, mode=mode)
                assert recorder is not None
                graphs.append(recorder.record(functools.partial(_repeat, enqueue, buffers, times)))
            once, twice = (Counter(nodes_of(graph)) for graph in graphs)
            if twice != once + once:
                raise forbidden("does not enqueue the same work every time")
            if programmatic_edges(graphs[1]) > 2 * programmatic_edges(graphs[0]):
                raise forbidden("lets the next operation start before it ends")
        finally:
            for graph in graphs:
                check(self._runtime.cudaGraphDestroy(graph))

    def _limits(self) -> dict[str, int]:
        kinds = self._runtime.cudaLimit
        found = {name: self._runtime.cudaDeviceGetLimit(getattr(kinds, f"cudaLimit{name}")) for name in LIMITS}
        return {name: int(value) for name, (code, value) in found.items() if int(code) == 0}

    def _destroy(self) -> None:
        if self._bound is not None:
            library, state = self._bound
            self._bound = None
            self._release_marked()
            self._device.drop((SUBMISSION,))
            self._device.wait()
            library.destroy(state)


def _repeat(enqueue: Enqueue, buffers: BufferSet, times: int) -> None:
    for _ in range(times):
        enqueue(buffers)
