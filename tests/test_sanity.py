"""Sanity of baselines: honest ones pass, and each way to cripple them is found."""

from __future__ import annotations

from pathlib import Path

import pytest
from runs import H200, SPEEDUPS, Recipe, cpu_recipe, make_run

from harness.profiles import load_profile
from harness.protocol import Purpose, protocol_for
from harness.recheck import sample_table
from harness.record import Status
from harness.run import Run
from harness.sanity import Check, Finding, sanity, version_of

SHAPES = ",".join(f"{64 * m}x64x64" for m in range(1, 11))
BASE = Recipe(shapes=SHAPES, noise=0.01)


def check(parent: Path, recipe: Recipe) -> list[Finding]:
    run = Run.read(make_run(parent, recipe))
    return sanity(run, sample_table(run))


def checks(parent: Path, recipe: Recipe) -> set[Check]:
    return {finding.check for finding in check(parent, recipe)}


@pytest.mark.parametrize("seed", range(5))
def test_honest_baselines_pass(tmp_path: Path, seed: int) -> None:
    honest = {"torch_matmul": 1.0, "cublas": 1.0, "cublaslt_heuristic": 1.0, "cublaslt_autotuned": 1.0}
    assert check(tmp_path, BASE.but(seed=seed, speedups=honest)) == []


def test_runs_on_a_cpu_and_runs_that_failed_pass(tmp_path: Path) -> None:
    assert check(tmp_path, cpu_recipe()) == []
    assert check(tmp_path, BASE.but(statuses=dict.fromkeys(SHAPES.split(","), Status.REJECTED))) == []


@pytest.mark.parametrize(("slowness", "found"), [(0.995, False), (1.0, False), (1.03, True)])
def test_autotuned_slower_than_heuristic_beyond_noise(tmp_path: Path, slowness: float, found: bool) -> None:
    speedups = {**SPEEDUPS, "cublaslt_autotuned": SPEEDUPS["cublaslt_heuristic"] * slowness}
    assert (Check.AUTOTUNED_SLOWER in checks(tmp_path, BASE.but(speedups=speedups))) == found


def test_autotuned_crippled_at_one_shape(tmp_path: Path) -> None:
    """As a workspace of zero does: most shapes are unchanged, few take several times as long."""
    path = make_run(tmp_path, BASE)
    run = Run.read(path)
    table = dict(sample_table(run))
    record = run.records[3]
    key = (record.problem, 0, record.timings[0].measure)
    line = table[key]["cublaslt_autotuned"]
    slow = line.model_copy(update={"window_ns": tuple(3 * ns for ns in line.window_ns)})
    table[key] = {**table[key], "cublaslt_autotuned": slow}
    found = sanity(run, table)
    assert {finding.check for finding in found} == {Check.AUTOTUNED_SLOWER}
    assert sum("256x64x64" in finding.detail for finding in found) == 3


def test_heuristic_far_slower_than_cublas(tmp_path: Path) -> None:
    assert Check.HEURISTIC_SLOWER in checks(tmp_path / "a", BASE.but(speedups={**SPEEDUPS, "cublaslt_heuristic": 1.4}))
    assert checks(tmp_path / "b", BASE.but(seed=2, speedups={**SPEEDUPS, "cublaslt_heuristic": 1.2})) == set()


def test_no_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("runs").WORKSPACES, "cublaslt_heuristic", 0)
    (first, *_) = check(tmp_path, BASE)
    assert first.check is Check.NO_WORKSPACE
    assert first.detail.startswith("cublaslt_heuristic was allowed no workspace")


@pytest.mark.parametrize(
    ("update", "found"),
    [
        ({"rms_relative": 2.2e-4}, None),
        ({"rms_relative": 3.3e-4}, Check.BASELINE_WRONG),
        ({"rms_relative": None}, Check.BASELINE_WRONG),
        ({"bound_ratio": 1.01}, Check.BASELINE_WRONG),
        ({"bound_ratio": None}, Check.BASELINE_WRONG),
        ({"rms_relative": 3.3e-4, "outputs": 64}, None),
        (None, Check.FIELD_MISSING),
    ],
)
def test_class_of_baselines(tmp_path: Path, update: dict[str, object] | None, found: Check | None) -> None:
    run = Run.read(make_run(tmp_path, BASE))
    record = run.records[0]
    assert record.verification is not None
    baselines = dict(record.verification.baselines)
    stats = baselines.pop("cublas")
    if update is not None:
        baselines["cublas"] = stats.model_copy(update=update)
    verification = record.verification.model_copy(update={"baselines": baselines})
    run.records[0] = record.model_copy(update={"verification": verification})
    assert [finding.check for finding in sanity(run, sample_table(run))] == ([found] if found else [])


@pytest.mark.parametrize("key", ["torch", "cublasLt"])
def test_versions_that_comparisons_need(tmp_path: Path, key: str) -> None:
    libraries = {name: version for name, version in H200.libraries.items() if name != key}
    assert checks(tmp_path, BASE.but(device=H200.model_copy(update={"libraries": libraries}))) == {Check.FIELD_MISSING}


@pytest.mark.parametrize("update", [{"driver": "unknown"}, {"timer": ""}, {"uuid": ""}])
def test_fields_that_comparisons_need(tmp_path: Path, update: dict[str, str]) -> None:
    assert checks(tmp_path, BASE.but(device=H200.model_copy(update=update))) == {Check.FIELD_MISSING}


def test_only_the_full_protocol_of_the_version_passes(tmp_path: Path) -> None:
    profile = load_profile("h200")
    screen = protocol_for(profile, Purpose.SCREEN)
    assert checks(tmp_path / "a", BASE.but(protocol=screen)) == {Check.PROTOCOL}
    full = protocol_for(profile)
    for number, update in enumerate(({"window_ns": 1}, {"anchor": "cublas"})):
        assert checks(tmp_path / f"b{number}", BASE.but(protocol=full.model_copy(update=update))) == {Check.PROTOCOL}
    fewer = full.model_copy(update={"baselines": full.baselines[1:]})
    assert checks(tmp_path / "c", BASE.but(protocol=fewer)) == {Check.BASELINE_MISSING}
    wider = full.model_copy(update={"deadline_s": 5.0, "target_half_width": 0.05})
    assert checks(tmp_path / "d", BASE.but(protocol=wider)) == set(), "which widens its own intervals alone"
    assert checks(tmp_path / "e", BASE.but(protocol=protocol_for(profile, sustained=True))) == set()


def test_a_baseline_that_failed(tmp_path: Path) -> None:
    (finding,) = check(tmp_path, BASE.but(statuses={"64x64x64": Status.INFRA_ERROR}))
    assert finding.check is Check.BASELINE_WRONG
    assert "64x64x64" in finding.detail


@pytest.mark.parametrize(
    ("text", "version"),
    [("13.1.0.3", "13.1"), ("130100", "13.1"), ("120803", "12.8"), ("580.159.03", "580.159"), ("6.1.0-13-amd64", "6.1")]
    + [(bad, "") for bad in ("", "13", "unknown", "a.b", None, "1٣.1", "99")],
)
def test_major_and_minor(text: str | None, version: str) -> None:
    assert version_of(text) == version
