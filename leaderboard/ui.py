"""Helpers of the app's pages: the board, cached queries, filters bound to the address, tables with downloads, empty states."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

import streamlit as st
from markupsafe import Markup
from streamlit.runtime.pages_manager import PagesManager

from harness.model import HgemmError, printable
from leaderboard.database import default_url
from leaderboard.links import FIELDS, AppLinks, field_value, preferred
from leaderboard.queries import ListSummary, RunSummary, lists, runs
from leaderboard.store import Board
from leaderboard.tables import Table

T = TypeVar("T")

LINKS = AppLinks()
ICON = ":material/download:"
PLOT = {"displaylogo": False, "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"]}

_boards: dict[str, Board] = {}
_opening = threading.Lock()


class Arrangement(NamedTuple):
    """How a visitor wants to see a table."""

    find: str
    columns: list[str]
    by: str
    """Title of the column that sorts it; the first one leaves the order as it is."""
    up: bool
    keys: tuple[str, ...]
    """Of its widgets, for the permalink."""

    def of(self, table: Table) -> Table:
        """The table as it is wanted."""
        if self.by != table.columns[0].title:
            table = table.sorted_by(self.by, descending=not self.up)
        return table.only(self.columns).matching(self.find)


def begin(title: str) -> None:
    """Head of a page; the title is not read as Markdown."""
    st.html(f"<style>{stylesheet()}</style>")
    st.header(literal(title), anchor=False)


def board() -> Board:
    """The board, opened once per server; a progress bar while shipped runs are new to it."""
    url = os.environ.get("HGEMM_DATABASE") or str(default_url())
    with _opening:
        if url not in _boards:
            place = st.empty()
            _boards[url] = Board.open(url, lambda done, total, what: _progress(place, done, total, what))
            place.empty()
    return _boards[url]


def ask(query: Callable[..., T], *arguments: Hashable) -> T:
    """What a query returns, remembered until the board changes. Its result must not be changed."""
    here = board()
    answer: T = _answer(here, here.revision(), query, arguments)
    return answer


def run(page: Callable[[], None]) -> None:
    """Run a page; an error of a user or of the machine is shown as its sentence."""
    if PagesManager.uses_pages_directory:
        # A fresh server takes the folder `pages` for its navigation and starts a page by itself, until the app names its pages.
        from leaderboard.app import main

        main()
        return
    try:
        page()
    except HgemmError as error:
        st.error(literal(str(error)))


def choose_list() -> ListSummary | None:
    """The list that the filters mean, in the sidebar and in the address; None, with an empty state, if there is none."""
    found = ask(lists)
    if not found:
        empty("The board is empty", "hgemm publish runs/NAME", "Publish a finished run, and its list appears here:")
        return None
    with st.sidebar:
        for field in FIELDS:
            found = _filter(found, field)
    return found[0]


def choose_run(key: str, label: str, place: int = 0) -> RunSummary | None:
    """A published run, in the address under `key`; None, with an empty state, if there is none.

    Args:
        key: parameter in the address.
        label: of the widget.
        place: which one is chosen at first, counted from the newest; the last if there are fewer.
    """
    found = {each.run: each for each in ask(runs)}
    if not found:
        empty("No run is published", "hgemm publish runs/NAME", "Publish a finished run, and it appears here:")
        return None
    chosen = st.selectbox(label, list(found), min(place, len(found) - 1), key=key, bind="query-params")
    return found[chosen or next(iter(found))]


def choose(label: str, options: Sequence[str], key: str, place: int = 0) -> str:
    """One of several, in the address under `key`. What was chosen before and is no option any more leaves the address too.

    Args:
        label: of the widget.
        options: at least one.
        key: parameter in the address.
        place: which one is chosen at first.
    """
    if key in st.session_state and st.session_state[key] not in options:
        # Streamlit itself falls back to the first choice, but leaves the old one in the address.
        st.session_state[key] = options[place]
    return st.selectbox(label, options, place, key=key, bind="query-params") or options[place]


def one_of(label: str, options: Sequence[str], key: str) -> str:
    """One of a few, in the address under `key`."""
    chosen = st.segmented_control(
        label, options, default=options[0], required=True, key=key, label_visibility="collapsed", bind="query-params"
    )
    return chosen or options[0]


def arrange(titles: Sequence[str], usual: Sequence[str] = (), prefix: str = "") -> Arrangement:
    """What to find, which columns and which order, in the sidebar and in the address.

    Args:
        titles: of the table's columns.
        usual: those shown at first; default all.
        prefix: of the parameters in the address, where a page has several tables.
    """
    keys = tuple(f"{prefix}{name}" for name in ("find", "columns", "sort", "up"))
    with st.sidebar:
        find = st.text_input("Find", key=keys[0], bind="query-params", placeholder="any text of a row")
    with st.sidebar.expander("Columns and order"):
        columns = st.multiselect("Columns", titles, list(usual or titles), key=keys[1], bind="query-params")
        by = st.selectbox("Sort by", titles, key=keys[2], bind="query-params") or titles[0]
        up = by != titles[0] and st.toggle("Lowest first", key=keys[3], bind="query-params")
    return Arrangement(find, columns, by, up, keys)


def show_table(table: Table, name: str, none: str = "Nothing to show.") -> None:
    """A table with downloads of exactly what it shows.

    Args:
        table: what to show.
        name: file name of the downloads, and label.
        none: said where it has no rows.
    """
    if not table.rows:
        note(none)
        return
    st.html(table.html(name.replace("-", " ")))
    with st.container(horizontal=True):
        for kind, data, mime in (("csv", table.csv(), "text/csv"), ("json", table.json(), "application/json")):
            st.download_button(
                kind.upper(), data, f"{name}.{kind}", mime, key=f"{name}-{kind}", on_click="ignore", type="tertiary", icon=ICON
            )


def show_figure(figure: Any, key: str, alt: str, wide: bool = False) -> str | None:
    """A chart; the shape or run of the point that was clicked. A wide one scrolls sideways on narrow screens."""
    with st.container(key=f"{'wide' if wide else 'chart'}-{key}"):
        event = st.plotly_chart(figure, key=key, on_select="rerun", selection_mode="points", config=PLOT, alt=alt)
    points = event["selection"]["points"]
    chosen = points[0].get("customdata") if points else None
    return str(chosen[0] if isinstance(chosen, list | tuple) else chosen) if chosen else None


def note(text: str | Markup) -> None:
    """A small remark; text is not read as HTML or Markdown, Markup is."""
    st.html(Markup('<p class="hg-note">{}</p>').format(text))


def permalink(parameters: Mapping[str, str], *widgets: str) -> None:
    """A link that names everything the view depends on, so that it means the same once the board has grown.

    Args:
        parameters: in the address.
        widgets: keys of widgets whose values are parameters too, where they have any.
    """
    chosen = {key: st.session_state[key] for key in widgets if st.session_state.get(key)}
    values = {key: "true" if value is True else value for key, value in chosen.items()}
    address = urlencode({**parameters, **values}, doseq=True)
    note(Markup('<a href="?{}">Permalink of this view</a>').format(address))


def empty(title: str, command: str, hint: str) -> None:
    """What to do where there is nothing yet."""
    st.subheader(title, anchor=False)
    st.write(hint)
    st.code(command, language="bash")


def literal(text: str) -> str:
    """Text of others for an element that reads Markdown."""
    return re.sub(r"([\\`*_{}\[\]()#+\-.!|<>~:$^&])", r"\\\1", printable(text))


def stylesheet() -> str:
    """CSS of tables."""
    return resources.files("leaderboard").joinpath("templates", "board.css").read_text(encoding="utf-8")


@lru_cache(maxsize=256)
def _answer(here: Board, revision: int, query: Callable[..., Any], arguments: tuple[Hashable, ...]) -> Any:
    return query(here, *arguments)


def _filter(found: Sequence[ListSummary], field: str) -> tuple[ListSummary, ...]:
    """Lists that a filter leaves; one that leaves no choice is not shown."""
    options = sorted({field_value(each, field) for each in found})
    if len(options) == 1:
        return tuple(found)
    start = options.index(preferred(found, field))
    chosen = choose(FIELDS[field], options, field, start)
    return tuple(each for each in found if field_value(each, field) == chosen)


def _progress(place: Any, done: int, total: int, what: str) -> None:
    place.progress(done / total if total else 1.0, text=f"Putting shipped runs on the board: {what}")
