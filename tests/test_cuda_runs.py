"""Timed runs on a CUDA device: baselines, faults that cost a worker, and the instrument measured by itself."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import cuda_cases as cases
import cuda_kernels as kernels
import pytest

from harness.devices.cuda_instrument import LENGTH_SHAPES
from harness.doctor import AA_BASELINE, agreements, stratified
from harness.drivers import RemoteDriver
from harness.evaluate import Evaluator
from harness.machine import DeviceLock, choose_device
from harness.messages import Draw, Inspection
from harness.problem import Problem, Track
from harness.problem_sets import resolve_shapes
from harness.protocol import CUDA_BASELINES, parse_modes, protocol_for
from harness.record import SUBMISSION, Reason, Record, Status
from harness.run import Run
from harness.submission import Submission

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parent.parent
MMA = ROOT / "submissions" / "cuda-mma"
FIVE = tuple(Problem.parse(shape) for shape in ("64x64x64", "96x72x136", "128x256x512", "256x128x64", "128x128x128"))
THIRD = FIVE[2]
DEADLINE_S = 5.0
FAULT_COST_S = 10.0
AA_SHAPES, AA_TOLERANCE = 8, 0.01


class Timed(NamedTuple):
    """A record and the wall time until it came."""

    record: Record
    seconds: float


def say(text: str) -> None:
    """A figure for whoever runs with -s."""
    sys.stdout.write(f"\n{text}\n")


def evaluate(evaluator: Evaluator, directory: Path, problems: tuple[Problem, ...]) -> list[Timed]:
    """Records with the wall time that each took, planning and building left out."""
    prepared = evaluator.prepare(Submission.read(directory), problems)
    found = []
    for problem in problems:
        started = time.monotonic()
        *_, last = evaluator.attempts(prepared, problem)
        found.append(Timed(last.record, time.monotonic() - started))
    return found


def hgemm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line, with this working tree's harness."""
    command = [sys.executable, "-m", "harness", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="class")
def quick() -> Iterator[Evaluator]:
    """One measure against one baseline, and the first look is the last; its first worker starts on nobody's account."""
    full = protocol_for(choose_device("cuda:0").profile)
    update = {"measures": full.measures[:1], "baselines": ("cublas",), "anchor": "cublas", "target_half_width": 0.9}
    with Evaluator("cuda:0", full.model_copy(update={**update, "deadline_s": DEADLINE_S})) as evaluator:
        assert evaluator.info.profile == evaluator.profile.name
        yield evaluator


class TestLostWorkers:
    """One evaluator loses its worker again and again."""

    @pytest.mark.parametrize(
        ("name", "source", "reason", "deadline_s"),
        [("hangs", kernels.HANGS, Reason.DEADLINE, DEADLINE_S), ("illegal", kernels.ILLEGAL, Reason.ILLEGAL_ACCESS, 0.0)],
    )
    def test_one_fault_costs_one_shape(
        self, quick: Evaluator, tmp_path: Path, name: str, source: str, reason: Reason, deadline_s: float
    ) -> None:
        found = evaluate(quick, cases.write_faulty(tmp_path, name, source, FIVE, THIRD), FIVE)
        first, second, third, fourth, fifth = found
        others = (first, second, fourth, fifth)
        assert [(each.record.status, each.record.detail) for each in others] == [(Status.VERIFIED, "")] * 4
        assert all(len(each.record.timings) == 1 and each.record.timings[0].speedups["cublas"].low > 0 for each in others)
        assert (third.record.status, third.record.reason) == (Status.REJECTED, reason), third.record.detail
        assert third.record.timings == ()
        # The fourth shape also pays for the worker that replaces the lost one.
        cost = third.seconds + fourth.seconds - fifth.seconds
        say(f"{name}: shape 3 took {third.seconds:.1f} s, and its fault cost {cost:.1f} s with the new worker")
        say(" ".join(f"{each.record.problem} {each.seconds:.2f} s" for each in found))
        assert deadline_s <= third.seconds
        assert cost < deadline_s + FAULT_COST_S
        segment = first.record.segment
        assert [each.record.segment for each in found] == [segment] * 3 + [segment + 1] * 2

    def test_a_killed_worker_is_replaced(self, quick: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
        """Killed from outside after the buffers are laid out, while the submission is at work."""
        assert quick.info.profile == quick.profile.name
        driver = quick._driver
        assert isinstance(driver, RemoteDriver)
        original = driver.draw

        def draw(request: Draw) -> Inspection:
            os.kill(driver.worker.pid, signal.SIGKILL)
            return original(request)

        monkeypatch.setattr(driver, "draw", draw)
        prepared = quick.prepare(Submission.read(MMA), FIVE[:1])
        attempts = [measured.record for measured in quick.attempts(prepared, FIVE[0])]
        found = [(record.status, record.reason, record.attempt) for record in attempts]
        assert found == [(Status.INFRA_ERROR, Reason.WORKER_LOST, 0), (Status.VERIFIED, None, 1)]
        assert "SIGKILL" in attempts[0].detail
        assert attempts[1].segment == attempts[0].segment + 1


def test_command_line_outlives_a_hang(tmp_path: Path) -> None:
    problems = FIVE[1:4]
    directory = cases.write_faulty(tmp_path, "hangs", kernels.HANGS, problems, THIRD)
    shapes = ",".join(map(str, problems))
    fixed = ("--device", "cuda:0", "--deadline", str(DEADLINE_S), "--output", str(tmp_path / "runs"))
    ended = hgemm("run", str(directory), "--shapes", shapes, *fixed)
    assert ended.returncode == 1, ended.stderr + ended.stdout
    (path,) = (tmp_path / "runs").iterdir()
    run = Run.read(path)
    assert run.complete
    found = {problem: (record.status, record.reason) for problem, record in run.latest().items()}
    assert found == dict.fromkeys(problems, (Status.VERIFIED, None)) | {THIRD: (Status.REJECTED, Reason.DEADLINE)}


def check_baselines(records: list[Record], compute: str) -> None:
    """Every measure has all four baselines, each in its class, and says what it chose."""
    assert [(record.status, record.detail) for record in records] == [(Status.VERIFIED, "")] * len(records)
    for record in records:
        assert record.verification is not None
        assert set(record.verification.baselines) == set(CUDA_BASELINES)
        assert record.timings
        for timing in record.timings:
            assert set(timing.contenders) == {*CUDA_BASELINES, SUBMISSION}
            for name, contender in timing.contenders.items():
                say(f"{record.problem} {timing.measure} {name}: {contender.launch_ns:.0f} ns, {contender.description}")
            for name in ("cublas", "cublaslt_heuristic", "cublaslt_autotuned"):
                assert f"compute {compute}" in timing.contenders[name].description
                assert "workspace" in timing.contenders[name].description
                assert (timing.contenders[name].workspace_limit_bytes or 0) >= 32 << 20
            assert all("algo" in timing.contenders[name].description for name in CUDA_BASELINES if "lt_" in name)
            assert "torch.matmul" in timing.contenders["torch_matmul"].description


def test_baselines_run_and_say_what_they_chose(tmp_path: Path) -> None:
    """A selection races every candidate of every baseline, so one that could not be bound would end the shape."""
    protocol = protocol_for(choose_device("cuda:0").profile).model_copy(update={"target_half_width": 0.9})
    with Evaluator("cuda:0", protocol) as evaluator:
        for track, compute in ((Track.F32, "32F"), (Track.F16, "16F")):
            directory = tmp_path / track / "cuda-mma"
            shutil.copytree(MMA, directory, ignore=shutil.ignore_patterns("__pycache__"))
            manifest = directory / "submission.toml"
            text = manifest.read_text(encoding="utf-8").replace('track = "f32"', f'track = "{track}"')
            manifest.write_text(text, encoding="utf-8")
            problems = resolve_shapes("64x64x64,129x257x63,512x512x512,64x4096x4096", track).problems
            check_baselines(list(evaluator.evaluate(directory, problems)), compute)


def test_a_baseline_in_the_submissions_place_scores_one() -> None:
    choice = choose_device("cuda:0")
    lock = DeviceLock(choice.uuid)
    lock.acquire()
    try:
        driver = RemoteDriver("cuda:0")
        try:
            problems = stratified(choice.profile, AA_SHAPES)
            protocol = protocol_for(choice.profile, measures=parse_modes("offline,server"))
            found = agreements(driver, problems, lambda _: protocol)
        finally:
            driver.close()
    finally:
        lock.release()
    for record in found.records:
        ratios = " ".join(f"{timing.measure} {timing.speedups[AA_BASELINE].value:.4f}" for timing in record.timings)
        say(f"A/A {record.problem}: {ratios}")
    for measure, result in found.by_measure.items():
        say(f"A/A {measure}: {result}")
    assert found.left_out == {}
    assert len(found.records) == len(problems) == AA_SHAPES
    assert set(found.by_measure) == {"offline/cold", "offline/warm", "server/cold"}
    for measure in ("offline/cold", "server/cold"):
        assert found.by_measure[measure].intervals == AA_SHAPES
    assert abs(math.log(found.by_measure["offline/cold"].geomean)) < AA_TOLERANCE
    assert abs(math.log(found.by_measure["offline/warm"].geomean)) < AA_TOLERANCE
    # 48 requests of a short operation know their median to several percent.
    assert abs(math.log(found.by_measure["server/cold"].geomean)) < 5 * AA_TOLERANCE


def test_doctor_lists_every_check() -> None:
    ended = hgemm("doctor", "--device", "cuda:0", "--aa", str(AA_SHAPES), "--json")
    assert ended.returncode in (0, 3), ended.stderr
    found = json.loads(ended.stdout)
    checks = {check["name"]: check["outcome"] for check in found["checks"]}
    say("\n".join(f"{check['outcome']:5} {check['name']}: {check['detail']}" for check in found["checks"]))
    assert found["device"] == "cuda:0"
    assert {
        "ranking",
        "launch floor",
        "bandwidth",
        "matrix rate",
        "window length",
        "delay",
        "A/A offline/cold",
        "A/A offline/warm",
        "A/A best baseline",
        "kind native",
    } <= set(checks)
    assert "instrument" not in checks
    assert sum(check["name"] == "window length" for check in found["checks"]) == len(LENGTH_SHAPES)
    failed = any(check["outcome"] == "fail" for check in found["checks"])
    assert ended.returncode == (3 if failed else 0)
