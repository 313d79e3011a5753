"""HGEMM Arena: verify and time half-precision matrix-multiply (HGEMM) kernels.

The whole public API:

    from pathlib import Path
    import harness

    problems = [harness.Problem(m=512, n=512, k=512)]
    with harness.Evaluator("auto", purpose=harness.Purpose.SCREEN) as evaluator:
        for record in evaluator.evaluate(Path("submissions/cpu-blocked"), problems):
            print(record.problem, record.status, harness.reward(record))

    run = harness.Run.read(Path("runs/…"))  # what `hgemm run` wrote: run.header, run.records, run.samples()

Every name is loaded on first use, so `import harness` costs next to nothing and pulls in neither torch nor a GPU library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.evaluate import Evaluator
    from harness.plan import Plan
    from harness.problem import Problem
    from harness.protocol import Purpose
    from harness.record import Record
    from harness.rewards import reward
    from harness.run import Run
    from harness.submission import Submission

__all__ = ["Evaluator", "Plan", "Problem", "Purpose", "Record", "Run", "Submission", "reward"]

_HOMES = {
    "Evaluator": "harness.evaluate",
    "Plan": "harness.plan",
    "Problem": "harness.problem",
    "Purpose": "harness.protocol",
    "Record": "harness.record",
    "Run": "harness.run",
    "Submission": "harness.submission",
    "reward": "harness.rewards",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
