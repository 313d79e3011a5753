"""Runs of others, edited and sealed again: one sentence each, and nothing is written or read where it should not be."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs import Recipe, make_run, reseal
from test_recheck import edit

from harness.commands.show import show
from harness.model import MAX_COUNT, DataError
from harness.run import FILES, HEADER, SNAPSHOT, Run, run_name
from harness.sanity import cublas_version, driver_version
from leaderboard.examine import end_hash, examine

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


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_plain_file_is_not_opened(tmp_path: Path, name: str, kind: str) -> None:
    """A pipe would be waited on for ever, and /dev/zero read until memory ends."""
    path = make_run(tmp_path, RECIPE)
    (path / name).unlink()
    if kind == "pipe":
        os.mkfifo(path / name)
    elif kind == "folder":
        (path / name).mkdir()
    else:
        (path / name).symlink_to("/dev/zero")
    for read in (Run.read, end_hash):
        with pytest.raises(DataError, match=f"{name} is a link, a special file or a folder|holds no {HEADER}"):
            read(path)


def test_a_submission_is_not_read_through_a_link(tmp_path: Path) -> None:
    path = make_run(tmp_path, RECIPE)
    (path / SNAPSHOT).rename(tmp_path / "elsewhere")
    (path / SNAPSHOT).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=f"{SNAPSHOT} is a link"):
        Run.read(path)


@pytest.mark.parametrize("text", ["9999", "2026-02-30T00:00:00Z", "9999-12-31T00:00:00Z", "2026-12-01T00:09:11+01:00", "today"])
@pytest.mark.parametrize(("name", "field"), [("run.json", "created"), ("segments.jsonl", "started"), ("end.json", "ended")])
def test_a_time_is_a_time(tmp_path: Path, name: str, field: str, text: str) -> None:
    """One that is none would end the export of the whole board."""
    path = edited(tmp_path, name, lambda document: document.update({f"{field}_utc": text}))
    with pytest.raises(DataError, match=f"is not valid: {field}_utc:"):
        examine(path)


def largest_windows(line: dict[str, Any], value: int) -> None:
    line["window_ns"] = [value] * len(line["window_ns"])


def largest_figures(record: dict[str, Any], value: int) -> None:
    for timing in record["timings"]:
        for contender in timing["contenders"].values():
            contender.update(window_median_ns=value, window_max_ns=value, launches_per_window=1)


NUMBERS = [
    ("samples.jsonl.gz", largest_windows),
    ("samples.jsonl.gz", lambda line, value: line.update(launches_per_window=value)),
    ("samples.jsonl.gz", lambda line, value: line.update(selection_window_ns=[value])),
    ("records.jsonl", largest_figures),
    ("run.json", lambda header, value: header["protocol"].update(window_ns=value)),
]


@pytest.mark.parametrize(("name", "change"), NUMBERS)
def test_a_number_that_no_float_holds_is_not_valid(
    tmp_path: Path, name: str, change: Callable[[dict[str, Any], int], None]
) -> None:
    path = edited(tmp_path, name, lambda document: change(document, 10**400))
    with pytest.raises(DataError, match=r"is not valid: .* less than or equal to"):
        examine(path)


@pytest.mark.parametrize(("name", "change"), NUMBERS)
def test_the_largest_number_is_calculated_with(
    tmp_path: Path, name: str, change: Callable[[dict[str, Any], int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    path = edited(tmp_path, name, lambda document: change(document, MAX_COUNT))
    with contextlib.suppress(DataError):
        examine(path)
    show(str(path))
    show(str(path), shape="64x64x64")
    assert "64x64x64" in capsys.readouterr().out


ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b1A"


def escaped_header(header: dict[str, Any]) -> None:
    header.update(shape_set=ESCAPE, harness_version=ESCAPE)
    header["device"].update(name=ESCAPE, uuid=ESCAPE, driver=ESCAPE, timer=ESCAPE, libraries={ESCAPE: ESCAPE})
    header["submission"].update(description=ESCAPE)


def escaped_record(record: dict[str, Any]) -> None:
    record.update(detail=ESCAPE)
    for contender in record["timings"][0]["contenders"].values():
        contender.update(description=ESCAPE)


def test_text_of_a_run_cannot_move_the_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = edited(tmp_path, "run.json", escaped_header)
    edit(path, "records.jsonl", escaped_record)
    edit(path, "segments.jsonl", lambda segment: segment.update(rankable=False, not_rankable_because=ESCAPE))
    show(str(path))
    show(str(path), shape="64x64x64")
    shown = capsys.readouterr().out
    assert "owned" in shown
    assert not [character for character in shown if not (character.isprintable() or character == "\n")]
    run = Run.read(path)
    texts = (*run.header.device.libraries, run.header.device.name, run.header.submission.description, run.records[0].detail)
    assert set(texts) == {" ]0;owned  [2J 1A"}


@pytest.mark.parametrize("version", ["9" * 5000, "9" * 5000 + ".1", "1." + "9" * 5000])
def test_a_version_has_no_thousands_of_digits(tmp_path: Path, version: str) -> None:
    device = Run.read(make_run(tmp_path, RECIPE)).header.device
    device = device.model_copy(update={"driver": version, "libraries": {"cublasLt": version}})
    assert max(len(cublas_version(device)), len(driver_version(device))) <= 32
