"""Windows on a CUDA device: one graph with its own event nodes, flushed caches before it, and the clock read around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from harness.devices import BufferSet, MachineFault, WindowTime
from harness.devices.cuda_graph import Recorder, programmatic_edges
from harness.devices.cuda_kernels import Kernels
from harness.devices.cuda_launch import check
from harness.record import Reason

Enqueue = Callable[[BufferSet], object]

FLUSH_OF_L2 = 2
"""The flush writes, then reads, buffers of this many times the last-level cache."""


class Window(NamedTuple):
    """A captured window, ready to be launched any number of times."""

    executable: Any
    start: Any
    stop: Any


class Windows:
    """Captures and times windows on one stream."""

    def __init__(self, stream: Any, kernels: Kernels, l2_bytes: int) -> None:
        import torch
        from cuda.bindings import runtime

        self._runtime = runtime
        self._stream = stream
        self._kernels = kernels
        self._recorder = Recorder(stream.cuda_stream)
        words = FLUSH_OF_L2 * l2_bytes // 4
        self._written = torch.zeros(words, dtype=torch.float32, device="cuda")
        self._read = torch.zeros(words, dtype=torch.float32, device="cuda")
        self._total = torch.zeros((), dtype=torch.float32, device="cuda")

    def capture(
        self,
        enqueue: Enqueue,
        buffers: Sequence[BufferSet],
        unscored: int,
        probed: bool = True,
        recorder: Recorder | None = None,
    ) -> Window:
        """Capture `unscored` operations, a clock probe, an event, the other operations, an event, and a clock probe.

        A request of server mode is one operation between two events, without probes. Operations follow one another on one
        stream, so that each starts when every node of the one before has ended.
        """
        runtime, handle = self._runtime, self._stream.cuda_stream
        start, stop = check(runtime.cudaEventCreate()), check(runtime.cudaEventCreate())

        def put() -> None:
            for one in buffers[:unscored]:
                enqueue(one)
            if probed:
                self._kernels.probe(0)
            check(runtime.cudaEventRecordWithFlags(start, handle, runtime.cudaEventRecordExternal))
            for one in buffers[unscored:]:
                enqueue(one)
            check(runtime.cudaEventRecordWithFlags(stop, handle, runtime.cudaEventRecordExternal))
            if probed:
                self._kernels.probe(1)

        graph = (recorder or self._recorder).record(put)
        executable = check(runtime.cudaGraphInstantiate(graph, 0))
        check(runtime.cudaGraphDestroy(graph))
        check(runtime.cudaGraphUpload(executable, handle))
        return Window(executable, start, stop)

    def time(self, window: Window) -> WindowTime:
        """Launch a window and wait for it.

        Raises:
            SubmissionFault, MachineFault: the work failed.
        """
        # Warm windows are flushed too: their unscored operations then find memory as everybody's do, and load the set.
        self.flush()
        return self.measure(window)

    def measure(self, window: Window) -> WindowTime:
        """The same without the flush."""
        runtime, handle = self._runtime, self._stream.cuda_stream
        check(runtime.cudaGraphLaunch(window.executable, handle))
        check(runtime.cudaStreamSynchronize(handle))
        return WindowTime(window_ns=self.elapsed_ns(window), sm_clock_mhz=self._kernels.clock_mhz())

    def flush(self) -> None:
        """Put on the stream: replace everything in L2 by clean lines of the harness's own."""
        import torch

        with torch.cuda.stream(self._stream):
            self._written.fill_(1.0)
            torch.sum(self._read, dim=0, out=self._total)
        check(self._runtime.cudaCtxResetPersistingL2Cache())

    def launch(self, window: Window) -> None:
        """Launch a window and do not wait."""
        check(self._runtime.cudaGraphLaunch(window.executable, self._stream.cuda_stream))

    def is_idle(self) -> bool:
        """Whether everything on the stream is done.

        Raises:
            SubmissionFault, MachineFault: the work failed.
        """
        (code,) = self._runtime.cudaStreamQuery(self._stream.cuda_stream)
        if code == self._runtime.cudaError_t.cudaErrorNotReady:
            return False
        check((code,))
        return True

    def elapsed_ns(self, window: Window) -> int:
        """Length of a window that is complete, in nanoseconds."""
        elapsed_ns: int = round(check(self._runtime.cudaEventElapsedTime(window.start, window.stop)) * 1e6)
        if elapsed_ns <= 0:
            raise MachineFault(Reason.DEVICE_ERROR, "a window's events are not in order", fatal=False)
        return elapsed_ns

    def release(self, window: Window) -> None:
        """Free a window."""
        check(self._runtime.cudaGraphExecDestroy(window.executable))
        check(self._runtime.cudaEventDestroy(window.start))
        check(self._runtime.cudaEventDestroy(window.stop))

    def overlaps(self, enqueue: Enqueue, buffers: BufferSet) -> bool:
        """Whether the second of two operations may start before the first has ended: a programmatic edge between them.

        A graph of two operations then has more programmatic edges than two graphs of one.
        """
        return self._programmatic_edges(enqueue, [buffers, buffers]) > 2 * self._programmatic_edges(enqueue, [buffers])

    def _programmatic_edges(self, enqueue: Enqueue, buffers: Sequence[BufferSet]) -> int:
        graph = self._recorder.record(lambda: [enqueue(one) for one in buffers])
        found = programmatic_edges(graph)
        check(self._runtime.cudaGraphDestroy(graph))
        return found
