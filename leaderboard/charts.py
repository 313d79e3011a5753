"""Charts: the only ones. Pure functions from rows of queries to plotly figures, for the app, the export and `hgemm report`.

Colours are legible on light and dark ground alike; backgrounds are transparent. Ratios are drawn on logarithmic scales, where
twice as fast and half as fast are equally far from even.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from harness.problem import Problem
from harness.profiles import DeviceProfile
from harness.record import SUBMISSION
from harness.scores import Regime
from leaderboard.queries import HistoryPoint
from leaderboard.shape_queries import ShapeRow

MAX_PANELS = 12
"""Small multiples of one heatmap; of more values those with the most shapes are drawn."""
COLUMNS = 5
INK = "#7d8590"
"""Text and lines: contrast over 3.5 on white and on Streamlit's dark ground."""
GRID = "rgba(125, 133, 144, 0.25)"
EVEN = "rgba(125, 133, 144, 0.8)"
SCALE = ((0.0, "#a63603"), (0.25, "#f0a35e"), (0.5, "#eceff1"), (0.75, "#67a9cf"), (1.0, "#08519c"))
"""Slower is orange, faster is blue: told apart also by those who do not tell red from green."""
REGIME_COLOURS = {
    Regime.LATENCY: "#8c6bb1",
    Regime.SKINNY: "#d95f0e",
    Regime.OUTPUT_BOUND: "#2ca25f",
    Regime.COMPUTE: "#3182bd",
}
CONTENDER_COLOURS = ("#d95f0e", "#3182bd", "#2ca25f", "#8c6bb1", "#c51b8a", "#7d8590")
TICKS = (0.5, 0.7, 1.0, 1.4, 2.0)
BELOW = {"xref": "x domain", "x": 0.5, "yref": "y domain", "y": 0, "yshift": -62, "showarrow": False}
"""Where the name of a panel's horizontal axis stands."""
HISTORY_SYMBOLS = {"best so far": "circle", "superseded": "circle-open"}


class Axes(NamedTuple):
    """Which dimensions of a shape lie where in a heatmap, by the dimension that tells its panels apart."""

    x: str
    y: str


AXES = {"k": Axes("n", "m"), "m": Axes("n", "k"), "n": Axes("k", "m")}


def speedup_heatmap(rows: Sequence[ShapeRow], panel: str = "k", only: int | None = None) -> go.Figure:
    """Speedup over the baseline for two of M, N, K, one panel per value of the third; shapes that are not verified are crosses.

    Every cell carries its shape, `MxNxK`, as `customdata` of a point, so that it can be clicked.

    Args:
        rows: shapes of one run.
        panel: the dimension, `m`, `n` or `k`, with one value per panel.
        only: the one value of the third dimension to draw, large and with figures in the cells.
    """
    axes = AXES[panel]
    values = panel_values(rows, panel) if only is None else [only]
    columns = min(len(values), COLUMNS) or 1
    lines = math.ceil(len(values) / columns) or 1
    titles = [f"{panel.upper()} = {value}" for value in values]
    figure = make_subplots(
        rows=lines,
        cols=columns,
        subplot_titles=titles,
        shared_xaxes=True,
        shared_yaxes=True,
        horizontal_spacing=0.012,
        vertical_spacing=0.22 / lines,
    )
    xs, ys = _sizes(rows, axes.x), _sizes(rows, axes.y)
    for place, value in enumerate(values):
        cells = {(getattr(row, axes.x), getattr(row, axes.y)): row for row in rows if getattr(row, panel) == value}
        position = {"row": place // columns + 1, "col": place % columns + 1}
        for trace in _panel(cells, xs, ys, only is not None):
            figure.add_trace(trace, **position)
    _label(figure, axes, [_size_label(x) for x in xs], [_size_label(y) for y in ys])
    for column in range(columns):
        # Not as titles of the axes: the app's theme puts those over the ticks.
        figure.add_annotation(text=axes.x.upper(), row=lines, col=column + 1, **BELOW)
    figure.update_annotations(font_size=13)
    ticks = [math.log2(tick) for tick in TICKS]
    height_px = 540 if only is not None else 150 + 215 * lines
    bar = {
        "tickvals": ticks,
        "ticktext": [f"{tick:g}×" for tick in TICKS],
        "orientation": "h",
        "thickness": 10,
        "len": 0.4,
        "x": 0,
        "xanchor": "left",
    }
    bar |= {"tickangle": 0, "y": 1 + 34 / height_px, "yanchor": "bottom", "title": {"text": "speedup", "side": "top"}}
    figure.update_layout(coloraxis={"colorscale": SCALE, "cmin": -1, "cmax": 1, "colorbar": bar}, showlegend=False)
    return _styled(figure, height_px).update_layout(margin_t=92, margin_b=76)


def panel_values(rows: Sequence[ShapeRow], panel: str) -> list[int]:
    """The values of the third dimension that a heatmap draws, ascending."""
    counts = Counter(getattr(row, panel) for row in rows)
    return sorted(value for value, _ in counts.most_common(MAX_PANELS))


def speedup_against_roof(rows: Sequence[ShapeRow], profile: DeviceProfile) -> go.Figure:
    """Speedup over the baseline against the shape's speed-of-light time, with intervals, one colour per regime."""
    figure = go.Figure()
    for regime, colour in REGIME_COLOURS.items():
        those = [row for row in rows if row.regime is regime and row.speedup is not None]
        if not those:
            continue
        figure.add_trace(
            go.Scatter(
                x=[profile.roof_ns(_problem(row)) / 1e3 for row in those],
                y=[row.speedup for row in those],
                error_y={
                    "array": [(row.speedup_high or 0) - (row.speedup or 0) for row in those],
                    "arrayminus": [(row.speedup or 0) - (row.speedup_low or 0) for row in those],
                    "thickness": 1,
                    "width": 0,
                },
                customdata=[row.shape for row in those],
                text=[_hover(row) for row in those],
                hovertemplate="%{text}<extra></extra>",
                mode="markers",
                name=regime.value.replace("_", " "),
                marker={"color": colour, "size": 6, "opacity": 0.75},
            )
        )
    figure.add_hline(y=1, line={"color": EVEN, "dash": "dot", "width": 1})
    figure.update_xaxes(type="log", title_text="speed-of-light time, µs", dtick=1)
    ratios = [row.speedup for row in rows if row.speedup is not None]
    _ratio_axis(figure, ratios, "speedup over the baseline")
    return _styled(figure, 440)


def roofline(rows: Sequence[ShapeRow], profile: DeviceProfile) -> go.Figure:
    """Rate reached against arithmetic intensity, submission and baseline, under the roof of the device.

    Intensity counts A, B and C moved once each. On warm data a shape can lie above the slope: its bytes come from the cache.
    """
    figure = go.Figure()
    ridge = profile.sustained_flops_per_s / profile.copy_bandwidth_bytes_per_s
    known = [row for row in rows if row.launch_ns is not None]
    intensities = [_intensity(row) for row in known] or [1.0, ridge]
    ends = (min(*intensities, ridge) / 1.5, max(*intensities, ridge) * 1.5)
    roof = [
        min(profile.sustained_flops_per_s, x * profile.copy_bandwidth_bytes_per_s) / 1e12 for x in (ends[0], ridge, ends[1])
    ]
    for name, colour, field in (("baseline", INK, "baseline_ns"), ("submission", CONTENDER_COLOURS[0], "launch_ns")):
        those = [row for row in known if getattr(row, field) is not None]
        figure.add_trace(
            go.Scatter(
                x=[_intensity(row) for row in those],
                y=[_problem(row).flops / getattr(row, field) / 1e3 for row in those],
                customdata=[row.shape for row in those],
                text=[_hover(row) for row in those],
                hovertemplate="%{text}<br>%{y:.3g} TFLOP/s<extra>" + name + "</extra>",
                mode="markers",
                name=name,
                marker={"color": colour, "size": 5, "opacity": 0.6},
            )
        )
    line = {"color": INK, "width": 2}
    figure.add_trace(go.Scatter(x=[ends[0], ridge, ends[1]], y=roof, mode="lines", name="roof", line=line, hoverinfo="skip"))
    figure.update_xaxes(type="log", title_text="arithmetic intensity, FLOP per byte", dtick=1)
    figure.update_yaxes(type="log", title_text="TFLOP/s", dtick=1)
    return _styled(figure, 440)


def latency_cdf(samples_ns: Mapping[str, Sequence[float]]) -> go.Figure:
    """Cumulative distribution of raw samples, one step line per contender.

    Args:
        samples_ns: by contender, device time per launch or latency per request, in nanoseconds.
    """
    figure = go.Figure()
    others = [name for name in samples_ns if name != SUBMISSION]
    ordered = [name for name in (SUBMISSION, *sorted(others)) if name in samples_ns]
    for name, colour in zip(ordered, CONTENDER_COLOURS * len(ordered), strict=False):
        values = sorted(samples_ns[name])
        count = len(values)
        figure.add_trace(
            go.Scatter(
                x=[value / 1e3 for value in values[:1] + values],
                y=[place / count for place in range(count + 1)],
                mode="lines",
                name=name,
                line={"shape": "hv", "color": colour, "width": 2.5 if name == SUBMISSION else 1.5},
                hovertemplate="%{y:.0%} within %{x:.4g} µs<extra>" + name + "</extra>",
            )
        )
    figure.update_xaxes(title_text="µs")
    figure.update_yaxes(title_text="share of samples", tickformat=".0%", range=[0, 1.02])
    return _styled(figure, 380)


def history_chart(points: Sequence[HistoryPoint]) -> go.Figure:
    """Scores of all runs on a list over time, one colour per author: the best so far joined, crosses do not count."""
    figure = go.Figure()
    authors = sorted({point.author for point in points if point.geomean is not None})
    for author, colour in zip(authors, CONTENDER_COLOURS * (len(authors) or 1), strict=False):
        those = [point for point in points if point.author == author and point.geomean is not None]
        for then in sorted({point.then for point in those}, key=lambda then: (then not in HISTORY_SYMBOLS, then)):
            part = [point for point in those if point.then == then]
            name = author if part[0].is_best else f"{author}, {then}"
            figure.add_trace(_history_trace(part, name, colour, HISTORY_SYMBOLS.get(then, "x")))
    figure.add_hline(y=1, line={"color": EVEN, "dash": "dot", "width": 1})
    figure.update_xaxes(title_text="run ended, UTC", type="date", range=_days_around(points))
    figure.update_yaxes(title_text="geometric mean speedup")
    return _styled(figure, 420)


def _days_around(points: Sequence[HistoryPoint]) -> list[datetime] | None:
    """From a day before the first run to a day after the last."""
    ends = [datetime.fromisoformat(point.ended_utc) for point in points]
    return [min(ends) - timedelta(days=1), max(ends) + timedelta(days=1)] if ends else None


def _history_trace(points: Sequence[HistoryPoint], name: str, colour: str, symbol: str) -> go.Scatter:
    intervals = [point.geomean for point in points if point.geomean is not None]
    return go.Scatter(
        x=[point.ended_utc for point in points],
        y=[each.value for each in intervals],
        error_y={
            "array": [each.high - each.value for each in intervals],
            "arrayminus": [each.value - each.low for each in intervals],
            "thickness": 1,
        },
        customdata=[point.run for point in points],
        text=[f"{_plain(point.name)} {_plain(point.version)}, {point.standing}" for point in points],
        hovertemplate="%{text}<br>%{y:.4f}<extra></extra>",
        mode="lines+markers" if symbol == "circle" else "markers",
        line={"shape": "hv", "color": colour, "width": 1.5},
        marker={"symbol": symbol, "color": colour, "size": 9},
        name=_plain(name),
    )


def _label(figure: go.Figure, axes: Axes, labels_x: Sequence[str], labels_y: Sequence[str]) -> None:
    """Sizes along the axes of a heatmap's panels."""
    for update, labels in ((figure.update_xaxes, labels_x), (figure.update_yaxes, labels_y)):
        update(
            type="category",
            categoryorder="array",
            categoryarray=labels,
            range=[-0.5, len(labels) - 0.5],
            showgrid=False,
            ticks="",
        )
    figure.update_xaxes(tickangle=-90)
    figure.update_yaxes(title_text=axes.y.upper(), col=1)


def _panel(cells: Mapping[tuple[int, int], ShapeRow], xs: Sequence[int], ys: Sequence[int], large: bool) -> list[Any]:
    """A heatmap, and a point over each of its cells that can be hovered and clicked, which cells of a heatmap cannot be."""
    known = {place: row.speedup for place, row in cells.items() if row.speedup is not None}
    grid = [[math.log2(known[x, y]) if (x, y) in known else None for x in xs] for y in ys]
    figures = [[f"{known[x, y]:.2f}" if (x, y) in known else "" for x in xs] for y in ys]
    heatmap = go.Heatmap(
        x=[_size_label(x) for x in xs],
        y=[_size_label(y) for y in ys],
        z=grid,
        text=figures,
        texttemplate="%{text}" if large else None,
        coloraxis="coloraxis",
        hoverinfo="skip",
        xgap=1,
        ygap=1,
    )
    points = go.Scatter(
        x=[_size_label(x) for x, _ in cells],
        y=[_size_label(y) for _, y in cells],
        customdata=[row.shape for row in cells.values()],
        text=[_hover(row) for row in cells.values()],
        hovertemplate="%{text}<extra></extra>",
        mode="markers",
        marker={
            "symbol": ["square" if row.speedup is not None else "x" for row in cells.values()],
            "size": 26 if large else 11,
            "color": ["rgba(0, 0, 0, 0)" if row.speedup is not None else INK for row in cells.values()],
        },
        selected={"marker": {"opacity": 1}},
        unselected={"marker": {"opacity": 1}},
    )
    return [heatmap, points]


def _styled(figure: go.Figure, height_px: int) -> go.Figure:
    figure.update_layout(
        height=height_px,
        margin={"l": 56, "r": 12, "t": 36, "b": 48},
        paper_bgcolor="rgba(0, 0, 0, 0)",
        plot_bgcolor="rgba(0, 0, 0, 0)",
        font={"family": "system-ui, sans-serif", "size": 12, "color": INK},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0},
        hovermode="closest",
        dragmode=False,
    )
    figure.update_xaxes(gridcolor=GRID, zeroline=False, linecolor=GRID)
    figure.update_yaxes(gridcolor=GRID, zeroline=False, linecolor=GRID)
    return figure


def _ratio_axis(figure: go.Figure, ratios: Sequence[float], title: str) -> None:
    """A logarithmic axis of ratios with ticks that read as ratios."""
    ticks = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2, 3, 5, 10, 20, 50, 100)
    low, high = min([*ratios, 0.9]) / 1.05, max([*ratios, 1.1]) * 1.05
    shown = [tick for tick in ticks if low <= tick <= high]
    figure.update_yaxes(
        type="log",
        title_text=title,
        tickvals=shown,
        ticktext=[f"{tick:g}×" for tick in shown],
        range=[math.log10(low), math.log10(high)],
    )


def _hover(row: ShapeRow) -> str:
    head = f"<b>{row.shape}</b>"
    if row.speedup is None or row.launch_ns is None or row.baseline_ns is None:
        return f"{head}<br>{row.status}" + (f", {row.reason}" if row.reason else "")
    interval = f"{row.speedup:.3f} ({row.speedup_low:.3f}-{row.speedup_high:.3f})"
    times = f"{row.launch_ns / 1e3:.4g} µs, {row.baseline} {row.baseline_ns / 1e3:.4g} µs"
    return f"{head}<br>speedup {interval}<br>{times}<br>{row.regime.value.replace('_', ' ')}"


def _plain(text: str) -> str:
    """Text of others for a figure, which reads some HTML."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _sizes(rows: Sequence[ShapeRow], dimension: str) -> list[int]:
    return sorted({getattr(row, dimension) for row in rows})


def _size_label(size: int) -> str:
    """`16384` as `16k`, so that small panels have room for it; exact ones only."""
    return f"{size // 1024}k" if size >= 1024 and size % 1024 == 0 else str(size)


def _problem(row: ShapeRow) -> Problem:
    return Problem(m=row.m, n=row.n, k=row.k)


def _intensity(row: ShapeRow) -> float:
    problem = _problem(row)
    return problem.flops / problem.bytes_total
