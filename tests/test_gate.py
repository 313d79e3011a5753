"""The gate: what it says of known truths, how often it is wrong, what it refuses, and `hgemm gate` as a user has it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from gates import World, again, benchmarks, document, pinned, write_pinned, write_result
from paths import path_with
from runs import CPU, H200
from simulate_gates import CASES, gates

from harness.commands.gate import gate
from harness.gate import EXIT_CODES, MAX_SITTINGS, Limits, Outcome, Verdict, judge, settle, undecided
from harness.gate_data import EXTRA, Benchmark, InvalidGateError, accept, collect, read_baseline, read_results, write_baseline
from harness.gate_measure import Bench
from harness.gate_report import headline, junit, lines, markdown
from harness.model import DataError
from harness.record import L2State, Measure
from harness.scores import Regime
from harness.submission import Submission

ROOT = Path(__file__).resolve().parent.parent
QUICK = World()
SKINNY = [str(each.problem) for each in benchmarks(QUICK, 0) if each.regime is Regime.SKINNY]
SMALL = World(shapes="64x64x64,512x512x512", spread=0.005)
FIVE_PERCENT = Limits()
TWENTY_PERCENT_IN_ONE_REGIME = QUICK.but(by_shape=dict.fromkeys(SKINNY, 1.20))


def verdict(now: World, before: World = QUICK, ratio: str = "", limits: Limits = FIVE_PERCENT, seed: int = 2) -> Verdict:
    return judge(collect(benchmarks(now, seed)), pinned(benchmarks(before, 1)), limits, ratio)


@pytest.mark.parametrize("ratio", ["", "cublaslt_autotuned"])
@pytest.mark.parametrize(
    ("world", "expected"),
    [
        (QUICK, Outcome.PASS),
        (QUICK.but(slower=0.8), Outcome.PASS),
        (QUICK.but(slower=1.20), Outcome.FAIL),
        (TWENTY_PERCENT_IN_ONE_REGIME, Outcome.FAIL),
        (QUICK.but(by_shape={"512x512x512": 1.5}), Outcome.FAIL),
    ],
)
def test_plain_truths(world: World, expected: Outcome, ratio: str) -> None:
    assert verdict(world, ratio=ratio).outcome is expected


def test_a_slow_regime_is_named_and_the_others_pass() -> None:
    found = verdict(TWENTY_PERCENT_IN_ONE_REGIME)
    by_regime = {row.unit: row.outcome for row in found.groups if row.regime is not None}
    assert by_regime == {regime.value: Outcome.FAIL if regime is Regime.SKINNY else Outcome.PASS for regime in Regime}
    assert {row.unit for row in found.shapes if row.outcome is Outcome.FAIL} == set(SKINNY)
    (row,) = (row for row in found.groups if row.unit == Regime.SKINNY)
    assert row.slowdown.value == pytest.approx(1.2, rel=0.03)
    assert row.bound < row.slowdown.low < row.slowdown.value < row.slowdown.high


def test_a_regime_may_have_a_limit_of_its_own() -> None:
    limits = Limits.parse(["5%", "skinny=30%"])
    slow = verdict(TWENTY_PERCENT_IN_ONE_REGIME, limits=limits)
    assert {row.unit for row in slow.rows if row.outcome is not Outcome.PASS} <= {"all shapes"}
    tight = verdict(QUICK.but(by_shape=dict.fromkeys(SKINNY, 1.04)), limits=Limits.parse(["5%", "skinny=1%"]))
    assert tight.outcome is Outcome.FAIL


def test_limits_are_read_and_what_is_none_is_refused() -> None:
    read = Limits.parse(["3%", "latency=2.5%", "7%"])
    assert (read.default, read.of(Regime.LATENCY), read.of(Regime.COMPUTE), read.of(None)) == (0.07, 0.025, 0.07, 0.07)
    for bad in ("5", "five%", "-5%", "0%", "nan%", "tiny=5%", "=5%5%", ""):
        with pytest.raises(DataError, match="limit"):
            Limits.parse([bad])


def test_false_failures_are_at_most_one_percent_and_ten_percent_is_not_missed() -> None:
    """1,000 gates of every case are in docs/ci.md; the seeds here are others."""
    for ratio in ("", "cublaslt_autotuned"):
        _, unchanged = gates(CASES["no change"], 40, ratio, first_seed=5001)
        assert unchanged[Outcome.FAIL] == 0
        assert unchanged[Outcome.PASS] >= 38
        for title in ("10 % slower at every shape", "10 % slower at one shape"):
            _, slower = gates(CASES[title], 25, ratio, first_seed=5001)
            assert slower[Outcome.PASS] == 0, title
            assert slower[Outcome.FAIL] >= 23, title


def test_the_noisiest_shapes_are_never_passed_for_lack_of_precision() -> None:
    _, unchanged = gates(CASES["7 % spread everywhere, no change"], 15, first_seed=5001)
    assert unchanged[Outcome.FAIL] == 0
    _, slower = gates(CASES["7 % spread everywhere, 10 % slower at one shape"], 15, first_seed=5001)
    assert slower[Outcome.PASS] == 0


def test_a_slower_machine_is_ambiguous_in_time_and_nothing_in_a_ratio() -> None:
    found = verdict(QUICK.but(machine=1.10))
    assert found.outcome is Outcome.AMBIGUOUS
    assert any(row.machine for row in found.rows)
    assert verdict(QUICK.but(machine=1.10), ratio="cublaslt_autotuned").outcome is Outcome.PASS


def test_a_faster_machine_does_not_hide_a_slower_kernel() -> None:
    assert verdict(QUICK.but(machine=0.8, slower=1.2)).outcome is Outcome.AMBIGUOUS
    assert verdict(QUICK.but(machine=0.8, slower=1.2), ratio="cublaslt_autotuned").outcome is Outcome.FAIL


def test_ambiguous_shapes_are_measured_again_and_no_others_until_the_budget_is_spent() -> None:
    noisy = World(shapes="512x512x512", spread=0.07, machine=1.05)
    before = pinned([*benchmarks(SMALL.but(shapes="64x64x64"), 1), *benchmarks(noisy.but(machine=1.0), 3)])
    now = collect([*benchmarks(SMALL.but(shapes="64x64x64"), 2), *benchmarks(noisy.but(slower=1.05), 4)])
    first = judge(now, before, Limits())
    assert first.outcome is Outcome.AMBIGUOUS
    assert [key.split()[1] for key in undecided(first, now)] == ["512x512x512"]
    asked: list[str] = []

    def measured_again(of: Benchmark) -> Benchmark:
        asked.append(of.key)
        return again(noisy, of, len(asked))

    results, last = settle(now, lambda results: judge(results, before, Limits()), measured_again)
    assert asked == ["kernel 512x512x512 offline/cold"] * last.again
    assert last.outcome is Outcome.PASS or last.again == MAX_SITTINGS - 1
    assert len(results.benchmarks[asked[0]].sittings) == last.again + 1
    _, spent = settle(now, lambda results: judge(results, before, Limits()), lambda of: None)
    assert (spent.outcome, spent.again) == (Outcome.AMBIGUOUS, 0)
    _, wrong = settle(now, lambda results: judge(results, before, Limits()), lambda of: "it was rejected this time")
    assert wrong.outcome is Outcome.INVALID


def test_a_ratio_to_another_submission_of_the_file_needs_no_equal_machine() -> None:
    def both(fast: World, seed: int) -> list[Benchmark]:
        return [*benchmarks(fast, seed), *benchmarks(SMALL.but(name="other", slower=3.0, machine=fast.machine), seed + 1)]

    before = pinned(both(SMALL, 1))
    for world, expected in ((SMALL.but(machine=1.5), Outcome.PASS), (SMALL.but(slower=1.5), Outcome.FAIL)):
        found = judge(collect(both(world, 3)), before, Limits.parse(["30%"]), "other")
        assert found.outcome is expected
        assert {row.submission for row in found.rows} == {"kernel"}
        assert found.drift == pytest.approx(world.slower, rel=0.03)
    assert judge(collect(both(SMALL, 3)), before, Limits(), "nobody").outcome is Outcome.INVALID
    alone = pinned(benchmarks(SMALL, 1))
    assert judge(collect(benchmarks(SMALL, 2)), alone, Limits(), "kernel").faults == (
        "there is nothing beside kernel to compare with it",
    )


DEVICES = {
    "name": "NVIDIA H200 NVL",
    "driver": "590.1",
    "timer": "host clock",
    "uuid": "GPU-2",
    "libraries": {**H200.libraries, "cublasLt": "130200"},
}


@pytest.mark.parametrize("ratio", ["", "cublas"])
@pytest.mark.parametrize("field", DEVICES)
def test_another_device_driver_or_library_is_invalid_and_a_ratio_takes_another_card(field: str, ratio: str) -> None:
    other = SMALL.but(device=H200.model_copy(update={field: DEVICES[field]}))
    expected = Outcome.PASS if field == "uuid" and ratio else Outcome.INVALID
    assert verdict(other, SMALL, ratio).outcome is expected


def test_another_protocol_or_a_shared_card_is_invalid() -> None:
    older = benchmarks(SMALL, 1)[0].protocol.model_copy(update={"version": "0"})
    now = [each.model_copy(update={"protocol": older}) for each in benchmarks(SMALL, 2)]
    assert "protocol" in judge(collect(now), pinned(benchmarks(SMALL, 1)), Limits()).faults[0]
    assert verdict(SMALL.but(rankable=False), SMALL).outcome is Outcome.INVALID
    assert verdict(SMALL.but(rankable=False), SMALL, "cublas").outcome is Outcome.PASS
    on_cpu = SMALL.but(device=CPU, rankable=False)
    assert verdict(on_cpu, on_cpu).outcome is Outcome.PASS


def test_missing_extra_double_and_no_benchmarks_are_invalid_whatever_the_rest_says() -> None:
    slow = benchmarks(SMALL.but(slower=5.0), 2)
    before = pinned(benchmarks(SMALL, 1))
    for now in ([], slow[:1], [*slow, *benchmarks(World(shapes="128x64x64"), 3)], [*slow, slow[0]]):
        found = judge(collect(now), before, Limits())
        assert (found.outcome, found.exit_code) == (Outcome.INVALID, 11)
        assert found.rows == ()
    assert EXIT_CODES == {Outcome.PASS: 0, Outcome.FAIL: 1, Outcome.AMBIGUOUS: 10, Outcome.INVALID: 11}


def test_measures_are_gated_apart() -> None:
    warm = Measure(l2_state=L2State.WARM)
    both = SMALL.but(measures=(Measure(), warm))
    usual, slower = (benchmarks(world, 2) for world in (both, both.but(slower=1.5)))
    slow = [each for each in usual if each.measure != warm] + [each for each in slower if each.measure == warm]
    found = judge(collect(slow), pinned(benchmarks(both, 1)), Limits())
    assert {str(row.measure) for row in found.rows if row.outcome is Outcome.FAIL} == {"offline/warm"}


def nan_median(data: dict[str, Any]) -> None:
    data["benchmarks"][0]["stats"]["median"] = math.nan


def other_median(data: dict[str, Any]) -> None:
    data["benchmarks"][0]["stats"]["median"] *= 0.5


def shorter_windows(data: dict[str, Any]) -> None:
    line = data["benchmarks"][0]["extra_info"][EXTRA]["sittings"][0]["samples"][-1]
    line["window_ns"] = [window // 2 for window in line["window_ns"]]


def unverified(data: dict[str, Any]) -> None:
    record = data["benchmarks"][0]["extra_info"][EXTRA]["sittings"][0]["record"]
    record.update(status="rejected", reason="wrong_result", timings=[])


def no_samples(data: dict[str, Any]) -> None:
    data["benchmarks"][0]["extra_info"][EXTRA]["sittings"][0]["samples"] = []


@pytest.mark.parametrize("damage", [nan_median, other_median, shorter_windows, unverified, no_samples])
def test_damaged_results_never_pass(tmp_path: Path, damage: Callable[[dict[str, Any]], None]) -> None:
    data = document(benchmarks(SMALL, 2))
    damage(data)
    path = tmp_path / "now.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    if damage is nan_median:
        with pytest.raises(InvalidGateError, match="NaN"):
            read_results(path)
        return
    results = read_results(path)
    found = judge(results, pinned(benchmarks(SMALL, 1)), Limits())
    assert found.outcome is Outcome.INVALID
    with pytest.raises(InvalidGateError, match="no baseline"):
        accept(results, None, "damaged", compares=False)


def test_accepting_goes_on_with_the_history_and_drift_counts_from_the_anchor(tmp_path: Path) -> None:
    path = write_pinned(tmp_path / "baseline.json", benchmarks(SMALL, 1))
    for step in range(1, 6):
        now = read_results(write_result(tmp_path / "now.json", benchmarks(SMALL.but(slower=1.4**step), step)))
        found = judge(now, read_baseline(path), Limits())
        assert found.outcome is Outcome.FAIL
        assert found.drift == pytest.approx(1.4**step, rel=0.02)
        write_baseline(accept(now, read_baseline(path), f"step {step}", compares=True), path)
    pin = read_baseline(path).pin
    assert pin is not None
    assert [entry.reason for entry in pin.history] == ["the first", *(f"step {step}" for step in range(1, 6))]
    assert pin.history[0].slowdown is pin.history[0].drift is None
    assert all(entry.slowdown == pytest.approx(1.4, rel=0.02) for entry in pin.history[1:])
    assert pin.latest.drift == pytest.approx(1.4**5, rel=0.02)
    fresh = accept(now, read_baseline(path), "another driver", compares=False).pin
    assert fresh is not None
    assert (fresh.latest.slowdown, fresh.latest.drift, len(fresh.history)) == (None, None, 7)


def test_reports_hold_the_outcome_the_table_and_the_reason() -> None:
    found = verdict(TWENTY_PERCENT_IN_ONE_REGIME)
    assert headline(found).startswith("hgemm gate: fail: ")
    text = markdown(found)
    assert text.startswith("### hgemm gate: fail\n")
    assert "| skinny | 4 |" in text
    failing = [row for row in found.rows if row.outcome is Outcome.FAIL]
    assert text.count("**fail**") == len(failing) == len({"skinny", "all shapes", *SKINNY} & {row.unit for row in failing})
    assert any(line.startswith("  baseline of ") and line.endswith(": the first") for line in lines(found))
    suite = ElementTree.fromstring(junit(found))
    failures = suite.findall("testcase/failure")
    assert suite.get("failures") == str(len(failures)) == str(sum(row.outcome is Outcome.FAIL for row in found.rows))
    nothing = judge(collect([]), pinned(benchmarks(SMALL, 1)), Limits())
    assert ElementTree.fromstring(junit(nothing)).find("testcase/error") is not None
    assert "- nothing was measured" in markdown(nothing)


def hgemm_gate(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", "gate", *arguments]
    environment = {**os.environ, "PYTHONPATH": path_with(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_command_ends_with_the_four_codes(tmp_path: Path) -> None:
    write_pinned(tmp_path / "baseline.json", benchmarks(QUICK, 1))
    worlds = {0: QUICK, 1: TWENTY_PERCENT_IN_ONE_REGIME, 10: QUICK.but(machine=1.1), 11: World(shapes="64x64x64")}
    for code, world in worlds.items():
        write_result(tmp_path / "now.json", benchmarks(world, 2))
        files = ("--markdown", "summary.md", "--junit", "junit.xml")
        ended = hgemm_gate(tmp_path, "now.json", "baseline.json", "--json", "--max-regression", "5.0%", *files)
        assert ended.returncode == code, ended.stderr
        found = Verdict.parse(ended.stdout, "verdict")
        assert found.exit_code == code
        assert found.outcome in (tmp_path / "summary.md").read_text(encoding="utf-8").splitlines()[0]
        assert (tmp_path / "junit.xml").is_file()
    write_result(tmp_path / "now.json", benchmarks(TWENTY_PERCENT_IN_ONE_REGIME, 2))
    looser = ("--regime", "skinny=40%", "--max-regression", "10%")
    assert hgemm_gate(tmp_path, "now.json", "baseline.json", *looser).returncode == 0


def test_the_command_pins_and_refuses(tmp_path: Path) -> None:
    write_result(tmp_path / "now.json", benchmarks(SMALL, 1))
    assert hgemm_gate(tmp_path, "now.json", "baseline.json").returncode == 11
    assert hgemm_gate(tmp_path, "now.json", "now.json").returncode == 11
    first = hgemm_gate(tmp_path, "now.json", "baseline.json", "--accept", "the first")
    assert (first.returncode, first.stderr) == (0, "pinned 2 benchmarks in baseline.json: the first\n")
    write_result(tmp_path / "now.json", benchmarks(SMALL.but(slower=1.4), 2))
    second = hgemm_gate(tmp_path, "now.json", "baseline.json", "--accept", "it now does more")
    assert "against the baseline before" in second.stderr
    assert hgemm_gate(tmp_path, "now.json", "baseline.json").returncode == 0
    assert hgemm_gate(tmp_path, "now.json", "baseline.json", "--max-regression", "five").returncode == 2
    text = (tmp_path / "baseline.json").read_text(encoding="utf-8")
    (tmp_path / "baseline.json").write_text(text.replace("it now does more", "nothing"), encoding="utf-8")
    assert "was changed after it was accepted" in hgemm_gate(tmp_path, "now.json", "baseline.json").stderr
    (tmp_path / "empty.json").write_text('{"benchmarks": []}', encoding="utf-8")
    assert hgemm_gate(tmp_path, "empty.json", "new.json", "--accept", "nothing").returncode == 11


def test_the_command_measures_again_what_is_ambiguous_with_the_submission_that_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first sitting met a slower machine, and those that follow do not."""
    blocked = ROOT / "submissions" / "cpu-blocked"
    world = SMALL.but(device=CPU, name="cpu-blocked")
    mine = {"submission": Submission.read(blocked).reference()}
    before = [each.model_copy(update=mine) for each in benchmarks(world, 1)]
    now = [each.model_copy(update=mine) for each in benchmarks(world.but(machine=1.08), 2)]
    write_pinned(tmp_path / "baseline.json", before)
    write_result(tmp_path / "now.json", now)
    monkeypatch.setattr(Bench, "again", lambda bench, target, of: again(world, of, 3))
    arguments = (tmp_path / "now.json", tmp_path / "baseline.json")
    for options, code in (({}, 10), ({"again": [blocked], "budget": 0.0}, 10), ({"again": [blocked]}, 0)):
        with pytest.raises(SystemExit) as ended:
            gate(*arguments, **options)
        assert ended.value.code == code, capsys.readouterr().out
    write_result(tmp_path / "now.json", benchmarks(world.but(machine=1.08), 2))
    with pytest.raises(SystemExit) as ended:
        gate(*arguments, again=[blocked])
    assert ended.value.code == 11
    assert "is not what the result was measured with" in capsys.readouterr().out
