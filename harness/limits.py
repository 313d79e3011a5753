"""Processes of their own group, with limits, that end when their parent gives up."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

# ulimit counts kibibytes for memory and 512-byte blocks for files. Limits are set by a shell, because preexec_fn is
# unsafe in a process that has threads. A limit that cannot be set is one that was lower already. The limit on CPU time
# ends what a killed parent left behind.
_SHELL = """
ulimit -c 0
ulimit -v "$1" 2>/dev/null
ulimit -f "$2" 2>/dev/null
ulimit -t "$3" 2>/dev/null
shift 3
exec "$@"
"""


class Limits(NamedTuple):
    """What one process may use."""

    seconds: float
    """Wall time of the process and of all that it starts."""
    memory_bytes: int
    """Address space of each process."""
    file_bytes: int
    """Size of each file that it writes."""


class Finished(NamedTuple):
    """How a process ended."""

    returncode: int
    """Exit status; negative for a signal."""
    timed_out: bool
    """Whether it was killed at its wall-time limit."""


class ProcessGroups:
    """The processes of one build. `close` kills those that still run; use it as a context manager."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[int] = set()
        self._closed = False

    def __enter__(self) -> ProcessGroups:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self, command: Sequence[str], directory: Path, log: Path, limits: Limits, environment: Mapping[str, str]
    ) -> Finished:
        """Run `command` in `directory` with standard output and error in `log`, and wait for it.

        Raises:
            OSError: it could not be started.
        """
        numbers = (limits.memory_bytes // 1024, max(1, limits.file_bytes // 512), int(limits.seconds) + 5)
        shell = ["/bin/sh", "-c", _SHELL, "sh", *map(str, numbers), *command]
        with log.open("wb") as output, self._lock:
            if self._closed:
                return Finished(-signal.SIGKILL, timed_out=False)
            process = subprocess.Popen(
                shell,
                cwd=directory,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.add(process.pid)
        try:
            return Finished(process.wait(limits.seconds), timed_out=False)
        except subprocess.TimeoutExpired:
            _kill(process.pid)
            return Finished(process.wait(), timed_out=True)
        finally:
            # What it left running in the background would go on beside measurements.
            _kill(process.pid)
            with self._lock:
                self._running.discard(process.pid)

    def close(self) -> None:
        """Kill everything that still runs; later runs end at once."""
        with self._lock:
            self._closed = True
            for group in self._running:
                _kill(group)


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
