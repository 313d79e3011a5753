"""Made-up results for tests of the gate: benchmarks as noisy as an H200's, and files of pytest-benchmark with them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from factories import make_record
from pytest_benchmark.stats import Stats
from runs import H200, SPEEDUPS, timing_of

from harness.gate_data import EXTRA, Benchmark, Results, Sitting, accept, collect, read_results, write_baseline
from harness.problem import Problem, Track
from harness.problem_sets import resolve_shapes
from harness.profiles import load_profile
from harness.protocol import Protocol, protocol_for
from harness.record import SUBMISSION, Measure, Record
from harness.run import DeviceInfo, SampleLine
from harness.submission import Kind, SubmissionReference
from harness.timing.statistics import LOOKS, signed_rank_bounds

COLD = Measure()
LEAST_SPREAD, MOST_SPREAD = 0.004, 0.07
"""Standard deviation of a shape's windows over their mean, as measured on an H200."""


@dataclass(frozen=True)
class World:
    """What was measured, and how noisy it was."""

    shapes: str = "quick"
    name: str = "kernel"
    device: DeviceInfo = H200
    measures: tuple[Measure, ...] = (COLD,)
    slower: float = 1.0
    """Factor on the submission's time at every shape."""
    by_shape: Mapping[str, float] = field(default_factory=dict)
    """Factor at single shapes."""
    machine: float = 1.0
    """Factor on the time of every contender."""
    spread: float | None = None
    """Of every shape; null draws each one's."""
    drift: float = 1.0
    """Drift that the windows of a round share, in spreads."""
    rankable: bool = True

    def but(self, **changes: Any) -> World:
        return replace(self, **changes)


def benchmarks(world: World, seed: int) -> list[Benchmark]:
    """One sitting of every shape and measure."""
    rng = np.random.default_rng(seed)
    return [benchmark(world, problem, measure, rng) for problem in _problems(world.shapes) for measure in world.measures]


def benchmark(world: World, problem: Problem, measure: Measure, rng: np.random.Generator) -> Benchmark:
    """One sitting."""
    protocol = _protocol(world.device.profile, world.measures)
    names = dict.fromkeys(protocol.baselines, 1.0) | SPEEDUPS
    slowness = {name: names[name] for name in protocol.baselines} | {SUBMISSION: world.slower}
    slowness[SUBMISSION] *= world.by_shape.get(str(problem), 1.0)
    logs = _logs(world, problem, rng, len(slowness))
    lines = {
        name: SampleLine(
            problem=problem,
            attempt=0,
            measure=measure,
            contender=name,
            launches_per_window=100,
            window_ns=tuple(round(1_000_000 * world.machine * slow * math.exp(log)) for log in logs[place]),
            selection_window_ns=() if name == SUBMISSION else (round(1_000_000 * slow),),
        )
        for place, (name, slow) in enumerate(slowness.items())
    }
    fields = {"measures": world.measures, "baselines": protocol.baselines, "rankable": world.rankable}
    made = make_record(problem)
    timings = tuple(timing_of(each, lines) for each in world.measures)
    record = Record.model_validate({**dict(made), **fields, "timings": timings})
    return Benchmark(
        submission=SubmissionReference(
            name=world.name,
            version="1.0.0",
            authors=("Ada",),
            license="MIT",
            description="made up",
            track=Track.F32,
            targets=("sm_90a",),
            kind=Kind.DEVICE,
            tree_sha256="0" * 64,
            code_sha256="0" * 64,
        ),
        device=world.device,
        protocol=protocol,
        harness_version="0.1.0",
        measure=measure,
        sittings=(Sitting(record=record, samples=tuple(lines.values())),),
    )


def again(world: World, of: Benchmark, seed: int) -> Benchmark:
    """The benchmark with one more sitting."""
    more = benchmark(world, of.problem, of.measure, np.random.default_rng(seed))
    return of.model_copy(update={"sittings": (*of.sittings, *more.sittings)})


def pinned(results: Sequence[Benchmark]) -> Results:
    """A baseline that no file holds."""
    held = collect(results)._replace(document=document(results))
    return accept(held, None, "the first", compares=False)


def document(results: Sequence[Benchmark]) -> dict[str, Any]:
    """What pytest-benchmark writes."""
    return {
        "machine_info": {"node": "here"},
        "commit_info": {"id": "0", "dirty": False},
        "benchmarks": [_entry(each) for each in results],
        "datetime": "2026-11-30T00:00:00+00:00",
        "version": "5.3.1",
    }


def write_result(path: Path, results: Sequence[Benchmark]) -> Path:
    """A file of pytest-benchmark."""
    path.write_text(json.dumps(document(results)), encoding="utf-8")
    return path


def write_pinned(path: Path, results: Sequence[Benchmark]) -> Path:
    """A baseline's file."""
    write_baseline(accept(read_results(write_result(path, results)), None, "the first", compares=False), path)
    return path


@cache
def _problems(shapes: str) -> tuple[Problem, ...]:
    return resolve_shapes(shapes).problems


@cache
def _protocol(profile: str, measures: tuple[Measure, ...]) -> Protocol:
    return protocol_for(load_profile(profile)).model_copy(update={"measures": measures})


def _entry(of: Benchmark) -> dict[str, Any]:
    stats = Stats()
    for seconds in of.launch_s():
        stats.update(seconds)
    name = f"{of.submission.name}[{of.problem}-{of.measure.mode}-{of.measure.l2_state}]"
    return {
        "group": f"{of.submission.name} {of.measure}",
        "name": name,
        "fullname": f"submission.toml::{name}",
        "params": None,
        "param": None,
        "extra_info": {EXTRA: of.model_dump(mode="json")},
        "options": {},
        "stats": {**stats.as_dict(), "data": stats.data, "iterations": 100},
    }


def _logs(world: World, problem: Problem, rng: np.random.Generator, contenders: int) -> np.ndarray:
    """Log times (contenders, rounds) around 0, with as many rounds as the harness would have measured.

    As in the simulation that calibrated the intervals (`harness.timing.statistics`): drift from window to window that a round
    shares in part, noise of each contender alone, a few slow windows.
    """
    spread = world.spread
    if spread is None:
        # A shape is as noisy in one run as in the next.
        own = np.random.default_rng(problem.m * 7 + problem.n * 3 + problem.k)
        spread = float(np.clip(math.exp(math.log(0.012) + 1.15 * own.standard_normal()), LEAST_SPREAD, MOST_SPREAD))
    rounds = LOOKS[-1]
    drift = _ar1(rng.standard_normal(rounds * contenders), 0.95).reshape(rounds, contenders)
    order = np.argsort(rng.random(drift.shape), axis=-1)
    noise = spread * (world.drift * np.take_along_axis(drift, order, axis=-1) + rng.standard_normal(drift.shape))
    slow = np.where(rng.random(drift.shape) < 0.02, np.log(rng.uniform(1.1, 1.3, drift.shape)), 0)
    logs: np.ndarray = (noise + slow).T
    for look in LOOKS[:-1]:
        bounds = signed_rank_bounds(logs[:-1, :look] - logs[-1:, :look])
        if ((bounds.high - bounds.low) / 2 <= 0.01).all():
            return logs[:, :look]
    return logs


def _ar1(values: np.ndarray, phi: float) -> np.ndarray:
    for step in range(1, len(values)):
        values[step] = phi * values[step - 1] + math.sqrt(1 - phi**2) * values[step]
    return values
