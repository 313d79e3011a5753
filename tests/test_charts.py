"""Charts: the figures in them are those of the rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from boards import RECIPES
from runs import COLD, make_run

from harness.problem import Problem
from harness.profiles import load_profile
from harness.record import Interval, Status
from harness.run import Run
from harness.scores import Regime
from leaderboard.charts import (
    MAX_PANELS,
    history_chart,
    latency_cdf,
    panel_values,
    roofline,
    speedup_against_roof,
    speedup_heatmap,
)
from leaderboard.queries import HistoryPoint
from leaderboard.ranking import Standing
from leaderboard.run_content import RunContent
from leaderboard.shape_queries import ShapeRow

H200 = load_profile("h200")


def rows_of(tmp_path: Path, name: str) -> tuple[ShapeRow, ...]:
    return RunContent.of(Run.read(make_run(tmp_path, RECIPES[name]))).rows[COLD]


def heatmaps(figure: go.Figure) -> Iterator[tuple[Any, Any]]:
    """Every heatmap with the points that lie over it."""
    return zip(figure.select_traces({"type": "heatmap"}), figure.select_traces({"type": "scatter"}), strict=True)


@pytest.mark.parametrize(("panel", "x", "y"), [("k", "n", "m"), ("m", "n", "k"), ("n", "k", "m")])
def test_heatmap_has_every_shape_once_with_its_speedup(tmp_path: Path, panel: str, x: str, y: str) -> None:
    rows = {row.shape: row for row in rows_of(tmp_path, "fast")}
    seen = []
    for value, (heatmap, points) in zip((64, 128), heatmaps(speedup_heatmap(list(rows.values()), panel)), strict=True):
        for at_x, at_y, shape in zip(points.x, points.y, points.customdata, strict=True):
            row = rows[shape]
            assert (str(getattr(row, x)), str(getattr(row, y)), getattr(row, panel)) == (at_x, at_y, value)
            z = heatmap.z[heatmap.y.index(at_y)][heatmap.x.index(at_x)]
            assert 2**z == pytest.approx(row.speedup)
            assert f"{row.speedup:.3f}" in points.text[points.customdata.index(shape)]
            seen.append(shape)
    assert sorted(seen) == sorted(rows)


def test_heatmap_marks_what_is_not_verified(tmp_path: Path) -> None:
    figure = speedup_heatmap(rows_of(tmp_path, "partial"), "k", 64)
    ((heatmap, points),) = heatmaps(figure)
    place = points.customdata.index("64x64x64")
    assert points.marker.symbol[place] == "x"
    assert "unsupported, declared" in points.text[place]
    assert heatmap.z[0][0] is None
    assert heatmap.texttemplate == "%{text}"
    assert heatmap.text[1][0] == f"{2 ** heatmap.z[1][0]:.2f}"


def test_heatmap_draws_the_fullest_panels_only(tmp_path: Path) -> None:
    row = rows_of(tmp_path, "fast")[0]
    rows = [row._replace(k=k, n=n) for k in range(1, 20) for n in range(1, 3 if k > 5 else 2)]
    assert panel_values(rows, "k") == list(range(6, 6 + MAX_PANELS))
    assert len(list(heatmaps(speedup_heatmap(rows)))) == MAX_PANELS
    assert len(speedup_heatmap([]).data) == 0


def test_speedup_against_roof(tmp_path: Path) -> None:
    rows = {row.shape: row for row in rows_of(tmp_path, "fast")}
    (trace,) = speedup_against_roof(list(rows.values()), H200).data
    assert trace.name == Regime.LATENCY.value
    for x, y, up, down, shape in zip(
        trace.x, trace.y, trace.error_y.array, trace.error_y.arrayminus, trace.customdata, strict=True
    ):
        row = rows[shape]
        assert x == H200.roof_ns(Problem.parse(shape)) / 1e3
        assert (y, y + up, y - down) == pytest.approx((row.speedup, row.speedup_high, row.speedup_low))


def test_roofline_has_rates_under_the_roof(tmp_path: Path) -> None:
    rows = {row.shape: row for row in rows_of(tmp_path, "fast")}
    baseline, mine, roof = roofline(list(rows.values()), H200).data
    for trace, field in ((mine, "launch_ns"), (baseline, "baseline_ns")):
        for x, y, shape in zip(trace.x, trace.y, trace.customdata, strict=True):
            problem = Problem.parse(shape)
            assert x == problem.flops / problem.bytes_total
            assert y * 1e12 == pytest.approx(problem.flops / (getattr(rows[shape], field) * 1e-9))
            assert y * 1e12 < min(H200.sustained_flops_per_s, x * H200.copy_bandwidth_bytes_per_s)
    assert max(roof.y) * 1e12 == H200.sustained_flops_per_s
    assert roof.y[0] * 1e12 == pytest.approx(roof.x[0] * H200.copy_bandwidth_bytes_per_s)


def test_latency_cdf_steps_through_every_sample() -> None:
    figure = latency_cdf({"cublas": (3000.0, 1000.0, 2000.0), "submission": (500.0,)})
    mine, theirs = figure.data
    assert (mine.name, theirs.name) == ("submission", "cublas")
    assert list(theirs.x) == [1.0, 1.0, 2.0, 3.0]
    assert list(theirs.y) == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert theirs.line.shape == "hv"


def test_history_joins_the_best_and_keeps_others_apart() -> None:
    def point(run: str, value: float | None, best: bool, standing: Standing = Standing.RANKED) -> HistoryPoint:
        score = None if value is None else Interval(value=value, low=value / 1.01, high=value * 1.01)
        return HistoryPoint(run, "2026-11-01T00:00:00Z", "<b>", "1.0", "<i>Ada</i>", "0" * 64, standing, score, best)

    cheat = point("e", 9.0, False, Standing.CHEATING)
    best, other, crossed = history_chart(
        [cheat, point("a", 1.0, True), point("b", 0.9, False), point("c", None, False), point("d", 1.1, True)]
    ).data
    assert (list(best.customdata), list(best.y), best.mode) == (["a", "d"], [1.0, 1.1], "lines+markers")
    assert (list(other.customdata), other.mode) == (["b"], "markers")
    assert (list(crossed.customdata), crossed.marker.symbol) == (["e"], "x")
    assert [each.name.rpartition(", ")[2] for each in (other, crossed)] == ["superseded", "cheating"]
    assert "<i>" not in best.name
    assert "<b>" not in best.text[0]
    assert math.isclose(best.error_y.arrayminus[0], 1 - 1 / 1.01)


def test_content_of_a_directory_knows_every_status(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "wrong")
    assert {row.status for row in rows} == {Status.VERIFIED, Status.REJECTED}
    assert all((row.speedup is None) == (row.status is not Status.VERIFIED) for row in rows)
