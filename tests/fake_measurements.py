"""A pytest plugin for subprocesses (`-p fake_measurements`): what the gate measures is made up, as `HGEMM_FAKE` says, in JSON.

Only the device is replaced: options, collection, pytest-benchmark, the gate and the exit codes are the real ones.
"""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from gates import World, benchmark
from runs import CPU

from harness.gate_data import Benchmark
from harness.gate_measure import Bench, NotVerifiedError, Target
from harness.problem import Problem
from harness.record import Measure

FAKE = json.loads(os.environ.get("HGEMM_FAKE", "{}"))
WORLD = World(device=CPU, spread=FAKE.get("spread", 0.005), slower=FAKE.get("slower", 1.0), machine=FAKE.get("machine", 1.0))
SEEDS = np.random.default_rng(FAKE.get("seed", 1))


def measure(bench: Bench, target: Target, problem: Problem, measure: Measure) -> Benchmark:
    if str(problem) == FAKE.get("rejected"):
        raise NotVerifiedError(f"{problem} is rejected, wrong_result: made up.")
    world = WORLD.but(name=target.submission.manifest.name, measures=(measure,))
    made = benchmark(world, problem, measure, SEEDS)
    return made.model_copy(update={"submission": target.submission.reference()})


def measured_again(bench: Bench, target: Target, of: Benchmark) -> Benchmark:
    return of.model_copy(update={"sittings": (*of.sittings, *measure(bench, target, of.problem, of.measure).sittings)})


def pytest_configure(config: pytest.Config) -> None:
    Bench.measure = measure  # type: ignore[method-assign]
    Bench.again = measured_again  # type: ignore[method-assign]
