"""Sharing work among devices: the first works in this thread, every other one in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar


class Abandonable(Protocol):
    """What drives a device."""

    def abandon(self) -> None:
        """From another thread: end what it is at."""


_Device = TypeVar("_Device", bound=Abandonable)


def share(work: Callable[[_Device], None], devices: Sequence[_Device], stopped: threading.Event) -> None:
    """Have every device do `work`, which takes its tasks from one line until none is left or `stopped` is set.

    If one fails, or Ctrl-C comes, all stop and what they are at is lost: `work` keeps nothing once `stopped` is set.

    Raises:
        BaseException: what the first that failed raised.
    """
    mine, *others = devices

    def stop_if_failed(future: Future[None]) -> None:
        if future.exception() is not None:
            stopped.set()

    with ThreadPoolExecutor(max(1, len(others)), "device") as pool:
        helping = [pool.submit(work, other) for other in others]
        for future in helping:
            future.add_done_callback(stop_if_failed)
        try:
            work(mine)
            for future in helping:
                future.result()
        except BaseException:
            stopped.set()
            for other in others:
                other.abandon()
            raise
