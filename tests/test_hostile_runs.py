"""Runs of others, edited and sealed again: one sentence each, and nothing is written or read where it should not be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs import Recipe, make_run, reseal
from test_recheck import edit

from harness.model import DataError
from harness.run import Run, run_name

RECIPE = Recipe(shapes="64x64x64")


def edited(tmp_path: Path, name: str, change: Callable[[Any], object]) -> Path:
    """A finished run with a file changed, and all hashes right."""
    path = make_run(tmp_path, RECIPE)
    edit(path, name, change)
    reseal(path)
    return path


@pytest.mark.parametrize("name", ["x/../../../../tmp/red-trav", "..", ".hidden", "", "a\nb", "a" * 201])
def test_a_run_is_not_called_after_another_place(tmp_path: Path, name: str) -> None:
    """Its report would be written there."""
    path = edited(tmp_path, "run.json", lambda header: header.update(name=name))
    with pytest.raises(DataError, match=r"run\.json is not valid: name:"):
        Run.read(path)


def test_names_that_are_given_to_runs_are_allowed(tmp_path: Path) -> None:
    longest = run_name("s" * 64, "d" * 64, "0" * 64)
    path = edited(tmp_path, "run.json", lambda header: header.update(name=longest))
    assert Run.read(path).header.name == longest
