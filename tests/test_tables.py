"""What a person sees of a run on a GPU, from runs whose figures are known."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from factories import make_record
from runs import COLD, WARM, Recipe, make_run

from harness.commands.console import outcome_line, print_report
from harness.commands.runs import find_run
from harness.commands.show import show
from harness.commands.tables import PIPE_WIDTH
from harness.model import DataError
from harness.problem import Problem
from harness.protocol import CUDA_BASELINES
from harness.record import Status
from harness.run import Run
from harness.run_report import _seconds, report_of

TWO = "64x64x64,4096x4096x4096"


def shown(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    print_report(Run.read(path), as_json=False)
    return capsys.readouterr().out


def rows(text: str, head: str) -> dict[str, list[str]]:
    """Cells after the first of the table that follows a line, by its first cell."""
    lines = text.split(head)[1].split("\n\n")[0].splitlines()[1:]
    return {cells[0]: cells[1:] for line in lines if (cells := re.split(r" {2,}", line.strip())) and len(cells) > 1}


def test_every_measure_has_a_table_with_every_baseline_and_regime(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path, Recipe(measures=(COLD, WARM), by_shape={"64x64x64": 2.0}, noise=1e-6, shapes=TWO))
    text = shown(run, capsys)
    cold = rows(text, "offline, cold: speedup over each baseline (2 shapes)")
    assert {"best per shape", *CUDA_BASELINES} <= set(cold)
    assert cold["cublaslt_autotuned"] == ["1.556", "1.556-1.556", "100%", cold["cublaslt_autotuned"][3], "2.200", "1.100"]
    assert cold["best per shape"][0] == "1.556"
    assert set(cold) == set(rows(text, "offline, warm: speedup over each baseline (2 shapes)"))
    assert re.search(r"latency +compute\n", text)
    worst = rows(text, "worst shapes")
    assert list(worst) == ["4096x4096x4096", "64x64x64"]
    assert "CPU" not in text
    assert max(map(len, text.split("one shape:")[0].splitlines())) <= PIPE_WIDTH


def test_losing_and_unranked_runs_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noisy = shown(make_run(tmp_path / "noisy", Recipe(noise=0.2, shapes=TWO)), capsys)
    assert "known to no better than ±1 %" in noisy
    shared = shown(make_run(tmp_path / "shared", Recipe(not_rankable="2 other processes use the card", shapes=TWO)), capsys)
    assert "It cannot be ranked: 2 other processes use the card." in shared


def test_what_is_not_verified_is_listed_and_there_is_no_score(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    statuses = {"64x64x64": Status.REJECTED, "128x64x64": Status.UNSUPPORTED}
    path = make_run(tmp_path, Recipe(statuses=statuses))
    text = shown(path, capsys)
    assert "4 of 6 shapes verified, 1 rejected, 1 unsupported" in text
    assert "(4 verified shapes only, so no score)" in text
    assert rows(text, "\n\nnot verified")["64x64x64"][:2] == ["rejected", "wrong_result"]
    report = report_of(Run.read(path))
    assert (report.complete, report.run.complete, report.scores) == (False, True, {})
    assert [each.shape for each in report.not_verified] == ["64x64x64", "128x64x64"]


def test_many_failures_are_counted_not_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = [f"64x64x{k}" for k in range(8, 8 * 26, 8)]
    path = make_run(tmp_path, Recipe(shapes=",".join(shapes), statuses=dict.fromkeys(shapes, Status.REJECTED)))
    text = shown(path, capsys)
    assert text.count("wrong_result") == 20
    assert "and 5 more: hgemm show" in text


def test_a_record_shows_clocks_and_the_errors_of_baselines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make_run(tmp_path, Recipe(shapes=TWO))
    show(str(path), shape="64x64x64")
    text = capsys.readouterr().out
    record = Run.read(path).records[0]
    mine = record.timings[0].contenders["submission"]
    line = next(line for line in text.splitlines() if line.startswith("submission "))
    assert re.split(r" {2,}", line)[1:6] == [
        *(
            f"{ns / mine.launches_per_window / 1000:,.3f}"
            for ns in (mine.window_median_ns, mine.window_min_ns, mine.window_max_ns)
        ),
        str(mine.launches_per_window),
        "1980",
    ]
    assert [name for name in CUDA_BASELINES if f"normal, {name} " in text] == list(CUDA_BASELINES)
    assert f"best baseline {record.timings[0].best_baseline}" in text
    assert outcome_line(record).startswith("64x64x64 verified, offline/cold speedup 1.")


def test_a_run_is_found_by_path_and_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_run(tmp_path / "runs", Recipe(shapes=TWO))
    monkeypatch.chdir(tmp_path)
    assert find_run(path.name) == Path("runs") / path.name
    assert find_run(str(path)) == path
    with pytest.raises(DataError, match=path.name):
        find_run("another")


def test_a_report_says_what_each_measure_took() -> None:
    record = make_record(Problem.parse("64x64x64"), measures=(COLD, WARM), seconds=2.1)
    took = tuple(
        timing.model_copy(update={"seconds": seconds}) for timing, seconds in zip(record.timings, (1.2, 0.5), strict=True)
    )
    records = [record.model_copy(update={"timings": took}), make_record(Problem.parse("64x64x128"), seconds=0.5)]
    assert _seconds(records) == {"verification": 0.9, "offline/cold": 1.2, "offline/warm": 0.5}
