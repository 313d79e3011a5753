"""Shape: who is fastest at one shape, against all baselines and the speed of light."""

from __future__ import annotations

import streamlit as st

from harness.model import DataError
from harness.problem import Problem
from harness.profiles import load_profile
from harness.record import SUBMISSION, Measure
from leaderboard import ui
from leaderboard.charts import latency_cdf
from leaderboard.links import parameters_of
from leaderboard.samples import samples_at
from leaderboard.sentences import describe_list, describe_shape
from leaderboard.shape_queries import ContenderRow, at_shape, shape_details, usual_shape
from leaderboard.views import contender_table


def render() -> None:
    """The page."""
    ui.begin("Shape")
    chosen = ui.choose_list()
    if chosen is None:
        return
    key = chosen.key
    wanted = st.text_input("Shape, as MxNxK", ui.ask(usual_shape, key), key="shape", bind="query-params")
    shape = str(Problem.parse(wanted))
    ui.note(describe_list(chosen))
    rows = ui.ask(at_shape, key, shape)
    ui.note(describe_shape(Problem.parse(shape, key.track), load_profile(key.device)))
    if rows:
        every = st.toggle("Baselines of every run", key="every", bind="query-params") if chosen.runs > 1 else False
        ui.show_table(contender_table(rows, ui.LINKS, key, shape, every), f"shape-{shape}")
        _samples(rows, shape, Measure(mode=key.mode, l2_state=key.l2_state))
    else:
        ui.note(f"No run on this list verified {shape} in this measure.")
    ui.permalink({"shape": shape, **parameters_of(chosen)}, "of", "every")


def _samples(rows: tuple[ContenderRow, ...], shape: str, measure: Measure) -> None:
    st.subheader("Raw samples", anchor=False)
    names = [row.run for row in rows if row.contender == SUBMISSION]
    run = ui.choose("Of the run", names, "of")
    details = ui.ask(shape_details, run, shape)
    try:
        samples = ui.ask(samples_at, run, shape, measure)
    except DataError as error:
        ui.note(str(error))
        return
    ui.show_figure(latency_cdf(samples.launch_ns), f"cdf-{run}-{shape}", "Cumulative distribution of raw samples")
    count = len(samples.launch_ns[SUBMISSION])
    ui.note(f"{count} scoring windows per contender, attempt {details.attempt}, segment {details.segment}.")
    if samples.latency_ns:
        ui.note("Latency of requests, from scheduled arrival to completion:")
        figure = latency_cdf(samples.latency_ns)
        ui.show_figure(figure, f"latency-{run}-{shape}", "Cumulative distribution of request latency")


ui.run(render)
