"""The submissions of the tests on a CUDA device, without one: their plans are valid, and their kernels compile."""

from __future__ import annotations

from pathlib import Path

import cuda_cases as cases
import cuda_kernels as kernels
import pytest

from harness.build import Artifact, BuildFailure
from harness.devices import cuda_kernels
from harness.evaluate import prepare
from harness.nvrtc import compile_cuda
from harness.plan import Plan
from harness.problem import Problem
from harness.profiles import load_profile
from harness.record import Reason
from harness.submission import Submission
from harness.verify import fill_cuda, project_cuda

H200 = load_profile("h200")


def check_builds(directory: Path, problems: tuple[Problem, ...], expected: Reason | None = None) -> None:
    """Every shape has a valid plan, and every kernel compiles without warnings, or fails as expected."""
    prepared = prepare(Submission.read(directory), problems, H200)
    assert {problem: outcome for problem, outcome in prepared.outcomes.items() if not isinstance(outcome, Plan)} == {}
    assert set(prepared.outcomes) == set(problems)
    assert prepared.builds
    for build in prepared.builds.values():
        if expected is not None:
            assert isinstance(build, BuildFailure)
            assert build.reason is expected
        else:
            assert isinstance(build, Artifact), build
            assert build.report.warnings == ()


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    ("source", "entries"),
    [
        (cuda_kernels._SOURCE, ("digest", "differing", "probe", "spin")),
        (fill_cuda._SOURCE, ("fill_normal",)),
        (project_cuda._SOURCE, ("project_rows", "split_vectors")),
    ],
    ids=["instrument", "fill", "project"],
)
def test_the_harness_own_kernels_compile_without_spills(source: str, entries: tuple[str, ...], architecture: str) -> None:
    built = compile_cuda(source.encode(), "own.cu", [f"-arch={architecture}", "--ptxas-options=-v"])
    assert built.cubin is not None, built.log
    usage = [line for line in built.log.splitlines() if "spill" in line]
    assert len(usage) == len(entries)
    assert all("0 bytes spill stores, 0 bytes spill loads" in line for line in usage)
    assert "warning" not in built.log
    assert all(f".{entry}\0".encode() in built.cubin for entry in entries)


@pytest.mark.parametrize("case", [*cases.VOCABULARY, *cases.FAULTS], ids=lambda case: case.name)
def test_cases_plan_and_build(tmp_path: Path, case: cases.Case) -> None:
    expected = case.reason if case.reason is Reason.BUILD_ERROR else None
    check_builds(cases.write(tmp_path, case), case.problems, expected)


def test_cubin_is_accepted_as_built(tmp_path: Path) -> None:
    check_builds(cases.write_cubin(tmp_path), tuple(Problem.parse(shape) for shape in cases.SHAPES))


@pytest.mark.parametrize("source", [kernels.HANGS, kernels.ILLEGAL])
def test_faulty_shape_builds_beside_the_others(tmp_path: Path, source: str) -> None:
    problems = tuple(Problem.parse(shape) for shape in cases.SHAPES)
    check_builds(cases.write_faulty(tmp_path, "faulty", source, problems, problems[1]), problems)
