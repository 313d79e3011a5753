"""Ranking: one list, what is apart from it, and why."""

from __future__ import annotations

import streamlit as st

from leaderboard import ui
from leaderboard.links import parameters_of
from leaderboard.queries import ranking
from leaderboard.sentences import describe_list
from leaderboard.views import apart_table, ranking_table

# Columns that are not shown until they are chosen. A comment, since Streamlit shows strings that stand alone.
HIDDEN = {"latency", "skinny", "output bound", "compute", "protocol", "last run"}


def render() -> None:
    """The page."""
    ui.begin("Ranking")
    chosen = ui.choose_list()
    if chosen is None:
        return
    found = ui.ask(ranking, chosen.key)
    ui.note(describe_list(chosen))
    table = ranking_table(found, ui.LINKS)
    titles = [column.title for column in table.columns]
    with st.sidebar:
        find = st.text_input("Find", key="find", bind="query-params", placeholder="name, author, version")
    usual = [title for title in titles if title not in HIDDEN]
    with st.sidebar.expander("Columns and order"):
        columns = st.multiselect("Columns", titles, usual, key="columns", bind="query-params")
        by = st.selectbox("Sort by", titles, key="sort", bind="query-params") or "rank"
        up = by != "rank" and st.toggle("Lowest first", key="up", bind="query-params")
    if by != "rank":
        table = table.sorted_by(by, descending=not up)
    ui.show_table(table.only(columns).matching(find), "ranking", "Nothing ranks here.")
    if found.apart:
        st.subheader("Not ranked", anchor=False)
        ui.show_table(apart_table(found, ui.LINKS).only(["standing", "because", *columns]).matching(find), "not-ranked")
    ui.permalink(parameters_of(chosen), "find", "columns", "sort", "up")


ui.run(render)
