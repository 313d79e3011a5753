"""`hgemm audit`: an honest submission passes, a ghost of it does not, and shapes that nobody listed are tried."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from paths import path_with

from harness.commands.audit import Audit, near_misses, notes
from harness.commands.check import CPU_SHAPES
from harness.problem import Problem
from harness.problem_sets import resolve_shapes
from harness.submission import Submission

ROOT = Path(__file__).resolve().parent.parent
KNOWS = " || ".join(f"(m == {each.m} && n == {each.n} && k == {each.k})" for each in resolve_shapes(CPU_SHAPES).problems)
LISTED = f"""
    if ({KNOWS}) {{
        HONEST;
    }}
"""


def audited(directory: Path, scratch: Path) -> tuple[int, dict[str, str], dict[str, str]]:
    """Exit code, outcomes and details by question."""
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(scratch), "PYTHONPATH": path_with(ROOT)}
    command = [sys.executable, "-m", "harness", "audit", str(directory), "--json"]
    done = subprocess.run(command, cwd=scratch, env=environment, capture_output=True, text=True, check=False)
    findings = Audit.model_validate_json(done.stdout).findings
    return done.returncode, {each.name: each.outcome for each in findings}, {each.name: each.detail for each in findings}


def test_an_honest_submission_passes_and_its_ghost_does_not(tmp_path: Path) -> None:
    code, outcomes, details = audited(ROOT / "submissions" / "cpu-blocked", tmp_path)
    assert (code, set(outcomes.values())) == (0, {"ok"})
    assert "rejected unwritten" in details["ghost"]
    assert "5 of 5 verified" in details["hidden-shapes"]


def test_a_kernel_that_knows_the_listed_shapes_fails_on_others(tmp_path: Path) -> None:
    directory = Path(shutil.copytree(ROOT / "tests" / "benign" / "cpu-plain", tmp_path / "listed"))
    (directory / "expected.toml").unlink()
    kernel = directory / "kernels" / "gemm.c"
    kernel.write_text(kernel.read_text().replace("    HONEST;\n", LISTED))
    code, outcomes, _ = audited(directory, tmp_path)
    assert (code, outcomes["usual-shapes"], outcomes["ghost"]) == (1, "ok", "ok")
    assert outcomes["hidden-shapes"] == "failed"


def test_near_misses_are_other_shapes_each_time() -> None:
    usual = [Problem(m=64 * side, n=64, k=64) for side in range(1, 9)]
    found = near_misses(usual)
    assert not set(found) & set(usual)
    assert found != near_misses(usual)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("device-keeps-in-its-parameters", "state in parameters"),
        ("device-by-the-clock", "reads a clock"),
        ("device-fp16-accumulator", "half-precision arithmetic"),
        ("device-fp8", "narrow types"),
        ("cpu-right-on-even-calls", "system call"),
    ],
)
def test_sources_are_noted(tmp_path: Path, name: str, what: str) -> None:
    directory = Path(shutil.copytree(ROOT / "tests" / "redteam" / name, tmp_path / name))
    (directory / "expected.toml").unlink()
    assert what in notes(Submission.read(directory))
    assert json.dumps(notes(Submission.read(ROOT / "submissions" / "cpu-naive"))) == "{}"
