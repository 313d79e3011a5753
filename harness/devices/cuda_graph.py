"""Graphs on a CUDA device: how they are recorded, what nodes they hold, and what a native library may put into one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from harness.devices import BufferSet, MachineFault, SubmissionFault
from harness.devices.cuda_launch import check
from harness.record import Reason

KERNEL, MEMSET, EVENT = "kernel", "memset", "event_record"
HARNESS_KERNELS = frozenset({"probe"})
"""Kernels of the harness that a window holds beside its operations."""
PROGRAMMATIC = 1
"""cudaGraphDependencyTypeProgrammatic: the edge lets a kernel start before the one it depends on has ended."""


class Node(NamedTuple):
    """A node, as far as the rules look at it."""

    kind: str
    """`kernel`, `memset`, or CUDA's name of another kind in lower case."""
    kernel: str = ""
    """Name of a kernel."""
    start: int = 0
    """First address that a memset writes."""
    size_bytes: int = 0
    """From there to the last one."""


class Span(NamedTuple):
    """Memory that may be written."""

    start: int
    end: int


class Recorder:
    """Records what is put on a stream as a graph, without further rules: for operations of the harness's own."""

    mode = "Relaxed"

    def __init__(self, stream: int) -> None:
        from cuda.bindings import runtime

        self._runtime = runtime
        self._stream = stream

    def record(self, put: Callable[[], object]) -> Any:
        """The graph of what `put` puts on the stream."""
        mode = getattr(self._runtime.cudaStreamCaptureMode, f"cudaStreamCaptureMode{self.mode}")
        check(self._runtime.cudaStreamBeginCapture(self._stream, mode))
        try:
            put()
        except BaseException:
            self._runtime.cudaStreamEndCapture(self._stream)
            raise
        return check(self._runtime.cudaStreamEndCapture(self._stream))


class StrictRecorder(Recorder):
    """Records what a library enqueues, and holds it against the rules of `hgemm.h`.

    Args:
        stream: the stream that the library is given.
        kernels: names of its kernels.
        writable: what its memsets may write.
        limits: reads the limits of the device.
        mode: of the capture. The first launch of a kernel loads its code, which `Global` may not allow.
    """

    def __init__(
        self,
        stream: int,
        kernels: frozenset[str],
        writable: frozenset[Span],
        limits: Callable[[], dict[str, int]],
        mode: str = "Global",
    ) -> None:
        super().__init__(stream)
        self.mode = mode
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
            raise forbidden("changes limits of the device", fatal=True)
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


def spans(buffers: Iterable[BufferSet]) -> frozenset[Span]:
    """C and the workspace of some buffer sets."""
    tensors = [tensor for one in buffers for tensor in (one.c, one.workspace)]
    return frozenset(Span(each.data_ptr(), each.data_ptr() + each.numel() * each.element_size()) for each in tensors)


def check_nodes(nodes: Iterable[Node], kernels: frozenset[str], writable: frozenset[Span]) -> None:
    """The rules for what `hgemm_run` enqueues: its own kernels, and memsets of C and the workspace.

    Args:
        nodes: of a graph that was captured of it, which may hold the harness's events and probes too.
        kernels: names of the library's kernels.
        writable: what memsets may write.

    Raises:
        SubmissionFault: it enqueued something else.
    """
    for node in nodes:
        if node.kind == KERNEL and node.kernel not in kernels | HARNESS_KERNELS:
            raise forbidden(f"launches {node.kernel}, which is no kernel of the submission")
        if node.kind == MEMSET and not any(
            span.start <= node.start and node.start + node.size_bytes <= span.end for span in writable
        ):
            raise forbidden("fills memory outside C and the workspace")
        if node.kind not in (KERNEL, MEMSET, EVENT):
            raise forbidden(f"enqueues a {node.kind.replace('_', ' ')}; it may launch kernels and fill C and the workspace")


def forbidden(what: str, fatal: bool = False) -> SubmissionFault:
    """The fault of a library whose `hgemm_run` does what it may not; fatal where that outlives the shape."""
    return SubmissionFault(Reason.FORBIDDEN, f"hgemm_run {what}", fatal)


def nodes_of(graph: Any) -> tuple[Node, ...]:
    """All nodes of a graph."""
    from cuda.bindings import driver

    handle = driver.CUgraph(int(graph))
    count = check(driver.cuGraphGetNodes(handle))[-1]
    return tuple(_node(each) for each in (check(driver.cuGraphGetNodes(handle, count))[0] if count else ()))


def programmatic_edges(graph: Any) -> int:
    """Edges along which a kernel may start before the one it depends on has ended."""
    from cuda.bindings import runtime

    count = check(runtime.cudaGraphGetEdges(graph))[-1]
    edges = check(runtime.cudaGraphGetEdges(graph, count))[2] if count else []
    return sum(int(edge.type) == PROGRAMMATIC for edge in edges)


def _node(handle: Any) -> Node:
    from cuda.bindings import driver

    kind = check(driver.cuGraphNodeGetType(handle)).name.removeprefix("CU_GRAPH_NODE_TYPE_").lower()
    if kind == KERNEL:
        launched = check(driver.cuGraphKernelNodeGetParams(handle))
        # A launch through the runtime names a function of a context, one of a library that belongs to none a kernel.
        named = driver.cuKernelGetName(launched.kern) if int(launched.kern) else driver.cuFuncGetName(launched.func)
        return Node(kind, kernel=check(named).decode("utf-8", "replace"))
    if kind == MEMSET:
        filled = check(driver.cuGraphMemsetNodeGetParams(handle))
        size = (filled.height - 1) * filled.pitch + filled.width * filled.elementSize
        return Node(kind, start=int(filled.dst), size_bytes=int(size))
    return Node(kind)
