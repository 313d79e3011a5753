"""All that a GPU's run goes through but the GPU: the real commands, a real worker process, and a card that exists as numbers.

tests/simulated_card replaces the modules that touch a card, in every process that has it on PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from paths import path_with

from harness.run import Run

TESTS = Path(__file__).resolve().parent
SUBMISSION = str(TESTS.parent / "submissions" / "cuda-mma")
SHAPE = "16x24x40"
EIGHT = ("--shapes", ",".join(f"16x24x{8 * count}" for count in range(1, 9)), "--modes", "offline/cold")
BASELINES = {"torch_matmul": 0.8, "cublas": 0.75, "cublaslt_heuristic": 0.625, "cublaslt_autotuned": 0.5}
"""Speedup over each: tests/simulated_card/card.py says how long a launch takes."""


def ended(*arguments: str, cards: int = 1) -> subprocess.CompletedProcess[str]:
    """A command on a machine with so many cards."""
    paths = {"PYTHONPATH": path_with(TESTS / "simulated_card", TESTS, TESTS.parent), "SIMULATED_CARDS": str(cards)}
    command = [sys.executable, "-m", "harness", *arguments]
    return subprocess.run(command, env={**os.environ, **paths}, capture_output=True, text=True, check=False)


def hgemm(*arguments: str, cards: int = 1) -> str:
    """What a command prints; it succeeds."""
    found = ended(*arguments, cards=cards)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run in both modes, and what it printed."""
    output = tmp_path_factory.mktemp("runs")
    arguments = ("--shapes", SHAPE, "--device", "cuda:0", "--modes", "offline,server", "--output", str(output), "--json")
    document = json.loads(hgemm("run", SUBMISSION, *arguments))
    (path,) = output.iterdir()
    return path, document


def test_a_run_has_a_score_in_every_mode(measured: tuple[Path, dict[str, Any]]) -> None:
    path, document = measured
    assert {mode: set(states) for mode, states in document["scores"].items()} == {
        "offline": {"cold", "warm"},
        "server": {"cold"},
    }
    for states in document["scores"].values():
        for scores in states.values():
            found = {name: score["geomean"]["value"] for name, score in scores.items()}
            assert found == pytest.approx({**BASELINES, "best": min(BASELINES.values())}, rel=1e-3)
    (record,) = Run.read(path).latest().values()
    assert record.rankable
    cold, warm, server = record.timings
    for timing in (cold, warm, server):
        assert timing.conditions is not None
        assert timing.conditions.power_mw == 300_000
    assert [cold.rounds, warm.rounds, server.rounds] == [10, 10, 8]
    seconds = [timing.seconds for timing in record.timings]
    assert all(each is not None and each > 0 for each in seconds)
    assert sum(filter(None, seconds)) < record.seconds
    assert cold.contenders["cublas"].sm_clock_median_mhz == 1_900


def test_what_reads_a_run_reads_this_one(measured: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    path, _ = measured
    assert path.name in hgemm("publish", str(path), "--database", f"sqlite:///{tmp_path / 'board.sqlite'}")
    assert "it reproduces" in hgemm("replay", str(path), "--shape", SHAPE)


def test_two_cards_share_the_shapes_of_one_run(tmp_path: Path) -> None:
    output = tmp_path / "runs"
    hgemm("run", SUBMISSION, *EIGHT, "--device", "cuda:0,cuda:1", "--output", str(output), cards=2)
    (path,) = output.iterdir()
    run = Run.read(path)
    assert run.complete
    assert sorted(map(str, run.latest())) == sorted(EIGHT[1].split(","))
    assert [segment.index for segment in run.segments] == [0, 1]
    assert len({segment.device.uuid for segment in run.segments}) == 2
    assert {record.segment for record in run.records} == {0, 1}
    assert path.name in hgemm("publish", str(path), "--database", f"sqlite:///{tmp_path / 'board.sqlite'}")


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ("cuda:0,cuda:2", "there is no device 'cuda:2'"),
        ("cuda:0,cuda:0", "names a device twice"),
        ("cuda:0,cpu", "profile h200"),
    ],
)
def test_a_card_that_cannot_help_is_named(tmp_path: Path, devices: str, said: str) -> None:
    found = ended("run", SUBMISSION, "--shapes", SHAPE, "--device", devices, "--output", str(tmp_path / "runs"), cards=2)
    assert found.returncode in (2, 3)
    assert said in found.stderr
    assert len(found.stderr.strip().splitlines()[-1]) < 400
    assert list(tmp_path.glob("runs/*")) == []


def test_a_run_of_two_cards_that_was_stopped_goes_on(tmp_path: Path) -> None:
    output = tmp_path / "runs"
    arguments = (*EIGHT, "--device", "cuda:0,cuda:1", "--output", str(output), "--budget", "1")
    first = ended("run", SUBMISSION, *arguments, cards=2)
    assert first.returncode == 4, first.stderr
    (path,) = output.iterdir()
    had = len(Run.read(path).records)
    assert ended("run", "--resume", str(path), "--device", "cuda:0,cpu", cards=2).returncode == 2
    assert len(Run.read(path).records) == had
    hgemm("run", "--resume", str(path), "--device", "cuda:1,cuda:0", cards=2)
    run = Run.read(path)
    assert run.complete
    assert len(run.records) == 8 > had


@pytest.mark.parametrize("devices", ["cuda:0", "cuda:1,cuda:0"])
def test_a_search_verifies_what_was_fastest(tmp_path: Path, devices: str) -> None:
    journal = tmp_path / "search.jsonl"
    what = ("--shapes", "64x64x64", "--candidates", "1", "--variants", "0", "--finalists", "1")
    hgemm("search", str(journal), *what, "--device", devices, cards=2)
    finals = [line for line in map(json.loads, journal.read_text(encoding="utf-8").splitlines()) if line.get("record")]
    assert [final["record"]["status"] for final in finals] == ["verified"]
