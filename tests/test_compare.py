"""Comparing runs: what forbids it, what is found, what is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from runs import COLD, H200, WARM, Recipe, make_run

from harness.compare import Comparison, Importance, compare, p_value_text
from harness.model import DataError
from harness.profiles import load_profile
from harness.protocol import protocol_for
from harness.record import Status
from harness.run import Run

SHAPES = ",".join(f"{64 * m}x{64 * n}x64" for m in range(1, 6) for n in range(1, 9))
BASE = Recipe(shapes=SHAPES, noise=0.01, rounds=20)


def read(parent: Path, recipe: Recipe) -> Run:
    return Run.read(make_run(parent / str(len(list(parent.iterdir()))), recipe))


def significant(comparison: Comparison) -> list[str]:
    return [shape.shape for shape in comparison.measures[0].shapes if shape.significant]


def test_a_run_against_itself_flags_nothing(tmp_path: Path) -> None:
    run = read(tmp_path, BASE)
    found = compare(run, run)
    assert found.differences == ()
    assert significant(found) == []
    assert found.measures[0].geomean.value == 1.0
    assert all(shape.p_value > 0.99 for shape in found.measures[0].shapes)


def test_another_run_of_the_same_flags_at_most_the_stated_rate(tmp_path: Path) -> None:
    first = read(tmp_path, BASE)
    flagged = [significant(compare(first, read(tmp_path, BASE.but(seed=seed)))) for seed in range(2, 10)]
    assert sum(map(bool, flagged)) <= 1
    assert sum(map(len, flagged)) <= 8 * len(BASE.problems) * 0.05


def test_a_copy_slowed_by_three_percent_is_found(tmp_path: Path) -> None:
    found = compare(read(tmp_path, BASE), read(tmp_path, BASE.but(seed=2, speedup=0.97)))
    measure = found.measures[0]
    assert (measure.faster, measure.slower) == (0, len(BASE.problems))
    assert measure.geomean.low < 0.97 < measure.geomean.high
    assert 0.965 < measure.geomean.low < measure.geomean.high < 0.975


def test_one_slow_shape_among_many_is_the_one_that_is_found(tmp_path: Path) -> None:
    slow = {"128x256x64": 0.95, "64x64x64": 1.05}
    found = compare(read(tmp_path, BASE), read(tmp_path, BASE.but(seed=2, by_shape=slow)))
    assert set(slow) <= set(significant(found))
    assert len(significant(found)) <= 3
    ratios = {shape.shape: shape.relative_ratio for shape in found.measures[0].shapes}
    for shape, expected in slow.items():
        assert ratios[shape].value == pytest.approx(expected, rel=0.012)


def test_drift_of_a_whole_run_is_seen_in_raw_times_alone(tmp_path: Path) -> None:
    """A second run on a card that is 8 % slower for every contender alike is the same kernel."""
    first = read(tmp_path, BASE)
    slower = {name: value * 1.08 for name, value in BASE.speedups.items()}
    found = compare(first, read(tmp_path, BASE.but(seed=2, speedups=slower, speedup=1 / 1.08)))
    assert significant(found) == []
    assert all(shape.time_ratio == pytest.approx(1 / 1.08, rel=0.02) for shape in found.measures[0].shapes)
    assert all(len(shape.shared_baselines) == 4 for shape in found.measures[0].shapes)


def test_baselines_that_chose_otherwise_are_no_reference(tmp_path: Path) -> None:
    first = read(tmp_path, BASE.but(shapes="64x64x64"))
    second = read(tmp_path, BASE.but(shapes="64x64x64", seed=2, speedups={**BASE.speedups, "cublas": 2.0}))
    record = second.records[0]
    timing = record.timings[0]
    contenders = {
        name: each if name != "cublas" else each.model_copy(update={"description": "another algorithm"})
        for name, each in timing.contenders.items()
    }
    second.records[0] = record.model_copy(update={"timings": (timing.model_copy(update={"contenders": contenders}),)})
    shape = compare(first, second).measures[0].shapes[0]
    assert shape.shared_baselines == ("cublaslt_autotuned", "cublaslt_heuristic", "torch_matmul")
    assert shape.relative_ratio.value == pytest.approx(1, rel=0.012)
    unlike = {name: each.model_copy(update={"description": "x"}) for name, each in timing.contenders.items()}
    second.records[0] = record.model_copy(update={"timings": (timing.model_copy(update={"contenders": unlike}),)})
    assert compare(first, second).measures[0].shapes[0].shared_baselines == ()


OLD_PROTOCOL = protocol_for(load_profile("h200")).model_copy(update={"version": "0", "measures": (COLD,)})


@pytest.mark.parametrize(
    ("field", "changed"),
    [
        ("device.profile", {"device": H200.model_copy(update={"profile": "h100", "name": "NVIDIA H100"})}),
        ("device.timer", {"device": H200.model_copy(update={"timer": "host clock"})}),
        (
            "protocol.version",
            {"protocol": OLD_PROTOCOL},
        ),
        ("track", {"track": "f16"}),
    ],
)
def test_what_forbids_comparing_is_named_and_can_be_forced(tmp_path: Path, field: str, changed: dict[str, object]) -> None:
    first, second = read(tmp_path, BASE), read(tmp_path, BASE.but(seed=2, **changed))
    with pytest.raises(DataError, match=field):
        compare(first, second)
    found = compare(first, second, force=True)
    assert found.forced
    assert found.differences[0].importance is Importance.FORBIDS
    assert len(found.measures[0].shapes) == len(BASE.problems)


def test_other_drivers_and_libraries_are_listed_and_do_not_forbid(tmp_path: Path) -> None:
    device = H200.model_copy(update={"driver": "590.1.1", "libraries": {**H200.libraries, "cublasLt": "130200"}})
    found = compare(read(tmp_path, BASE), read(tmp_path, BASE.but(device=device)))
    assert [(each.field, each.a, each.b, each.importance) for each in found.differences] == [
        ("device.driver", "580.159.03", "590.1.1", Importance.MATTERS),
        ("device.libraries.cublasLt", "130100", "130200", Importance.MATTERS),
    ]
    assert not found.forced


def test_shapes_and_measures_of_one_run_alone_are_left_out_and_named(tmp_path: Path) -> None:
    small = BASE.but(shapes="64x64x64,128x64x64", measures=(COLD, WARM))
    first = read(tmp_path, small.but(statuses={"128x64x64": Status.REJECTED}))
    found = compare(first, read(tmp_path, small.but(measures=(COLD,))))
    assert (found.only_a, found.only_b) == ((), ("128x64x64",))
    assert [str(measure.measure) for measure in found.measures] == ["offline/cold"]
    with pytest.raises(DataError, match="nothing to compare"):
        compare(first, read(tmp_path, BASE.but(shapes="512x512x512")))


def test_a_p_value_that_doubles_do_not_tell_from_0_is_not_said_to_be_0(tmp_path: Path) -> None:
    rounds = BASE.but(rounds=40, shapes="64x64x64,128x64x64")
    found = compare(read(tmp_path, rounds), read(tmp_path, rounds.but(seed=2, speedup=0.5))).measures[0]
    assert [shape.adjusted_p_value for shape in found.shapes] == [0.0, 0.0]
    assert [p_value_text(value) for value in (0.0, 9e-13, 1e-12, 0.0123, 1.0)] == [
        "< 1e-12",
        "< 1e-12",
        "1.0e-12",
        "1.2e-02",
        "1.0e+00",
    ]


def test_missing_samples_are_said(tmp_path: Path) -> None:
    run = read(tmp_path, BASE.but(shapes="64x64x64"))
    (run.path / "samples.jsonl.gz").unlink()
    with pytest.raises(DataError, match="raw samples of 64x64x64 are missing"):
        compare(run, run)


def test_command_prints_differences_first_and_json_that_validates(tmp_path: Path) -> None:
    recipe = BASE.but(device=H200.model_copy(update={"driver": "590.[red]1"}))
    first, second = read(tmp_path, BASE), read(tmp_path, recipe.but(seed=2, speedup=0.9))
    command = [sys.executable, "-m", "harness", "compare", str(first.path), str(second.path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown.index("590.[red]1") < shown.index("slower at 40")
    assert "0.0e+00" not in shown
    printed = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout
    assert Comparison.model_validate_json(printed) == compare(first, second)
    assert json.loads(printed)["measures"][0]["slower"] == 40
    refused = subprocess.run([*command[:-1], str(tmp_path)], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
