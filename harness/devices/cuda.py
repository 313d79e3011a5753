"""The CUDA device: operations, windows and baselines on one stream.

For kind `device` it serves a Bench in a trusted worker, where no host code of a submission ever runs; for kind `native`
it is what the untrusted worker works with (harness/devices/cuda_host.py).
"""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import re
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.devices import ArenaLayout, BufferSet, MachineFault, OperationInfo, WindowTime
from harness.devices.cuda_graph import Recorder
from harness.devices.cuda_kernels import Kernels
from harness.devices.cuda_launch import BoundPlan, Module, check, fault
from harness.devices.cuda_server import CudaPort
from harness.devices.cuda_window import Enqueue, Window, Windows
from harness.devices.marks import Marks
from harness.model import InfraError
from harness.plan import Layout, Plan
from harness.profiles import match_profile
from harness.record import SUBMISSION, L2State, Reason
from harness.run import DeviceInfo
from harness.telemetry import Conditions, Telemetry

if TYPE_CHECKING:
    import torch

    from harness.timing.server import Arrival

LIBRARIES = ("torch", "cupy-cuda13x", "cupy-cuda12x", "cuda-core", "cuda-bindings", "nvmath-python", "nvidia-cublas", "numpy")


class CudaOperation(NamedTuple):
    """An operation and the function that enqueues it on the device's stream."""

    info: OperationInfo
    enqueue: Enqueue


class CudaDevice:
    """One CUDA device, one stream."""

    def __init__(self, index: int) -> None:
        from cuda.bindings import driver, runtime

        self._telemetry = Telemetry(index)
        torch = open_context(index, self._telemetry)
        properties = torch.cuda.get_device_properties(index)
        self.profile = match_profile(properties.name)
        self._torch, self._runtime = torch, runtime
        self.stream = torch.cuda.current_stream()
        # No line may outlive a flush: the share of L2 that can persist is zero.
        check(runtime.cudaDeviceSetLimit(runtime.cudaLimit.cudaLimitPersistingL2CacheSize, 0))
        self._kernels = Kernels(self.stream.cuda_stream, properties.multi_processor_count)
        self.windows = Windows(self.stream, self._kernels, properties.L2_cache_size)
        self._modules = Module(check(driver.cuDeviceGet(index)))
        self._memory: Any = torch.empty(0, dtype=torch.uint8, device="cuda")
        self._key = secrets.randbits(64)
        self._operations: dict[str, CudaOperation] = {}
        self._captured: dict[tuple[str, tuple[int, ...], int], Window] = {}
        self._requests: dict[tuple[str, int], Window] = {}
        self._baselines: dict[str, Any] = {}
        self.info = self._describe(properties)

    def memory(self, size_bytes: int) -> Any:
        """At least that much device memory, the same piece again and again while it suffices."""
        if self._memory.numel() < size_bytes:
            self._memory = self._torch.empty(0, dtype=self._torch.uint8, device="cuda")
            self._torch.cuda.empty_cache()
            try:
                self._memory = self._torch.empty(size_bytes, dtype=self._torch.uint8, device="cuda")
            except self._torch.cuda.OutOfMemoryError as error:
                detail = f"{size_bytes >> 20} MiB of device memory are not free"
                raise MachineFault(Reason.OUT_OF_MEMORY, detail, fatal=False) from error
        return self._memory

    def use_memory(self, memory: torch.Tensor) -> None:
        """Work on memory of somebody else: uint8, one dimension."""
        self._memory = memory

    @property
    def address(self) -> int:
        """Where the memory that contenders work in begins."""
        return int(self._memory.data_ptr())

    def open_problem(self, layout: ArenaLayout) -> None:
        """Forget the last problem's operations and windows."""
        self.drop(tuple(self._operations))
        self._layout = layout
        self._sequential: set[str] = set()
        self._sets: dict[Layout, list[BufferSet]] = {}

    def bind_submission(self, plan: Plan, artifacts: dict[str, str]) -> OperationInfo:
        """Load the cubins and lay out the launches.

        Raises:
            SubmissionFault: the driver refuses a cubin, an attribute or a tensor map.
        """
        bound = BoundPlan(plan, artifacts, self._modules, self.stream.cuda_stream)
        names = ", ".join(f"{kernel.entry} ({name})" for name, kernel in plan.kernels.items())
        info = OperationInfo(key=SUBMISSION, contender=SUBMISSION, layout=plan.layout, description=names)
        self.adopt(info, bound.enqueue)
        return info

    def adopt(self, info: OperationInfo, enqueue: Enqueue) -> None:
        """Take in an operation that is bound, in place of what had its key and the windows captured of that."""
        self.drop((info.key,))
        self._operations[info.key] = CudaOperation(info, enqueue)

    def bind_baselines(self, names: tuple[str, ...], keys: tuple[str, ...] | None) -> tuple[OperationInfo, ...]:
        """Every candidate of the named baselines, or those of the given keys."""
        found = []
        for name in names:
            for candidate in self._baseline(name).candidates(self._layout.problem):
                if keys is None or candidate.info.key in keys:
                    self._operations.setdefault(candidate.info.key, CudaOperation(candidate.info, candidate.enqueue))
                    found.append(candidate.info)
        return tuple(found)

    def bind_stand_in(self, original: OperationInfo, delay_ns: int) -> OperationInfo:
        """Let a baseline's operation stand where a submission would, slowed by a delay: to measure the instrument."""
        baseline = self._operations[original.key]

        def enqueue(buffers: BufferSet) -> None:
            baseline.enqueue(buffers)
            if delay_ns:
                self._kernels.spin(delay_ns)

        info = original.model_copy(update={"key": SUBMISSION, "contender": SUBMISSION})
        self.adopt(info, enqueue)
        return info

    def operation(self, key: str) -> OperationInfo:
        """What a bound operation is."""
        return self._operations[key].info

    def enqueuer(self, key: str) -> Enqueue:
        """What puts a bound operation on the stream."""
        return self._operations[key].enqueue

    def spin(self, delay_ns: int) -> None:
        """Put a delay on the stream."""
        self._kernels.spin(delay_ns)

    def drop(self, keys: tuple[str, ...]) -> None:
        """Forget operations and the windows captured of them."""
        for key in keys:
            self._operations.pop(key, None)
        for captured in [captured for captured in self._captured if captured[0] in keys]:
            self.windows.release(self._captured.pop(captured))
        for request in [request for request in self._requests if request[0] in keys]:
            self.windows.release(self._requests.pop(request))

    def run(self, key: str, slots: tuple[int, ...]) -> None:
        """Run one operation on each slot and wait.

        Raises:
            SubmissionFault: a launch failed or faulted.
            MachineFault: operations of a baseline would overlap in a window.
        """
        operation = self._operations[key]
        buffers = self._buffers(operation)
        for slot in slots:
            operation.enqueue(buffers[slot])
        self.wait()
        if key in self._sequential:
            return
        self._sequential.add(key)
        if self.windows.overlaps(operation.enqueue, buffers[slots[0]]):
            raise MachineFault(Reason.BASELINE_ERROR, f"{key} lets the next operation start before it ends", False)

    def window(self, key: str, slots: tuple[int, ...], l2_state: L2State, unscored: int) -> WindowTime:
        """Time one window; its graph is captured at first use."""
        return self.windows.time(self.captured(key, slots, unscored))

    def examine(self, slots: tuple[int, ...], unscored: int) -> None:
        """Run the submission's window once more, with marks.

        Raises:
            SubmissionFault: an operation does not work on its inputs as they are when it begins.
        """
        sets = self._layout.sets(self._memory, self._operations[SUBMISSION].info.layout)
        marks = Marks.draw(sets, slots)
        marked = self.windows.capture(self.marking(marks.offsets_bytes, marks.bits), self.buffers(SUBMISSION, slots), unscored)
        try:
            marks.examine(sets, lambda: self.launch(marked))
        finally:
            self.windows.release(marked)

    def marking(self, offsets_bytes: tuple[int, ...], bits: int) -> Enqueue:
        """The submission's operations with a mark right before each, again and again at these places of the memory."""
        from cuda.bindings import driver

        enqueue, stream = self.enqueuer(SUBMISSION), self.stream.cuda_stream
        addresses = itertools.cycle(self.address + offset for offset in offsets_bytes)

        def marked(buffers: BufferSet) -> None:
            check(driver.cuMemsetD16Async(next(addresses), bits, 1, stream))
            enqueue(buffers)

        return marked

    def launch(self, window: Window) -> None:
        """Run a window that nobody times."""
        self.windows.launch(window)
        self.wait()

    def captured(self, key: str, slots: tuple[int, ...], unscored: int, recorder: Recorder | None = None) -> Window:
        """The window of an operation, captured at first use, by default without special rules."""
        if (key, slots, unscored) not in self._captured:
            chosen = self.buffers(key, slots)
            self._captured[key, slots, unscored] = self.windows.capture(self.enqueuer(key), chosen, unscored, recorder=recorder)
        return self._captured[key, slots, unscored]

    def buffers(self, key: str, slots: tuple[int, ...]) -> list[BufferSet]:
        """What an operation works on in some slots."""
        buffers = self._buffers(self._operations[key])
        return [buffers[slot] for slot in slots]

    def digest(self, tensors: tuple[torch.Tensor, ...]) -> int:
        """Keyed hash of the bits of some fp16 tensors."""
        return self._kernels.digest(tensors, self._key)

    def holds(self, words: tuple[torch.Tensor, ...], bits: int) -> bool:
        """Whether all words of these int16 views [rows, columns] have these bits."""
        return self._kernels.holds(words, bits)

    def port(self, keys: dict[str, str], sets: int, between: Callable[[Arrival | None], None] | None) -> CudaPort:
        """Capture a graph for every contender and buffer set."""
        graphs = {}
        for name, key in keys.items():
            operation = self._operations[key]
            buffers = self._buffers(operation)
            for index in range(sets):
                if (key, index) not in self._requests:
                    self._requests[key, index] = self.windows.capture(operation.enqueue, [buffers[index]], 0, probed=False)
                graphs[name, index] = self._requests[key, index]
        return CudaPort(self.windows, graphs, between)

    def conditions(self) -> Conditions:
        """Clock, power, temperature and throttle reasons right now."""
        return self._telemetry.read()

    def wait(self) -> None:
        """Wait for the stream.

        Raises:
            SubmissionFault, MachineFault: work on it failed.
        """
        (code,) = self._runtime.cudaStreamSynchronize(self.stream.cuda_stream)
        if int(code) != 0:
            raise fault(code.name)

    def _buffers(self, operation: CudaOperation) -> list[BufferSet]:
        layout = operation.info.layout
        if layout not in self._sets:
            sets = self._layout.sets(self._memory, layout)
            workspace = self._layout.workspace(self._memory)
            self._sets[layout] = [
                BufferSet(a, b, c, workspace) for a, b, c in zip(sets.a, sets.b, sets.c, strict=True)
            ]  # fmt: skip
        return self._sets[layout]

    def _baseline(self, name: str) -> Any:
        """The baseline of that name; its handles live as long as the worker."""
        if name not in self._baselines:
            from harness.baselines import cublas, cublaslt, torch_matmul

            makers: dict[str, Callable[[], Any]] = {
                "torch_matmul": torch_matmul.TorchMatmul,
                "cublas": lambda: cublas.Cublas(self.stream.cuda_stream),
                "cublaslt_heuristic": lambda: cublaslt.CublasLt(self.stream.cuda_stream, autotuned=False),
                "cublaslt_autotuned": lambda: cublaslt.CublasLt(self.stream.cuda_stream, autotuned=True),
            }
            self._baselines[name] = makers[name]()
        return self._baselines[name]

    def _describe(self, properties: Any) -> DeviceInfo:
        versions = {}
        for library in LIBRARIES:
            try:
                versions[library] = importlib.metadata.version(library)
            except importlib.metadata.PackageNotFoundError:
                continue
        versions["cuda runtime"] = str(check(self._runtime.cudaRuntimeGetVersion()))
        versions["cublasLt"] = str(self._baseline("cublaslt_heuristic").version)
        return DeviceInfo(
            profile=self.profile.name,
            name=properties.name,
            uuid=self._telemetry.uuid,
            driver=self._telemetry.driver,
            libraries=versions,
            timer="cudaEventElapsedTime between event nodes of one graph",
            conditions=self._telemetry.settings(),
        )


def open_context(index: int, telemetry: Telemetry) -> Any:
    """Take a card for this process, with a stream of its own as PyTorch's current one.

    Returns:
        PyTorch, for a checker of types that does not know its CUDA part.

    Raises:
        InfraError: there is no such card, or NVML means another one.
    """
    import torch

    # Cards then have the numbers that NVML gives them, unless CUDA was used here before.
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    cuda: Any = torch.cuda
    if not cuda.is_available() or index >= cuda.device_count():
        raise InfraError(f"PyTorch sees no CUDA device {index}; check the driver and that torch is a CUDA build.")
    cuda.set_device(index)
    cuda.init()
    named = re.search(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", str(cuda.get_device_properties(index).uuid))
    if named and named[0] not in telemetry.uuid:
        raise InfraError(f"CUDA and NVML disagree on which card cuda:{index} is; set CUDA_VISIBLE_DEVICES to its UUID.")
    cuda.set_stream(cuda.Stream())
    return torch
