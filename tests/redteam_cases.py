"""The cheats and the honest look-alikes below tests/redteam and tests/benign, and how they are tried.

A directory is a submission with an `expected.toml` beside its files: what it does, where it must be caught, with which
reason and by which guard. A cheat on a finished run has a `tamper.py` instead.
"""

from __future__ import annotations

import itertools
import json
import os
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from guards import GUARDS
from paths import path_with
from pydantic import BeforeValidator, Field

from harness.drivers import Driver, open_driver
from harness.model import Model
from harness.record import L2State

HERE = Path(__file__).resolve().parent
REDTEAM, BENIGN = HERE / "redteam", HERE / "benign"
SHAPES = {"cpu": "32x48x64", "h200": "128x96x160", "cuda": "128x96x160,256x256x256"}

KEPT_AT = "0x200000000000"
_COPIES = itertools.count(1)


class Warm:
    """Opens drivers, and gives the same one again while its worker lives: starting one takes longer than most trials."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, bool], Driver] = {}

    def open(self, device: str, native: bool) -> Driver:
        """In place of `harness.drivers.open_driver`."""
        driver = self._kept.get((device, native))
        if driver is None or not driver.alive:
            driver = self._kept[device, native] = open_driver(device, native)
            driver.close = lambda: None  # type: ignore[method-assign]
        return driver

    def end(self) -> None:
        """End all workers."""
        for driver in self._kept.values():
            driver.kill()
        self._kept = {}


def _names(value: object) -> object:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
"""One name, or a list of them."""


class Faster(Model):
    """What a cheat must be faster than, on a GPU and with its guards off: so much that catching it matters."""

    than: str = "cuda-plain"
    """Its honest twin, below tests/benign."""
    on: str = "512x512x512"
    """The shape."""
    l2_state: Annotated[L2State, Field(strict=False)] = L2State.COLD
    """Whether windows are cold, or stay with one set of buffers."""
    also: Names = ()
    """Guards that would catch it there, beside its own."""


class Expected(Model):
    """`expected.toml`."""

    does: str
    """What it does, in one line."""
    device: Literal["cpu", "cuda", "h200", "none"]
    """Where it runs: `h200` is refused before a GPU would be needed; `none` is no submission."""
    where: Literal["read", "plan", "build", "verify", "time", "publish", "none"]
    """Where it must be caught."""
    reason: Annotated[Names, Field(min_length=1)]
    """The reasons that it may get; more than one only where chance decides."""
    guard: str
    """The guard that catches it."""
    also: Names = ()
    """The guards that would, were that one off; with all of them off it is accepted."""
    chance: Names = ()
    """The guards that would catch it too, or not, as their random draws fall."""
    switch: bool = True
    """Whether it could gain anything without the guards, so that switching them off is tried."""
    shapes: str = ""
    """Shapes that it is tried on, where not the usual ones."""
    says: str = ""
    """Words of the refusal."""
    deadline_s: float = 60.0
    """Deadline of a shape."""
    faster: Faster | None = None
    """What it gains without its guards; None where it gains no time, and is a fault that no result may hang on."""

    @property
    def guards(self) -> tuple[str, ...]:
        """All guards that stand in its way."""
        return (self.guard, *self.also, *self.chance)

    @property
    def switchable(self) -> bool:
        """Whether all of them can be switched off."""
        return self.switch and all(GUARDS[name].off for name in self.guards)


class Case(NamedTuple):
    """One directory."""

    path: Path
    expected: Expected

    @property
    def name(self) -> str:
        """Its name."""
        return self.path.name

    @property
    def needs_nvcc(self) -> bool:
        """Whether nvcc builds it."""
        return self.path.joinpath("plan.py").is_file() and 'language="native"' in self.path.joinpath("plan.py").read_text()

    @property
    def shapes(self) -> str:
        """Shapes that it is tried on."""
        return self.expected.shapes or SHAPES[self.expected.device]

    def copy(self, parent: Path) -> Path:
        """The submission alone, with an address of its own for what it keeps, since trials may share a worker."""
        ignored = shutil.ignore_patterns("expected.toml", "__pycache__")
        copy = Path(shutil.copytree(self.path, parent / self.name, symlinks=True, ignore=ignored))
        header = copy / "kernels" / "gemm.h"
        if header.is_file():
            text = header.read_text(encoding="utf-8")
            header.write_text(text.replace(KEPT_AT, f"{int(KEPT_AT, 16) + (next(_COPIES) << 24):#x}"), encoding="utf-8")
        return copy

    def command(self, directory: Path, runs: Path) -> list[str]:
        """What a user would type."""
        device = {"cpu": "cpu", "h200": "h200", "cuda": "cuda:0"}[self.expected.device]
        if self.expected.device == "h200":
            return ["check", str(directory), "--device", device, "--build-only", "--shapes", self.shapes, "--json"]
        times = self.expected.where in ("time", "none") or self.expected.deadline_s != 60.0
        if not times:
            return ["check", str(directory), "--device", device, "--shapes", self.shapes, "--json"]
        options = ["--output", str(runs), "--deadline", str(self.expected.deadline_s)]
        return ["run", str(directory), "--device", device, "--shapes", self.shapes, *options, "--json"]


class Said(NamedTuple):
    """What a command ended with."""

    code: int
    stdout: str
    stderr: str

    @property
    def reasons(self) -> list[str]:
        """Reasons of what was not verified, or `refused`; empty where all was."""
        if not self.stdout:
            return ["refused"] if self.code == 2 and self.stderr.startswith("error: ") else [f"exit {self.code}: {self.stderr}"]
        return [outcome["reason"] for outcome in json.loads(self.stdout)["not_verified"]]


def cases(root: Path) -> list[Case]:
    """All directories below `root`."""
    return [
        Case(path, Expected.model_validate(tomllib.loads((path / "expected.toml").read_text())))
        for path in sorted(root.iterdir())
    ]


def commands(arguments: Sequence[list[str]], scratch: Path) -> list[Said]:
    """Run commands of the real command line, one after another in one process with a device lock of its own."""
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(scratch), "PYTHONPATH": path_with(HERE.parent), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, str(HERE / "command_batch.py")],
        input=json.dumps(arguments),
        env=environment,
        cwd=scratch,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return [Said(**result) for result in results]


def tampered(case: Case, run: Path, parent: Path) -> Path:
    """A copy of a finished run, changed by the case."""
    copy = Path(shutil.copytree(run, parent / f"{case.name}" / run.name))
    runpy.run_path(str(case.path / "tamper.py"))["tamper"](copy)
    return copy
