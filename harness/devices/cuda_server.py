"""Requests on a CUDA device: one graph with its own event nodes each, completion seen by polling the stream."""

from __future__ import annotations

import time
from collections.abc import Callable

from harness.devices.cuda_window import Window, Windows
from harness.timing.server import Arrival


class CudaPort:
    """The device as the server loop sees it.

    Args:
        windows: where requests run.
        graphs: the request's graph, by contender and buffer set.
        between: called after a request with the request that follows; it puts the refreshing of inputs on the stream. None
            for no clean-up at all.
    """

    def __init__(
        self,
        windows: Windows,
        graphs: dict[tuple[str, int], Window],
        between: Callable[[Arrival | None], None] | None,
    ) -> None:
        self._windows = windows
        self._graphs = graphs
        self._between = between
        self._clean = True
        self.poll_resolution_ns = 1
        self.now_ns = time.perf_counter_ns

    def wait_until(self, time_ns: int) -> None:
        """Spin until then: sleeping would add the scheduler's delay."""
        while time.perf_counter_ns() < time_ns:
            pass

    def launch(self, arrival: Arrival) -> None:
        """Launch the request's graph."""
        self._running = self._graphs[arrival.contender, arrival.set_index]
        self._windows.launch(self._running)

    def finish(self) -> int:
        """Poll until the request is complete; its time between its own events."""
        looked_ns = time.perf_counter_ns()
        while not self._windows.is_idle():
            now_ns = time.perf_counter_ns()
            self.poll_resolution_ns = max(self.poll_resolution_ns, now_ns - looked_ns)
            looked_ns = now_ns
        return self._windows.elapsed_ns(self._running)

    def clean_up(self, following: Arrival | None) -> None:
        """Refresh what the following request needs and flush the cache; do not wait."""
        if self._between is not None:
            self._between(following)
            self._windows.flush()
            self._clean = False

    def is_clean(self) -> bool:
        """Whether the stream is idle again."""
        self._clean = self._clean or self._windows.is_idle()
        return self._clean
