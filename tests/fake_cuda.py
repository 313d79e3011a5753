"""A card in this process: CUDA's functions as far as windows and native libraries use them, on memory of the host.

A launch is a Python function. While a stream is captured it becomes a node, else it runs at once; a graph runs its nodes in
order. Time passes only in launches. Enumerations are those of `cuda.bindings`, which needs no driver for them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from cuda.bindings import driver as real_driver
from cuda.bindings import runtime as real_runtime

from harness.devices import holds
from harness.devices.cuda_native import LEVELS

STREAM = 77
OK = real_runtime.cudaError_t.cudaSuccess
LIMITS = dict.fromkeys(real_runtime.cudaLimit.__members__, 1024)


class Node(NamedTuple):
    """A node of a graph."""

    kind: str
    name: str = ""
    call: Callable[[], object] = lambda: None
    takes_ns: int = 0
    start: int = 0
    size_bytes: int = 0
    programmatic: bool = False


class Capture:
    """A capture that is going on."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.nodes: list[Node] = []
        self.broken = ""


class FakeCuda:
    """The card, and what its functions change."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.free_bytes = 1 << 30
        self.limits = dict(LIMITS)
        self.capture: Capture | None = None
        self.graphs: dict[int, list[Node]] = {}
        self.memories: dict[bytes, torch.Tensor] = {}
        self.mapped: list[bytes] = []
        self.events: dict[int, int] = {}
        self.modes: list[str] = []
        self._next = 1000

    # What a contender's host code does.

    def launch(self, name: str, call: Callable[[], object], takes_ns: int = 5_000, **fields: Any) -> None:
        """A kernel on the caller's stream."""
        self._put(Node("kernel", name, call, takes_ns, **fields))

    def at_once(self, call: Callable[[], object]) -> None:
        """A kernel on a stream of its own, which no capture sees."""
        call()

    def fill(self, tensor: torch.Tensor, value: int) -> None:
        """A memset on the caller's stream."""
        size = tensor.numel() * tensor.element_size()
        self._put(Node("memset", call=lambda: tensor.view(torch.uint8).fill_(value), start=tensor.data_ptr(), size_bytes=size))

    def copy(self) -> None:
        """A copy on the caller's stream."""
        self._put(Node("memcpy"))

    def unsafe(self, name: str) -> int:
        """A call such as cudaMalloc or cudaDeviceSynchronize; its status."""
        if self.capture is not None and self.capture.mode == "Global":
            self.capture.broken = "cudaErrorStreamCaptureInvalidated"
            return int(real_runtime.cudaError_t.cudaErrorStreamCaptureUnsupported)
        if name == "cudaMalloc":
            self.free_bytes -= 2 << 20
        return 0

    def _put(self, node: Node) -> None:
        if self.capture is not None:
            self.capture.nodes.append(node)
        else:
            self.run(node)

    def run(self, node: Node) -> None:
        """Run a node."""
        node.call()
        self.now_ns += node.takes_ns

    # cuda.bindings.runtime and cuda.bindings.driver.

    @property
    def runtime(self) -> SimpleNamespace:
        """In place of `cuda.bindings.runtime`."""
        enums = {name: getattr(real_runtime, name) for name in ("cudaError_t", "cudaLimit", "cudaStreamCaptureMode")}
        constants = {"cudaEventRecordExternal": 1, "cudaIpcMemLazyEnablePeerAccess": 1}
        done = ("cudaGraphUpload", "cudaEventDestroy", "cudaStreamSynchronize", "cudaDeviceSynchronize")
        functions = {name[1:]: getattr(self, name) for name in dir(self) if name.startswith("_cuda")}
        functions |= {name: lambda *_: (OK,) for name in (*done, "cudaCtxResetPersistingL2Cache")}
        return SimpleNamespace(**enums, **constants, **functions, cudaIpcMemHandle_t=_Handle)

    @property
    def driver(self) -> SimpleNamespace:
        """In place of `cuda.bindings.driver`."""
        kinds = real_driver.CUgraphNodeType
        return SimpleNamespace(
            CUgraph=lambda value: value,
            cuMemsetD16Async=self._set_half,
            cuGraphGetNodes=lambda graph, count=0: (OK, self.graphs[graph][:count], len(self.graphs[graph])),
            cuGraphNodeGetType=lambda node: (OK, getattr(kinds, f"CU_GRAPH_NODE_TYPE_{node.kind.upper()}")),
            cuGraphKernelNodeGetParams=lambda node: (OK, SimpleNamespace(kern=0, func=node)),
            cuFuncGetName=lambda node: (OK, node.name.encode()),
            cuGraphMemsetNodeGetParams=lambda node: (
                OK,
                SimpleNamespace(dst=node.start, height=1, pitch=0, width=node.size_bytes, elementSize=1),
            ),
        )

    def _set_half(self, address: int, value: int, count: int, stream: int) -> tuple[Any, ...]:
        assert count == 1
        write = lambda: setattr(ctypes.c_uint16.from_address(address), "value", value)  # noqa: E731
        self._put(Node("memset", call=write, start=address, size_bytes=2))
        return (OK,)

    def _cudaStreamBeginCapture(self, stream: int, mode: Any) -> tuple[Any, ...]:  # noqa: N802
        assert stream == STREAM
        assert self.capture is None
        self.capture = Capture(mode.name.removeprefix("cudaStreamCaptureMode"))
        self.modes.append(self.capture.mode)
        return (OK,)

    def _cudaStreamEndCapture(self, stream: int) -> tuple[Any, ...]:  # noqa: N802
        assert self.capture is not None
        capture, self.capture = self.capture, None
        if capture.broken:
            return (getattr(real_runtime.cudaError_t, capture.broken), None)
        return (OK, self._new(self.graphs, capture.nodes))

    def _cudaGraphInstantiate(self, graph: int, flags: int) -> tuple[Any, ...]:  # noqa: N802
        return (OK, self._new(self.graphs, self.graphs[graph]))

    def _cudaGraphDestroy(self, graph: int) -> tuple[Any, ...]:  # noqa: N802
        del self.graphs[graph]
        return (OK,)

    _cudaGraphExecDestroy = _cudaGraphDestroy  # noqa: N815

    def _cudaGraphLaunch(self, graph: int, stream: int) -> tuple[Any, ...]:  # noqa: N802
        for node in self.graphs[graph]:
            self.run(node)
        return (OK,)

    def _cudaGraphGetEdges(self, graph: int, count: int = 0) -> tuple[Any, ...]:  # noqa: N802
        edges = [SimpleNamespace(type=int(node.programmatic)) for node in self.graphs[graph]]
        return (OK, [], [], edges[:count], len(edges))

    def _cudaEventCreate(self) -> tuple[Any, ...]:  # noqa: N802
        return (OK, self._new(self.events, 0))

    def _cudaEventRecordWithFlags(self, event: int, stream: int, flags: int) -> tuple[Any, ...]:  # noqa: N802
        self._put(Node("event_record", call=lambda: self.events.update({event: self.now_ns})))
        return (OK,)

    def _cudaEventElapsedTime(self, start: int, stop: int) -> tuple[Any, ...]:  # noqa: N802
        return (OK, (self.events[stop] - self.events[start]) / 1e6)

    def _cudaMemGetInfo(self) -> tuple[Any, ...]:  # noqa: N802
        return (OK, self.free_bytes, 1 << 31)

    def _cudaDeviceGetLimit(self, limit: Any) -> tuple[Any, ...]:  # noqa: N802
        return (OK, self.limits[limit.name])

    def _cudaIpcOpenMemHandle(self, handle: _Handle, flags: int) -> tuple[Any, ...]:  # noqa: N802
        key = bytes(handle.bytes)
        if key not in self.memories:
            return (real_runtime.cudaError_t.cudaErrorInvalidValue, None)
        self.mapped.append(key)
        return (OK, self.memories[key].data_ptr())

    def _cudaIpcCloseMemHandle(self, address: int) -> tuple[Any, ...]:  # noqa: N802
        (key,) = (key for key in self.mapped if self.memories[key].data_ptr() == address)
        self.mapped.remove(key)
        return (OK,)

    def _new(self, table: dict[int, Any], value: Any) -> int:
        self._next += 1
        table[self._next] = value
        return self._next


class _Handle:
    """cudaIpcMemHandle_t."""

    def __init__(self) -> None:
        self.bytes = (ctypes.c_char * 64)()

    def getPtr(self) -> int:  # noqa: N802
        return ctypes.addressof(self.bytes)


class FakeMemory:
    """Memory of the card that the parent owns."""

    def __init__(self, cuda: FakeCuda, size_bytes: int) -> None:
        self._cuda = cuda
        self.size_bytes = size_bytes
        # Memory that was used before, so that nothing relies on zeros.
        self.tensor = torch.full((size_bytes,), 0xA5, dtype=torch.uint8)
        self.handle = len(cuda.memories).to_bytes(64, "little")
        cuda.memories[self.handle] = self.tensor

    def free(self) -> None:
        assert self.handle not in self._cuda.mapped, "memory is freed that the worker still has mapped"
        self.size_bytes = 0


class FakeCard:
    """Implements `harness.devices.cuda_native.Card`."""

    device = "cuda:0"

    def __init__(self, cuda: FakeCuda) -> None:
        self.conditions = {"ecc": "1"}
        self.levels: tuple[tuple[str, ...], ...] = LEVELS
        self._cuda = cuda

    def allocate(self, size_bytes: int) -> FakeMemory:
        return FakeMemory(self._cuda, size_bytes)

    def wait(self) -> None:
        """Nothing is ever pending."""

    def digest(self, tensors: tuple[torch.Tensor, ...], key: int) -> int:
        return hash((key, *(tensor.contiguous().numpy().tobytes() for tensor in tensors)))

    def holds(self, words: tuple[torch.Tensor, ...], bits: int) -> bool:
        return holds(words, bits)

    def read(self) -> None:
        """There are no readings."""
