"""Published: figures that others report and nobody here measured. Never ranked."""

from __future__ import annotations

import streamlit as st

from leaderboard import ui
from leaderboard.published import headline, imported
from leaderboard.sentences import NOT_MEASURED
from leaderboard.views import headline_table, reported_table


def render() -> None:
    """The page."""
    ui.begin("Published")
    ui.note(NOT_MEASURED)
    for source in headline():
        st.subheader(source.title, anchor=False)
        ui.note(source.provenance)
        ui.show_table(headline_table(source), f"published-{source.name}")
    tables = {each.title: each for each in imported()}
    st.subheader("Per shape", anchor=False)
    if not tables:
        ui.note("Import a table of speedups per shape, and it appears here:")
        st.code("hgemm import published TABLE.csv", language="bash")
        return
    name = ui.choose("Table", list(tables), "table")
    ui.note(f"Reported: {tables[name].about.source}")
    ui.show_table(reported_table(tables[name]), "reported")


ui.run(render)
