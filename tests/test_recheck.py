"""Recheck: a run as written is sound, and every change to it is found and named."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs import COLD, WARM, Recipe, begin_run, cpu_recipe, make_run, reseal

from harness.model import DataError
from harness.recheck import faults, sample_table
from harness.record import Status
from harness.run import Run

RECIPE = Recipe(shapes="64x64x64,128x64x64", measures=(COLD, WARM))


def rechecked(path: Path) -> list[str]:
    run = Run.read(path)
    return list(faults(run, sample_table(run)))


def edit(path: Path, name: str, change: Callable[[Any], object]) -> None:
    """Change the first line of a file of JSON lines, or a JSON file."""
    if name.endswith(".gz"):
        lines = gzip.decompress((path / name).read_bytes()).decode().splitlines()
    else:
        lines = (path / name).read_text().splitlines() if name.endswith("l") else [(path / name).read_text()]
    data = json.loads(lines[0])
    change(data)
    text = "\n".join([json.dumps(data), *lines[1:]]) + "\n"
    (path / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())


@pytest.mark.parametrize("recipe", [RECIPE, cpu_recipe(), RECIPE.but(statuses={"64x64x64": Status.REJECTED})])
def test_a_run_as_written_is_sound(tmp_path: Path, recipe: Recipe) -> None:
    assert rechecked(make_run(tmp_path, recipe)) == []


def test_a_run_without_its_end_is_incomplete(tmp_path: Path) -> None:
    run = begin_run(tmp_path, RECIPE)
    run.close()
    (found,) = rechecked(run.path)
    assert "hgemm run --resume" in found


@pytest.mark.parametrize("name", ["records.jsonl", "samples.jsonl.gz", "run.json", "segments.jsonl", "submission/kernels/k.cu"])
def test_a_changed_byte_is_found_by_its_hash(tmp_path: Path, name: str) -> None:
    path = make_run(tmp_path, RECIPE)
    if name.endswith(".gz"):
        edit(path, name, lambda line: line.update(selection_launches=21))
    elif name.endswith(".jsonl"):
        (path / name).write_text((path / name).read_text().replace('"seconds":0.1', '"seconds":0.2').replace("GPU-0", "GPU-1"))
    else:
        (path / name).write_text((path / name).read_text() + " \n")
    assert any(f"{path / name} was changed after the run ended" in fault for fault in rechecked(path))


def test_added_missing_and_linked_files_are_found(tmp_path: Path) -> None:
    path = make_run(tmp_path, RECIPE)
    (path / "notes.txt").write_text("x")
    assert any("notes.txt was added" in fault for fault in rechecked(path))
    (path / "notes.txt").unlink()
    link = path / "submission" / "kernels" / "l.cu"
    link.symlink_to(path / "run.json")
    run = Run.read(path)
    assert "l.cu is a link" in next(faults(run, sample_table(run)))
    link.unlink()
    (path / "segments.jsonl").unlink()
    assert any("segments.jsonl is gone" in fault for fault in rechecked(path))


def scale(record: Any, end: str, factor: float) -> None:
    record["timings"][0]["speedups"]["cublaslt_autotuned"][end] *= factor


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("records.jsonl", lambda r: scale(r, "value", 1 + 1e-6), "the speedup over cublaslt_autotuned"),
        ("records.jsonl", lambda r: scale(r, "low", 0.999), "the speedup over cublaslt_autotuned"),
        (
            "records.jsonl",
            lambda r: scale(r, "high", 1.001),
            "the speedup over cublaslt_autotuned",
        ),
        ("records.jsonl", lambda r: r["timings"][0].update(best_baseline="cublas"), "the best baseline is said to be cublas"),
        ("records.jsonl", lambda r: r["timings"][1].update(rounds=9), "has 10 windows in 9 rounds"),
        (
            "records.jsonl",
            lambda r: r["timings"][0]["contenders"]["submission"].update(window_min_ns=5),
            "the times of submission",
        ),
        ("records.jsonl", lambda r: r.update(seed="0" * 32), "does not derive from the secret"),
        ("records.jsonl", lambda r: r.update(segment=3), "segment 3, which does not exist"),
        ("segments.jsonl", lambda s: s.update(rankable=False), "claims to be rankable"),
        ("segments.jsonl", lambda s: s.update(seed_commitment="0" * 64), "not the one that it committed to"),
        ("segments.jsonl", lambda s: s["device"].update(driver="1.2.3"), "ran with another driver"),
        ("samples.jsonl.gz", lambda s: s["window_ns"].__setitem__(0, 1), "its samples say"),
        ("samples.jsonl.gz", lambda s: s.update(contender="cublas"), "samples of"),
        ("samples.jsonl.gz", lambda s: s.update(selection_window_ns=[]), "no samples of selection rounds"),
        ("run.json", lambda h: h.update(shapes_sha256="0" * 64), "the hash of the set is not that of its shapes"),
        ("run.json", lambda h: h.update(shape_set="grid1000"), "other shapes than the set grid1000"),
        ("run.json", lambda h: h["submission"].update(authors=["Eve"]), "is not the submission that run.json names"),
        ("run.json", lambda h: h.update(shapes=["64x64x64"]), "a record of 128x64x64, which is not in its set"),
        ("end.json", lambda e: e["counts"].update(verified=3), "counts"),
        ("end.json", lambda e: e["secrets"].update({"0": "zz"}), "not the one that it committed to"),
    ],
)
def test_figures_that_do_not_follow_are_found_though_all_hashes_fit(
    tmp_path: Path, name: str, change: Callable[[Any], object], said: str
) -> None:
    path = make_run(tmp_path, RECIPE)
    edit(path, name, change)
    reseal(path)
    found = rechecked(path)
    assert any(said in fault for fault in found), found


def test_a_missing_record_is_found(tmp_path: Path) -> None:
    path = make_run(tmp_path, RECIPE)
    lines = (path / "records.jsonl").read_text().splitlines()
    (path / "records.jsonl").write_text(lines[0] + "\n")
    reseal(path)
    assert any("no record of 128x64x64" in fault for fault in rechecked(path))


def test_damaged_samples_are_one_sentence(tmp_path: Path) -> None:
    path = make_run(tmp_path, RECIPE)
    (path / "samples.jsonl.gz").write_bytes(b"not gzip")
    with pytest.raises(DataError, match="is damaged"):
        rechecked(path)
