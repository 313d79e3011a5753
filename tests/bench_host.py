"""Seconds that the harness itself costs; `make bench` runs this file, `make test` does not."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from harness.problem_sets import resolve_shapes

IMPORT_LIMIT_S = 0.3


@pytest.mark.parametrize("statement", ["pass", "import harness", "import harness; harness.Evaluator", "import harness.cli"])
def test_import(benchmark: BenchmarkFixture, statement: str) -> None:
    """A whole process, start of the interpreter included; `pass` is what Python alone costs."""
    seconds: list[float] = []

    def start() -> None:
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True)
        seconds.append(time.perf_counter() - begin)

    benchmark(start)
    if statement == "import harness":
        assert statistics.median(seconds) < IMPORT_LIMIT_S


def test_resolve_grid(benchmark: BenchmarkFixture) -> None:
    """A thousand validated problems from their file."""
    assert len(benchmark(resolve_shapes, "grid1000").problems) == 1000
