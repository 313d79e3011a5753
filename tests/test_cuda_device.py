"""A CUDA device through the Evaluator: what is right is verified, what is wrong is rejected for what is wrong with it."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import cuda_cases as cases
import pytest

from harness.evaluate import Evaluator
from harness.problem import Problem, Track
from harness.problem_sets import resolve_shapes
from harness.protocol import Purpose
from harness.record import Reason, Record, Status
from harness.submission import Submission

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parent.parent
MMA, TILED = ROOT / "submissions" / "cuda-mma", ROOT / "submissions" / "cuda-tiled"
FP16 = ("never", "16", "32", "64")
CLASS_K = 64
ATTEMPTS_APART = 10
"""A seed derives from the attempt; so far apart, attempts of two repeats never meet."""


@pytest.fixture(scope="module")
def check() -> Iterator[Evaluator]:
    """One warm worker that verifies and times nothing."""
    with Evaluator("cuda:0", purpose=Purpose.CHECK) as evaluator:
        yield evaluator


def say(text: str) -> None:
    """A figure for whoever runs with -s."""
    sys.stdout.write(f"\n{text}\n")


def problems(*names: str, track: Track = Track.F32) -> tuple[Problem, ...]:
    """The problems of sets."""
    return tuple(dict.fromkeys(problem for name in names for problem in resolve_shapes(name, track).problems))


def everyday() -> tuple[Problem, ...]:
    """quick, ragged, and the llm shapes with one row."""
    single = tuple(problem for problem in problems("llm") if problem.m == 1)
    assert single
    return tuple(dict.fromkeys((*problems("quick", "ragged"), *single)))


def verify(evaluator: Evaluator, directory: Path, shapes: Sequence[Problem], repeats: int = 1) -> list[Record]:
    """The last record of every shape of every repeat, each with seeds of its own."""
    prepared = evaluator.prepare(Submission.read(directory), shapes)
    found = []
    for repeat in range(repeats):
        for problem in shapes:
            *_, last = evaluator.attempts(prepared, problem, repeat * ATTEMPTS_APART)
            found.append(last.record)
    return found


def outcomes(records: Sequence[Record]) -> list[str]:
    """Everything that is not verified, for a message that says all."""
    bad = (record for record in records if record.status is not Status.VERIFIED)
    return [f"{record.problem} {record.status} {record.reason}: {record.detail}" for record in bad]


def test_cuda_mma_is_never_rejected(check: Evaluator) -> None:
    repeats = int(os.environ.get("HGEMM_REPEATS", "1"))
    started = time.monotonic()
    records = verify(check, MMA, everyday(), repeats)
    say(f"cuda-mma: {len(records)} verifications in {time.monotonic() - started:.1f} s, {len(outcomes(records))} not verified")
    assert outcomes(records) == []
    assert len({record.seed for record in records}) == len(records) == repeats * len(everyday())
    classes = {record.verification and record.verification.precision_class for record in records if record.problem.k >= CLASS_K}
    assert classes == {"fp32_accumulate"}


def test_cuda_tiled_is_verified(check: Evaluator) -> None:
    assert outcomes(verify(check, TILED, everyday())) == []


def test_cuda_mma_enters_the_f16_track(check: Evaluator, tmp_path: Path) -> None:
    directory = tmp_path / "cuda-mma"
    shutil.copytree(MMA, directory, ignore=shutil.ignore_patterns("__pycache__"))
    manifest = directory / "submission.toml"
    manifest.write_text(manifest.read_text(encoding="utf-8").replace('track = "f32"', 'track = "f16"'), encoding="utf-8")
    shapes = problems("64x64x64,129x129x129,512x512x512,64x4096x4096", track=Track.F16)
    records = verify(check, directory, shapes)
    assert outcomes(records) == []
    assert {record.problem.track for record in records} == {Track.F16}


@pytest.mark.parametrize("name", FP16)
def test_fp16_accumulators_are_rejected_for_their_class(check: Evaluator, name: str) -> None:
    directory = ROOT / "tests" / "submissions" / f"cuda-mma-fp16acc-{name}"
    shapes = [problem for problem in problems("quick", "ragged") if problem.k >= CLASS_K]
    records = verify(check, directory, shapes)
    draws = [draw for record in records if record.verification for draw in record.verification.draws]
    errors = sorted(draw.rms_relative for draw in draws if draw.inputs == "normal" and draw.rms_relative is not None)
    say(f"fp16 accumulators, promoted {name}: rms relative error {errors[0]:.3g} to {errors[-1]:.3g} over {len(errors)} shapes")
    accepted = [record for record in records if record.reason is not Reason.PRECISION_CLASS]
    assert [f"{record.problem} {record.status} {record.reason}: {record.detail}" for record in accepted] == []


@pytest.mark.parametrize("case", cases.VOCABULARY, ids=lambda case: case.name)
def test_every_word_of_a_plan_works(check: Evaluator, tmp_path: Path, case: cases.Case) -> None:
    records = verify(check, cases.write(tmp_path, case), case.problems)
    assert outcomes(records) == []
    assert all(record.verification and record.verification.bitwise_repeatable for record in records)


def test_cubin_is_launched(check: Evaluator, tmp_path: Path) -> None:
    assert outcomes(verify(check, cases.write_cubin(tmp_path), problems(",".join(cases.SHAPES)))) == []


@pytest.mark.parametrize("case", cases.FAULTS, ids=lambda case: case.name)
def test_faults_get_their_reason(check: Evaluator, tmp_path: Path, case: cases.Case) -> None:
    records = verify(check, cases.write(tmp_path, case), case.problems)
    found = [(record.status, record.reason) for record in records]
    assert found == [(Status.REJECTED, case.reason)] * len(case.problems), [record.detail for record in records]


def test_faults_leave_the_worker_as_it_was(check: Evaluator, tmp_path: Path) -> None:
    """None of the cases, not even one that the driver refuses, costs the worker or harms who comes next."""
    refused = next(case for case in cases.FAULTS if case.reason is Reason.LAUNCH_ERROR)
    good = cases.VOCABULARY[0]
    before = verify(check, cases.write(tmp_path / "before", good), good.problems)
    verify(check, cases.write(tmp_path, refused), refused.problems)
    after = verify(check, cases.write(tmp_path / "after", good), good.problems)
    assert outcomes([*before, *after]) == []
    assert Counter(record.segment for record in (*before, *after)) == {before[0].segment: len(before) + len(after)}
