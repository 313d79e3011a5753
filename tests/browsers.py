"""A browser for tests: Debian's Chromium driven by playwright, and the app served to it from a board of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
OPTIONS = ("--server.headless=true", "--server.fileWatcherType=none")
START_S = 60


def chromium() -> str | None:
    """Path of the browser."""
    return shutil.which("chromium")


def missing() -> str | None:
    """Why no browser can be driven here, or None."""
    if chromium() is None:
        return "no chromium on PATH (Debian: apt-get install chromium)"
    if importlib.util.find_spec("playwright") is None:
        return "no playwright (pip install playwright)"
    return None


class Server:
    """The app in a process of its own."""

    def __init__(self, database: str, cache: Path) -> None:
        self.database = database
        self.cache = cache
        self.port = _free_port()
        self.url = f"http://localhost:{self.port}"

    def __enter__(self) -> Self:
        environment = {**os.environ, "HGEMM_CACHE": str(self.cache)}
        code = f"from leaderboard.serving import serve; serve({self.database!r}, {self.port}, {OPTIONS})"
        command = [sys.executable, "-c", code]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + START_S
        while not self._answers():
            if time.monotonic() > end or self.process.poll() is not None:
                raise RuntimeError("the app did not start")
            time.sleep(0.2)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/_stcore/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])
