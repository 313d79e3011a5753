"""Channel: a worker process at the other end of a private socket, with deadlines, and its chatter kept out of the way."""

from __future__ import annotations

import collections
import contextlib
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from harness.isolation import isolated
from harness.messages import Failure
from harness.model import HgemmError, Model, one_sentence, printable

WORKER = "harness.worker"
"""The module that a worker runs."""
MAX_MESSAGE_BYTES = 64 << 20
ENDING_S = 5.0
"""Seconds that a worker whose connection is closed has to end by itself."""
CHATTER_LINES = 40
CHATTER_LINE_BYTES = 400
MAX_DETAIL = 1000
"""Characters that are kept of what a worker says of a failure."""
PASSED_ON = (
    "PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES", "HGEMM_CACHE", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR",
)  # fmt: skip
"""Environment variables that a worker inherits; all others stay behind."""

_HEADER = struct.Struct(">I")
_Reply = TypeVar("_Reply", bound=Model)


class WorkerFailed(HgemmError):
    """The worker answered that it could not, and is still there unless `fatal`."""

    exit_code = 3

    def __init__(self, failure: Failure) -> None:
        super().__init__(printable(failure.detail)[:MAX_DETAIL])
        self.failure = failure


class WorkerTimeout(HgemmError):
    """The worker did not answer in time; it was killed."""

    exit_code = 3


class WorkerDied(HgemmError):
    """The worker's process ended without an answer, or was ended because what it sent was none."""

    exit_code = 3

    def __init__(self, returncode: int | None, chatter: str, breach: str = "") -> None:
        self.returncode = returncode
        """Exit status, negative for a signal; None where it was ended for its breach of the protocol."""
        how = f"the worker {breach} and was killed" if returncode is None else f"the worker ended with {_ending(returncode)}"
        super().__init__(how + (f"; it last printed: {chatter}" if chatter else "") + ".")


class Endpoint:
    """One end of the socket: whole messages, each a length and that many bytes of JSON."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def send(self, message: Model, deadline: float | None = None) -> None:
        """Send one message.

        Raises:
            OSError: the other side is gone.
            TimeoutError: it did not take the message before `deadline` (of time.monotonic).
        """
        data = message.model_dump_json().encode()
        self._socket.settimeout(_left(deadline))
        self._socket.sendall(_HEADER.pack(len(data)) + data)

    def receive(self, deadline: float | None = None) -> bytes:
        """The next message, JSON.

        Raises:
            EOFError: the other side is gone.
            ValueError: it announced a message that is too long.
            TimeoutError: nothing whole arrived before `deadline` (of time.monotonic).
        """
        size = _HEADER.unpack(self._exactly(_HEADER.size, deadline))[0]
        if size > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of {size} bytes")
        return self._exactly(size, deadline)

    def _exactly(self, size: int, deadline: float | None) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._socket.settimeout(_left(deadline))
            piece = self._socket.recv(min(1 << 20, size - len(data)))
            if not piece:
                raise EOFError("closed")
            data += piece
        return bytes(data)


class WorkerProcess:
    """A fresh interpreter running `harness.worker`, spoken to over a private socket.

    Its standard output and error are drained for as long as it lives and all but the tail is thrown away, so a worker
    that prints megabytes neither blocks nor costs memory.

    Args:
        arguments: of `harness.worker`.
        pass_fds: file descriptors that it inherits.
        namespaces: for a worker that is not trusted, the namespaces that it gets, and a temporary directory of its own;
            None for one that is.
    """

    def __init__(
        self, arguments: tuple[str, ...], pass_fds: tuple[int, ...] = (), namespaces: tuple[str, ...] | None = None
    ) -> None:
        ours, theirs = socket.socketpair()
        self._chatter: collections.deque[bytes] = collections.deque(maxlen=CHATTER_LINES)
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(Path(__file__).resolve().parents[1]), *filter(None, [environment.get("PYTHONPATH")])]
        )
        command = [sys.executable, "-P", "-B", "-m", WORKER, str(theirs.fileno()), *arguments]
        self._scratch = None
        if namespaces is not None:
            self._scratch = tempfile.TemporaryDirectory(prefix="hgemm-worker-", ignore_cleanup_errors=True)
            command = isolated(command, whole=False, namespaces=namespaces)
            environment |= {"TMPDIR": self._scratch.name, "HOME": self._scratch.name}
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=(theirs.fileno(), *pass_fds),
                start_new_session=True,
            )
        finally:
            theirs.close()
        self._socket = ours
        self._endpoint = Endpoint(ours)
        self._drain = threading.Thread(target=self._drain_chatter, daemon=True)
        self._drain.start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether its process still runs."""
        return self._process.poll() is None

    def call(self, request: Model, reply: type[_Reply], timeout_s: float) -> _Reply:
        """Send a request and wait for its answer.

        Raises:
            WorkerFailed: the worker says that it could not.
            WorkerTimeout: no answer within `timeout_s` seconds; the worker is killed.
            WorkerDied: its process ended, or it sent something that is not an answer (then it is killed).
        """
        deadline = time.monotonic() + timeout_s
        try:
            self._endpoint.send(request, deadline)
            data = self._endpoint.receive(deadline)
            return _parse(data, reply)
        except WorkerFailed:
            raise
        except TimeoutError:
            self.kill()
            raise WorkerTimeout(f"no answer within {timeout_s:.0f} s; the worker was killed.") from None
        except (EOFError, OSError):
            raise self._died() from None
        except ValueError as error:
            self.kill()
            what = one_sentence(error) if isinstance(error, ValidationError) else str(error)
            raise WorkerDied(None, self.chatter(), f"sent what is no answer ({printable(what)[:400]})") from None
        except BaseException:
            # An answer that is still to come would be taken for that to the next request.
            self.kill()
            raise

    def kill(self) -> None:
        """End the worker and everything that it started, and wait for it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._socket.close()
        self._drain.join(timeout=ENDING_S)
        if self._scratch is not None:
            self._scratch.cleanup()

    def close(self) -> None:
        """Let the worker end by itself, then make sure."""
        self._socket.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=ENDING_S)
        self.kill()

    def chatter(self) -> str:
        """The tail of what the worker printed, on one line."""
        return printable(b" | ".join(self._chatter).decode("utf-8", "replace"))[-1000:]

    def _died(self) -> WorkerDied:
        try:
            returncode: int | None = self._process.wait(timeout=ENDING_S)
        except subprocess.TimeoutExpired:
            returncode = None
        self.kill()
        return WorkerDied(returncode, self.chatter(), "closed its connection")

    def _drain_chatter(self) -> None:
        pipe = self._process.stdout
        assert pipe is not None
        os.set_blocking(pipe.fileno(), False)
        with selectors.DefaultSelector() as selector, pipe:
            selector.register(pipe, selectors.EVENT_READ)
            while True:
                selector.select()
                data = os.read(pipe.fileno(), 1 << 16)
                if not data:
                    return
                for line in data[-CHATTER_LINES * CHATTER_LINE_BYTES :].splitlines()[-CHATTER_LINES:]:
                    self._chatter.append(line[:CHATTER_LINE_BYTES])


def _parse(data: bytes, reply: type[_Reply]) -> _Reply:
    if data.startswith(b'{"type":"failure"'):
        raise WorkerFailed(Failure.model_validate_json(data))
    return reply.model_validate_json(data)


def _left(deadline: float | None) -> float | None:
    """Seconds until a deadline, for a socket.

    Raises:
        TimeoutError: none are left.
    """
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _ending(returncode: int) -> str:
    if returncode >= 0:
        return f"exit status {returncode}"
    try:
        return f"signal {signal.Signals(-returncode).name}"
    except ValueError:
        return f"signal {-returncode}"
