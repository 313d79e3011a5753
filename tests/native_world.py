"""Both sides of kind `native` in this process: the parent's device, the worker behind messages, a card of fake CUDA."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_cuda import STREAM, FakeCard, FakeCuda
from pydantic import TypeAdapter

from harness import channel, worker
from harness.bench import Bench
from harness.devices import BufferSet, MachineFault, OperationInfo, SubmissionFault
from harness.devices.cuda import CudaDevice
from harness.devices.cuda_graph import Recorder
from harness.devices.cuda_native import LEVELS, NativeCudaDevice
from harness.devices.cuda_window import Windows
from harness.devices.native_library import Library
from harness.messages import Failure, Inspection, Prepare, Request, Round, Select
from harness.model import Model
from harness.plan import Call, Kernel, Language, Layout, Plan
from harness.problem import Problem
from harness.profiles import load_profile
from harness.record import SUBMISSION, Measure, Reason
from harness.run import DeviceInfo

INFO = DeviceInfo(profile="h200", name="simulated", uuid="GPU-0", driver="0", libraries={}, timer="simulated")
KERNEL = Kernel(language=Language.NATIVE, source="kernels/k.cu", entry="hgemm_run")
PROBLEM = Problem(m=24, n=40, k=20)
WINDOW_NS = 20_000

COLD = Measure()
ORDER = ("cublas", SUBMISSION)

RunLibrary = Callable[[FakeCuda, BufferSet], int]
NewWorld = Callable[..., "World"]


def plan(**fields: object) -> Plan:
    return Plan.model_validate({"layout": "NN", "kernels": {"k": KERNEL}, "steps": (Call(kernel="k"),), **fields})


def product(buffers: BufferSet) -> None:
    buffers.c.copy_((buffers.a.float() @ buffers.b.float()).half())


def honest(cuda: FakeCuda, buffers: BufferSet) -> int:
    cuda.launch("gemm", lambda: product(buffers))
    return 0


class World:
    """What both sides share, and what a test looks at."""

    def __init__(self, run: RunLibrary = honest, levels_that_map: tuple[tuple[str, ...], ...] = LEVELS) -> None:
        self.cuda = FakeCuda()
        self.run = run
        self.levels_that_map = levels_that_map
        self.create: Callable[[], object] = lambda: None
        self.states: list[str] = []
        self.workers: list[FakeWorker] = []
        self.card = FakeCard(self.cuda)
        self.overhead_ns = 0
        """What passes beside a window's operations."""
        self.shortened = 1.0
        """What of a window's length the worker reports."""

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """Put it in the places of CUDA, of the worker's process, and of the clock."""
        patch.setattr("cuda.bindings.runtime", self.cuda.runtime)
        patch.setattr("cuda.bindings.driver", self.cuda.driver)
        patch.setattr("harness.devices.cuda_memory._tensor", self._tensor)
        patch.setattr("harness.devices.cuda_host.Library", self._library)
        patch.setattr("harness.devices.cuda.CudaDevice", lambda index: FakeCudaDevice(self))
        patch.setattr("harness.devices.cuda_native.WorkerProcess", self._worker)
        profile = load_profile("h200").model_copy(update={"l2_bytes": 1 << 20, "memory_bytes": 1 << 28})
        patch.setattr("harness.devices.cuda_native.load_profile", lambda name: profile)
        clock = SimpleNamespace(perf_counter_ns=lambda: self.cuda.now_ns, monotonic=time.monotonic)
        patch.setattr("harness.devices.untrusted.time", clock)

    def device(self) -> NativeCudaDevice:
        """The parent's side, with its worker up."""
        return NativeCudaDevice(self.card)  # type: ignore[arg-type]

    def bench(self, problem: Problem = PROBLEM, the_plan: Plan | None = None) -> Bench:
        """A bench with the submission bound."""
        bench = Bench(self.device())
        bench.prepare(Prepare(problem=problem, plan=the_plan or plan(), artifacts={"k": "k.so"}, window_ns=WINDOW_NS, sets=6))
        return bench

    def _tensor(self, address: int, size_bytes: int) -> torch.Tensor:
        if not size_bytes:
            return torch.empty(0, dtype=torch.uint8)
        return next(tensor for tensor in self.cuda.memories.values() if tensor.data_ptr() == address)

    def _library(self, path: object) -> FakeLibrary:
        return FakeLibrary(self)

    def _worker(self, arguments: tuple[str, ...], namespaces: tuple[str, ...]) -> FakeWorker:
        self.workers.append(FakeWorker(self, namespaces))
        return self.workers[-1]


class FakeWorker:
    """In place of `WorkerProcess`: every message goes through its JSON, in both directions."""

    def __init__(self, world: World, namespaces: tuple[str, ...]) -> None:
        self.namespaces = namespaces
        self.alive = True
        self.requests: list[str] = []
        self._world = world
        self._handlers: dict[str, Callable[[Any], Model]] = {}

    def call(self, request: Model, reply: type[Any], timeout_s: float) -> Any:
        """The answer of the real handlers."""
        assert timeout_s > 0
        parsed = TypeAdapter[Any](Request).validate_json(request.model_dump_json())
        self.requests.append(parsed.type)
        self._world.cuda.now_ns += self._world.overhead_ns if parsed.type == "time_window" else 0
        if parsed.type == "open":
            self._handlers = worker._handlers(parsed, [])
        answer = worker._answer(self._handlers[parsed.type], parsed)
        if parsed.type == "map_memory" and parsed.handle and self.namespaces not in self._world.levels_that_map:
            answer = Failure(reason=Reason.DEVICE_ERROR, detail="CUDA failed: cudaErrorMapBufferObjectFailed", fatal=True)
            self._world.cuda.mapped.clear()
        return channel._parse(answer.model_dump_json().encode(), reply)

    def kill(self) -> None:
        self._world.cuda.mapped.clear()
        self.alive = False

    close = kill


class FakeLibrary(Library):
    """A library whose functions are the world's."""

    def __init__(self, world: World) -> None:
        self.kernels = frozenset({"gemm", "other"})
        self._world = world

    def create(self, problem: Problem, layout: Layout) -> Any:
        self._world.create()
        self._world.states.append(f"{problem} {layout}")
        return len(self._world.states)

    def run(self, state: Any, buffers: BufferSet, stream: int) -> None:
        assert stream == STREAM
        if (status := self._world.run(self._world.cuda, buffers)) != 0:
            raise SubmissionFault(Reason.LAUNCH_ERROR, f"hgemm_run returned {status}")

    def destroy(self, state: Any) -> None:
        self._world.states[state - 1] += " destroyed"


class FakeWindows(Windows):
    """Windows without caches to flush."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._runtime = world.cuda.runtime
        self._stream = SimpleNamespace(cuda_stream=STREAM)
        self._kernels: Any = SimpleNamespace(
            probe=lambda which: world.cuda.launch("probe", lambda: None, 1), clock_mhz=lambda: None
        )
        self._recorder = Recorder(STREAM)

    def flush(self) -> None:
        """There is nothing to flush."""

    def elapsed_ns(self, window: Any) -> int:
        return int(super().elapsed_ns(window) * self._world.shortened)


class FakeCudaDevice(CudaDevice):
    """The worker's device, with one baseline."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._runtime = world.cuda.runtime
        self.stream = SimpleNamespace(cuda_stream=STREAM)
        self.windows = FakeWindows(world)
        self._operations, self._captured, self._requests = {}, {}, {}
        self.info = INFO

    def _baseline(self, name: str) -> Any:
        if name != "cublas":
            raise MachineFault(Reason.BASELINE_ERROR, f"no {name} here", fatal=False)
        infos = [OperationInfo(key=f"cublas/{b}", contender=name, layout=b, description=f"B {b}") for b in Layout]
        launch = lambda buffers: self._world.cuda.launch("ampere_h1688", lambda: product(buffers), 7_000)  # noqa: E731
        return SimpleNamespace(candidates=lambda problem: [SimpleNamespace(info=info, enqueue=launch) for info in infos])


def maker(patch: pytest.MonkeyPatch) -> NewWorld:
    """Makes worlds, and puts each in CUDA's place."""

    def made(*arguments: Any) -> World:
        found = World(*arguments)
        found.patch(patch)
        return found

    return made


def timed(found: World, rounds: int = 1) -> list[Inspection]:
    """What some rounds say of the submission's outputs."""
    bench = found.bench()
    bench.select(Select(measure=COLD, contenders=("cublas",), seed=1))
    bench.select(Select(measure=COLD, contenders=(SUBMISSION,), seed=2))
    results = [bench.round(Round(measure=COLD, order=ORDER, seed=number, full=number == 0)) for number in range(rounds)]
    assert all(result.inspection is not None for result in results)
    return [result.inspection for result in results if result.inspection is not None]
