"""A run in a process that kills itself at a chosen place. Used by test_resume: PLACE, then a run to resume or a directory."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from fake_device import FakeDevice, FakeDriver

from harness import evaluate, run
from harness.build import BuildOptions
from harness.evaluate import Evaluator
from harness.measurement import Measurement
from harness.problem_sets import resolve_shapes
from harness.protocol import CPU_BASELINES, Protocol
from harness.record import Measure
from harness.run import RECORDS, SAMPLES, Run
from harness.session import RunSession
from harness.submission import Submission

SHAPES = "8x8x8,8x8x9,8x8x10,8x8x11,8x8x12,8x8x13"
SUBMISSION = Path(__file__).resolve().parent.parent / "submissions" / "cpu-naive"
PROTOCOL = Protocol(measures=(Measure(),), baselines=CPU_BASELINES, anchor=CPU_BASELINES[-1], window_ns=50_000)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(holder: object, name: str, calls: int = 0) -> None:
    """Die instead of the call after so many calls."""
    plain, made = getattr(holder, name), 0

    def wrapped(*arguments: object) -> object:
        nonlocal made
        if made == calls:
            die()
        made += 1
        return plain(*arguments)

    setattr(holder, name, wrapped)


def halfway(name: str) -> None:
    """Die when half of the second line of that file has been written."""
    plain, made = run._append, 0

    def wrapped(path: Path, data: bytes) -> None:
        nonlocal made
        made += path.name == name
        if path.name == name and made == 2:
            with path.open("ab") as file:
                file.write(data[: len(data) // 2])
            die()
        plain(path, data)

    run._append = wrapped


def between_samples_and_record() -> None:
    plain, made = Run._append, 0

    def wrapped(self: Run, name: str, line: run.Document) -> None:
        nonlocal made
        made += name == RECORDS
        if name == RECORDS and made == 2:
            die()
        plain(self, name, line)

    Run._append = wrapped  # type: ignore[method-assign]


def halfway_through_the_end() -> None:
    def wrapped(path: Path, text: str) -> None:
        path.with_name(path.name + run.PARTIAL).write_text(text[: len(text) // 2])
        die()

    run._write_atomically = wrapped


PLACES = {
    "after the header": lambda: before(RunSession, "go"),
    "after a segment": lambda: before(Measurement, "run"),
    "while measuring": lambda: before(Measurement, "run", 1),
    "halfway through samples": lambda: halfway(SAMPLES),
    "between samples and record": between_samples_and_record,
    "halfway through a record": lambda: halfway(RECORDS),
    "before the end": lambda: before(Run, "finish"),
    "halfway through the end": halfway_through_the_end,
    "nowhere": lambda: None,
}


def main(place: str, where: Path) -> None:
    evaluate.open_driver = lambda device, native: FakeDriver(FakeDevice())
    if (where / "run.json").exists():
        PLACES[place]()
        session = RunSession.resume(where, "cpu", BuildOptions())
    else:
        session = RunSession.start(
            Evaluator("cpu", PROTOCOL), Submission.read(SUBMISSION), resolve_shapes(SHAPES), where, ("test",)
        )
        PLACES[place]()
    with session:
        session.go(None, None)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
