"""Seconds that the harness itself costs; `make bench` runs this file, `make test` does not."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from factories import make_record
from gates import World, benchmarks
from pytest_benchmark.fixture import BenchmarkFixture

from harness.gate import Limits, Outcome, judge
from harness.gate_data import collect
from harness.planner import make_plans
from harness.problem import Problem
from harness.problem_sets import resolve_shapes
from harness.profiles import load_profile
from harness.record import Record, Status
from harness.submission import Submission
from harness.timing.statistics import hodges_lehmann

IMPORT_LIMIT_S = 0.3
MMA = Path(__file__).resolve().parent.parent / "submissions" / "cuda-mma"


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


def test_plans_of_sixteen_shapes(benchmark: BenchmarkFixture) -> None:
    """plan.py in its own limited process, and every plan validated."""
    submission, problems = Submission.read(MMA), resolve_shapes("quick").problems
    outcomes = benchmark.pedantic(make_plans, (submission, problems, load_profile("h200")), rounds=5)
    assert len(outcomes) == len(problems)


def test_record_to_json_and_back(benchmark: BenchmarkFixture) -> None:
    """What every shape of a run costs when it is written and when it is read."""
    record = make_record(Problem(m=64, n=64, k=64), Status.VERIFIED)
    assert benchmark(lambda: Record.parse(record.model_dump_json(), "record")) == record


def test_interval_of_forty_rounds(benchmark: BenchmarkFixture) -> None:
    """One ratio with its interval, of which a shape has one per baseline, measure and look."""
    logs = np.random.default_rng(1).normal(0, 0.01, 40)
    assert benchmark(hodges_lehmann, logs).low < 1.01


def test_gate_over_sixteen_shapes(benchmark: BenchmarkFixture) -> None:
    """A verdict, once both sides are read."""
    before, now = (collect(benchmarks(World(), seed)) for seed in (1, 2))
    assert benchmark(judge, now, before, Limits()).outcome is Outcome.PASS
