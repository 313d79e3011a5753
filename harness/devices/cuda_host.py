"""The untrusted side of kind `native` on a CUDA device: runs in the worker, with the submission's library and the baselines.

The library's functions are called here and nowhere else. What it does in `hgemm_run` is held against the rules on the
recorded graph; that its results are right, made in time and not kept from before is the parent's to find out.
"""

from __future__ import annotations

import ctypes
import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.devices import BufferSet, MachineFault, OperationInfo, SubmissionFault, WindowTime
from harness.devices.cuda_graph import check_nodes, forbidden, nodes_of, programmatic_edges, spans
from harness.devices.cuda_launch import check
from harness.devices.cuda_memory import MappedMemory
from harness.devices.cuda_window import Recorder
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
    RunOnce,
    TimeWindow,
)
from harness.native_elf import kernel_names
from harness.plan import Call, Layout
from harness.problem import Problem, Track
from harness.record import SUBMISSION, Reason

if TYPE_CHECKING:
    from harness.devices.cuda import CudaDevice
    from harness.devices.cuda_graph import Span
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
            raise SubmissionFault(Reason.FORBIDDEN, "hgemm_create changes limits of the device")
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
            self._rehearse(recorder, request.slots[0])
        captured = self._device.captured(SUBMISSION, request.slots, request.unscored, recorder)
        self._windows[request.slots, request.unscored] = captured
        check(self._runtime.cudaDeviceSynchronize())
        return Done()

    def run_once(self, request: RunOnce) -> Done:
        """Run an operation on each slot."""
        if request.key != SUBMISSION:
            self._device.run(request.key, request.slots)
            return Done()
        self._device.windows.launch(self._windows[request.slots, 0])
        self._device.wait()
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

    @property
    def _runtime(self) -> Any:
        from cuda.bindings import runtime

        return runtime

    def _recorder(self, slots: tuple[int, ...]) -> StrictRecorder | None:
        """What records the submission on these slots; None where a baseline stands in for it."""
        if self._bound is None:
            return None
        writable = spans(self._device.buffers(SUBMISSION, slots))
        return StrictRecorder(self._device.stream.cuda_stream, self._bound[0].kernels, writable, self._limits)

    def _rehearse(self, recorder: StrictRecorder, slot: int) -> None:
        """One operation, then two: the second must be like the first, and wait for it."""
        enqueue, (buffers,) = self._device.enqueuer(SUBMISSION), self._device.buffers(SUBMISSION, (slot,))
        graphs = [recorder.record(functools.partial(_repeat, enqueue, buffers, times)) for times in (1, 2)]
        try:
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
            self._device.drop((SUBMISSION,))
            self._device.wait()
            library.destroy(state)


class StrictRecorder(Recorder):
    """Records what a library enqueues, and holds it against the rules of `hgemm.h`."""

    mode = "Global"

    def __init__(
        self, stream: int, kernels: frozenset[str], writable: frozenset[Span], limits: Callable[[], dict[str, int]]
    ) -> None:
        super().__init__(stream)
        self._kernels, self._writable, self._limits = kernels, writable, limits

    def record(self, put: Callable[[], object]) -> Any:
        """The graph of what `put` has the library enqueue.

        Raises:
            SubmissionFault: it failed, or broke a rule.
        """
        limits, free = self._limits(), self._free_bytes()
        graph = self._captured(put)
        if self._free_bytes() < free:
            # The first launch of a kernel loads its code, and somebody else may allocate: only what repeats is the library's.
            check(self._runtime.cudaGraphDestroy(graph))
            free = self._free_bytes()
            graph = self._captured(put)
            if self._free_bytes() < free:
                raise forbidden("allocates memory of the device")
        if self._limits() != limits:
            raise forbidden("changes limits of the device")
        check_nodes(nodes_of(graph), self._kernels, self._writable)
        return graph

    def _captured(self, put: Callable[[], object]) -> Any:
        failures = []

        def noted() -> None:
            try:
                put()
            except SubmissionFault as error:
                failures.append(error)

        try:
            graph = super().record(noted)
        except MachineFault as error:
            if "StreamCapture" not in str(error):
                raise
            raise forbidden(f"does what no capture allows, such as allocating or waiting ({error})") from error
        # A library that looks at what CUDA answers fails too, but what it did is the better reason.
        if failures:
            check(self._runtime.cudaGraphDestroy(graph))
            raise failures[0]
        return graph

    def _free_bytes(self) -> int:
        return int(check(self._runtime.cudaMemGetInfo())[0])


class Library:
    """A library with the three functions of `hgemm.h`."""

    def __init__(self, path: Path) -> None:
        self.kernels = kernel_names(path.read_bytes())
        _offer_runtime()
        try:
            library = ctypes.CDLL(str(path))
            self._create, self._run, self._destroy = library.hgemm_create, library.hgemm_run, library.hgemm_destroy
        except (OSError, AttributeError) as error:
            raise SubmissionFault(Reason.LAUNCH_ERROR, f"the library cannot be loaded: {error}") from error
        self._create.argtypes = [ctypes.POINTER(_Problem), ctypes.POINTER(ctypes.c_void_p)]
        self._run.argtypes = [ctypes.c_void_p] * 6
        self._destroy.argtypes, self._destroy.restype = [ctypes.c_void_p], None

    def create(self, problem: Problem, layout: Layout) -> ctypes.c_void_p:
        """What `hgemm_create` makes for a problem.

        Raises:
            SubmissionFault: it says that it cannot.
        """
        wanted = _Problem(problem.m, problem.n, problem.k, int(layout is Layout.TN), int(problem.track is Track.F16))
        state = ctypes.c_void_p()
        if (status := self._create(ctypes.byref(wanted), ctypes.byref(state))) != 0:
            raise SubmissionFault(Reason.LAUNCH_ERROR, f"hgemm_create returned {status}")
        return state

    def run(self, state: ctypes.c_void_p, buffers: BufferSet, stream: int) -> None:
        """Have one operation enqueued.

        Raises:
            SubmissionFault: it says that it could not.
        """
        if (status := self._run(state, *(each.data_ptr() for each in buffers), stream)) != 0:
            raise SubmissionFault(Reason.LAUNCH_ERROR, f"hgemm_run returned {status}")

    def destroy(self, state: ctypes.c_void_p) -> None:
        """Free what `create` made."""
        self._destroy(state)


class _Problem(ctypes.Structure):
    """`hgemm_problem`."""

    _fields_ = (
        ("m", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("layout", ctypes.c_int32),
        ("track", ctypes.c_int32),
    )


def _repeat(enqueue: Enqueue, buffers: BufferSet, times: int) -> None:
    for _ in range(times):
        enqueue(buffers)


def _offer_runtime() -> None:
    """Make the CUDA runtime that PyTorch loaded, and the driver, the ones that a library's imports mean.

    Raises:
        MachineFault: there is none.
    """
    import torch

    major = str(torch.version.cuda).partition(".")[0]
    try:
        for name in (f"libcudart.so.{major}", "libcuda.so.1"):
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        detail = f"PyTorch brings no shared CUDA runtime ({error}); native submissions need one"
        raise MachineFault(Reason.DEVICE_ERROR, detail, fatal=False) from error
