"""What `HGEMM_REQUIRE` does to a test whose machinery is missing, tried in a pytest of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = """
import pytest

@pytest.mark.gpu
def test_on_gpu() -> None:
    assert True

def test_anywhere() -> None:
    assert True
"""


@pytest.mark.parametrize(
    ("required", "exit_code", "said"),
    [
        ("", 0, "1 passed, 1 skipped"),
        ("postgres,chromium", 0, "1 passed, 1 skipped"),
        ("gpu", 1, "HGEMM_REQUIRE asks for gpu"),
        ("gpus", 4, "HGEMM_REQUIRE names ['gpus']"),
    ],
)
def test_missing_machinery(tmp_path: Path, required: str, exit_code: int, said: str) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "test_one.py").write_text(SOURCE, encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_one.py"],
        cwd=tmp_path,
        env={**os.environ, "HGEMM_REQUIRE": required, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == exit_code, result.stdout + result.stderr
    assert said in result.stdout + result.stderr
