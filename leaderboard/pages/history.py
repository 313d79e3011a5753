"""History: every run on a list over time, superseded ones marked."""

from __future__ import annotations

import streamlit as st

from leaderboard import ui
from leaderboard.charts import history_chart
from leaderboard.links import parameters_of
from leaderboard.queries import history
from leaderboard.sentences import describe_list
from leaderboard.views import history_table


def render() -> None:
    """The page."""
    ui.begin("History")
    chosen = ui.choose_list()
    if chosen is None:
        return
    points = ui.ask(history, chosen.key)
    ui.note(describe_list(chosen))
    authors = sorted({point.author for point in points})
    with st.sidebar:
        wanted = st.multiselect("Authors", authors, key="authors", bind="query-params", placeholder="all")
    shown = [point for point in points if not wanted or point.author in wanted]
    clicked = ui.show_figure(history_chart(shown), "history", "Score of every run over time")
    if clicked:
        st.switch_page("pages/submission.py", query_params={"run": clicked})
    ui.show_table(history_table(shown, ui.LINKS), "history")
    ui.permalink(parameters_of(chosen), "authors")


ui.run(render)
