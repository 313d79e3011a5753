"""Compare: two runs, what differs around them first, then per shape."""

from __future__ import annotations

import streamlit as st

from leaderboard import ui
from leaderboard.comparing import compared, forbidding_fields
from leaderboard.links import parameters_of_run
from leaderboard.queries import run_details
from leaderboard.sentences import describe_measure
from leaderboard.views import comparison_table, difference_table


def render() -> None:
    """The page."""
    ui.begin("Compare")
    left, right = st.columns(2)
    with left:
        a = ui.choose_run("a", "A")
    if a is None:
        return
    with right:
        b = ui.choose_run("b", "B", 1)
    assert b is not None
    if a.run == b.run:
        ui.note("A and B are the same run; choose another for B, or publish a second one: hgemm publish runs/NAME")
    else:
        _compare(a.run, b.run)
    ui.permalink({"a": a.run, "b": b.run}, "force")


def _compare(a: str, b: str) -> None:
    st.subheader("Around the two", anchor=False)
    forbidding = ui.ask(forbidding_fields, a, b)
    force = False
    if forbidding:
        st.warning(f"Times of these two do not mean the same: {', '.join(forbidding)} differ.")
        force = st.toggle("Compare all the same", key="force", bind="query-params")
        if not force:
            return
    with st.spinner("Testing every shape on raw samples"):
        found = ui.ask(compared, a, b, force)
    ui.show_table(difference_table(found), "differences", "Nothing around the two differs.")
    details = ui.ask(run_details, b)
    for measure in found.measures:
        st.subheader(str(measure.measure), anchor=False)
        ui.note(describe_measure(measure, found.false_discovery_rate))
        parameters = parameters_of_run(details, measure.measure, "best")
        ui.show_table(comparison_table(measure, ui.LINKS, parameters), f"compare-{measure.measure}".replace("/", "-"))


ui.run(render)
