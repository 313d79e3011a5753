"""Ranking: one list, what is apart from it, and why."""

from __future__ import annotations

import streamlit as st

from leaderboard import ui
from leaderboard.links import parameters_of
from leaderboard.queries import ranking
from leaderboard.sentences import HOW_TO_READ, describe_list, describe_unmeasured
from leaderboard.unmeasured import unmeasured
from leaderboard.views import apart_table, ranking_table

# Columns that are not shown until they are chosen. A comment, since Streamlit shows strings that stand alone.
HIDDEN = {"latency", "skinny", "output bound", "compute", "last run"}


def render() -> None:
    """The page."""
    ui.begin("Ranking")
    chosen = ui.choose_list()
    if chosen is None:
        return
    found = ui.ask(ranking, chosen.key)
    ui.note(describe_list(chosen))
    missing = ui.ask(unmeasured, chosen.key)
    if missing:
        ui.note(describe_unmeasured(missing))
    ui.note(HOW_TO_READ)
    table = ranking_table(found, ui.LINKS)
    titles = [column.title for column in table.columns]
    view = ui.arrange(titles, [title for title in titles if title not in HIDDEN])
    ui.show_table(view.of(table), "ranking", "Nothing ranks here.")
    if found.apart:
        st.subheader("Not ranked", anchor=False)
        apart = apart_table(found, ui.LINKS).only(["standing", "because", *view.columns]).matching(view.find)
        ui.show_table(apart, "not-ranked")
    ui.permalink(parameters_of(chosen), *view.keys)


ui.run(render)
