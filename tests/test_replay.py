"""Replay through the real command: the same seed gives the same outcome, and a changed snapshot is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.problem import Problem
from harness.record import Interval, Measure
from harness.replay import ReplayedRatio
from harness.seeds import derive, shape_seed

ROOT = Path(__file__).resolve().parents[1]


def hgemm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300, check=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("replay")
    done = hgemm("run", "submissions/cpu-naive", "--shapes", "16x24x40", "--output", output)
    assert done.returncode == 0, done.stderr
    return next(output.iterdir())


def test_a_replay_has_the_seed_and_the_outcome_of_the_record(run: Path) -> None:
    done = hgemm("replay", run, "--shape", "16x24x40", "--json")
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    record = json.loads((run / "records.jsonl").read_text().splitlines()[0])
    assert found["seed"] == record["seed"] == found["now"]["seed"]
    assert found["now"]["status"] == "verified"
    assert found["now"]["rankable"] is False
    # Equal seeds draw equal inputs, so what verification measured is equal to the last digit.
    then, now = (each["verification"]["draws"] for each in (found["then"], found["now"]))
    assert then == now
    assert {ratio["baseline"] for ratio in found["ratios"]} == {"torch_matmul", "torch_matmul_fp32"}
    assert (done.returncode == 0) == found["reproduces"]


def test_what_was_not_measured_is_not_replayed(run: Path) -> None:
    done = hgemm("replay", run, "--shape", "64x64x64")
    assert done.returncode == 2
    assert "no measurement of 64x64x64" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_changed_snapshot_is_not_replayed(run: Path) -> None:
    source = run / "submission" / "kernels" / "hgemm.c"
    before = source.read_bytes()
    source.write_bytes(before + b"/* changed */\n")
    try:
        done = hgemm("replay", run, "--shape", "16x24x40")
    finally:
        source.write_bytes(before)
    assert done.returncode == 2
    assert "was changed since the run" in done.stderr


def ratio(then: tuple[float, float, float], now: tuple[float, float, float]) -> bool:
    a, b = (Interval(low=low, value=value, high=high) for low, value, high in (then, now))
    return ReplayedRatio(measure=Measure(), baseline="cublas", then=a, now=b).reproduces


def test_a_ratio_reproduces_within_both_intervals_and_an_offset() -> None:
    assert ratio((0.99, 1.0, 1.01), (1.0, 1.02, 1.04))
    assert not ratio((0.99, 1.0, 1.01), (1.05, 1.06, 1.07))


def test_seeds_do_not_repeat_between_shapes_attempts_and_purposes() -> None:
    secret = bytes(32)
    seeds = {shape_seed(secret, Problem(m=m, n=2, k=3), attempt) for m in range(1, 50) for attempt in range(3)}
    assert len(seeds) == 147
    assert derive(secret, "draw/normal") != derive(secret, "draw/cancel")
