"""Submission: everything about one run of a submission."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from harness.model import printable
from harness.profiles import load_profile
from harness.record import Measure
from harness.scores import BEST
from leaderboard import ui
from leaderboard.charts import panel_values, roofline, speedup_against_roof, speedup_heatmap
from leaderboard.documents import archive
from leaderboard.links import parameters_of_run
from leaderboard.queries import RunDetails, ScoreLine, run_details, run_scores, submission_files
from leaderboard.sentences import command_line, describe_run, describe_verification, run_badges
from leaderboard.shape_queries import ShapeRow, shape_rows, verifications
from leaderboard.tables import badges
from leaderboard.views import (
    manifest_table,
    provenance_table,
    score_table,
    shape_table,
    verification_table,
    worst_rows,
)

VIEWS = ("Overview", "Heatmap", "Roofline", "Shapes", "Source", "Verification", "Provenance")
ALL = "all"
ARRANGED = [f"{view}_{key}" for view in ("shapes", "verified") for key in ("find", "columns", "sort", "up")]
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".md": "markdown", ".c": "c", ".ptx": "asm"}


def render() -> None:
    """The page."""
    with st.sidebar:
        chosen = ui.choose_run("run", "Run")
    if chosen is None:
        return
    ui.begin(f"{chosen.name} {chosen.version}")
    details = ui.ask(run_details, chosen.run)
    scores = ui.ask(run_scores, chosen.run)
    if chosen.verdict is not None:
        st.warning(ui.literal(f"{chosen.verdict.value}: {chosen.verdict_reason}"))
    ui.note(badges(run_badges(details)))
    ui.note(describe_run(details, scores))
    ui.note(printable(details.description))
    view = ui.one_of("View", VIEWS, "view")
    if view == "Overview":
        _overview(details, scores)
    elif view == "Source":
        _source(details)
    elif view == "Verification":
        _verification(chosen.run)
    elif view == "Provenance":
        _provenance(details)
    else:
        _figures(details, view)
    ui.permalink({"run": chosen.run, "view": view}, "measure", "against", "panel", "only", "file", *ARRANGED)


def _overview(details: RunDetails, scores: tuple[ScoreLine, ...]) -> None:
    run = details.summary.run
    ui.show_table(manifest_table(details), "manifest")
    if details.because:
        ui.note(f"Does not rank: {details.because}")
    st.subheader("Scores", anchor=False)
    ui.show_table(score_table([line for line in scores if line.regime is None]), "scores")
    st.subheader("By regime, against the best baseline", anchor=False)
    ui.show_table(score_table([line for line in scores if line.regime is not None and line.baseline == BEST]), "regimes")
    st.subheader("Slowest against the best baseline", anchor=False)
    measure = details.header.protocol.measures[0]
    rows = worst_rows(ui.ask(shape_rows, run, measure, BEST))
    ui.show_table(shape_table(rows, ui.LINKS, _parameters(details, measure, BEST)), "worst-shapes")


def _verification(run: str) -> None:
    rows = ui.ask(verifications, run)
    ui.note(describe_verification(rows))
    table = verification_table(rows)
    view = ui.arrange([column.title for column in table.columns], prefix="verified_")
    ui.show_table(view.of(table), "verification")


def _parameters(details: RunDetails, measure: Measure, baseline: str) -> dict[str, str]:
    """Of a shape's page, with this run's samples."""
    return {**parameters_of_run(details, measure, baseline), "of": details.summary.run}


def _figures(details: RunDetails, view: str) -> None:
    measure, baseline = _measure(details)
    rows = ui.ask(shape_rows, details.summary.run, measure, baseline)
    profile = load_profile(details.header.device.profile)
    parameters = _parameters(details, measure, baseline)
    clicked = None
    if view == "Heatmap":
        clicked = _heatmap(rows)
    elif view == "Roofline":
        st.subheader("Speedup by how much there is to do", anchor=False)
        clicked = ui.show_figure(speedup_against_roof(rows, profile), "roof", "Speedup against speed-of-light time")
        st.subheader("Roofline", anchor=False)
        clicked = ui.show_figure(roofline(rows, profile), "roofline", "Roofline of submission and baseline") or clicked
    else:
        table = shape_table(rows, ui.LINKS, parameters)
        wanted = ui.arrange([column.title for column in table.columns], prefix="shapes_")
        ui.show_table(wanted.of(table), "shapes")
    if clicked:
        st.switch_page("pages/shape.py", query_params={"shape": clicked, **parameters})


def _heatmap(rows: tuple[ShapeRow, ...]) -> str | None:
    with st.sidebar:
        panel = ui.choose("One panel per", ("k", "m", "n"), "panel")
        values = [ALL, *map(str, panel_values(rows, panel))]
        only = ui.choose(panel.upper(), values, "only")
    ui.note("Blue is faster than the baseline, orange slower. Click a cell for its shape.")
    figure = speedup_heatmap(rows, panel, None if only == ALL else int(only))
    return ui.show_figure(figure, f"heatmap-{panel}-{only}", "Heatmap of speedups", wide=True)


def _measure(details: RunDetails) -> tuple[Measure, str]:
    measures = {str(each): each for each in details.header.protocol.measures}
    with st.sidebar:
        measure = ui.choose("Measure", list(measures), "measure")
        baseline = ui.choose("Baseline", (BEST, *details.header.protocol.baselines), "against")
    return measures[measure], baseline


def _source(details: RunDetails) -> None:
    files = {file.name: file for file in ui.ask(submission_files, details.summary.tree_sha256)}
    name = ui.choose("File", sorted(files), "file")
    file, suffix = files[name], Path(name).suffix
    if suffix == ".cubin":
        ui.note(f"{name} is binary, {file.size_bytes} bytes; its source lies beside it.")
    else:
        st.code(file.content.decode("utf-8", "replace"), language=LANGUAGES.get(suffix, "cpp"), line_numbers=True)
    folder = details.summary.name
    downloads = (
        ("This file", file.content, Path(name).name, "application/octet-stream"),
        ("All files", archive(folder, files.values()), f"{folder}.zip", "application/zip"),
    )
    with st.container(horizontal=True):
        for label, content, target, mime in downloads:
            st.download_button(label, content, target, mime, on_click="ignore", icon=ui.ICON)


def _provenance(details: RunDetails) -> None:
    st.code(command_line(details.header.command), language="bash")
    ui.show_table(provenance_table(details), "provenance")


ui.run(render)
