"""Export: the board as a static site, for a web server that only hands out files, such as GitHub Pages.

index.html              the usual list
lists/ID.html           every list, with its history
runs/NAME.html          every run
shapes/ID/MxNxK.html    every shape of every list, whatever the baseline
method.html published.html
data/                   CSV and JSON of the tables
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from markdown_it import MarkdownIt
from markupsafe import Markup

from harness.model import DataError
from harness.problem import Problem
from harness.profiles import load_profile
from harness.scores import BEST
from leaderboard.charts import history_chart
from leaderboard.documents import protocol_text
from leaderboard.links import parameters_of, parameters_of_run
from leaderboard.published import headline
from leaderboard.queries import ListSummary, choose_list, history, lists, ranking, run_details, runs
from leaderboard.report import Downloads, Page, Section, figure_html, plotly_source, render, run_page, table_section, write
from leaderboard.run_content import RunContent
from leaderboard.sentences import HOW_TO_READ, NOT_MEASURED, describe_list, describe_shape
from leaderboard.shape_queries import at_shape
from leaderboard.store import Board, Progress
from leaderboard.tables import Column, Row, Table
from leaderboard.views import apart_table, contender_table, headline_table, history_table, ranking_table

NAV = (("Ranking", "index.html"), ("Method", "method.html"), ("Published", "published.html"))
MARKER = "plotly.min.js"
"""File of a site by which an export recognises a folder that it may write over."""


class StaticLinks(NamedTuple):
    """Addresses within the site."""

    root: str
    """The site's root as seen from the page."""

    def submission(self, run: str) -> str:
        """Page of a run."""
        return f"{self.root}runs/{quote(run)}.html"

    def shape(self, shape: str, parameters: Mapping[str, str]) -> str:
        """Page of a shape."""
        return f"{self.root}shapes/{measured_id(parameters)}/{quote(shape)}.html"


class Site:
    """A site that is being written."""

    def __init__(self, board: Board, directory: Path, progress: Progress) -> None:
        """A site in a folder that is new, empty or holds an earlier export.

        Raises:
            DataError: it holds something else.
        """
        if directory.is_dir() and any(directory.iterdir()) and not (directory / MARKER).is_file():
            raise DataError(f"{directory} is not empty and holds no exported board; choose another directory.")
        self.board = board
        self.directory = directory
        self.progress = progress
        self.written: set[Path] = set()

    def export(self) -> int:
        """Write every page; returns how many. Pages of an earlier export that are not on the board any more are removed."""
        self._write(Path(MARKER), plotly_source())
        found = lists(self.board)
        usual = choose_list(self.board) if found else None
        for number, summary in enumerate(found):
            self.progress(number, len(found), describe_list(summary))
            self._page(f"lists/{list_id(summary)}.html", self._list_page(summary, "../"))
            if summary.key == usual:
                self._page("index.html", self._list_page(summary, ""))
        if not found:
            self._page("index.html", Page("Ranking", (), ("The board is empty; publish a run with: hgemm publish runs/NAME",)))
        for run in runs(self.board):
            self.progress(len(self.written), 0, run.run)
            self._run(run.run)
        self._shapes(found)
        self._page("method.html", method_page())
        self._page("published.html", published_page())
        for path in set(self.directory.rglob("*")) - self.written:
            if path.suffix in {".html", ".csv", ".json"}:
                path.unlink()
        return sum(path.suffix == ".html" for path in self.written)

    def _list_page(self, summary: ListSummary, root: str) -> Page:
        """A list, what is apart from it, its history, and the other lists."""
        found, points, links = ranking(self.board, summary.key), history(self.board, summary.key), StaticLinks(root)
        name = list_id(summary)
        ranked, apart, past = ranking_table(found, links), apart_table(found, links), history_table(points, links)
        sections = [table_section("", ranked, self._downloads(ranked, f"ranking-{name}"))]
        if found.apart:
            sections.append(table_section("Not ranked", apart, self._downloads(apart, f"not-ranked-{name}")))
        sections.append(Section("History", figure=figure_html(history_chart(points)), figure_links=f"{root}runs/*.html"))
        sections.append(table_section("", past, self._downloads(past, f"history-{name}")))
        sections.append(table_section("Lists", lists_table(lists(self.board), root)))
        return Page("Ranking", tuple(sections), (describe_list(summary), HOW_TO_READ))

    def _run(self, run: str) -> None:
        content = RunContent.published(self.board, run)
        measures = content.details.header.protocol.measures
        shape_links = ""
        if measures:
            parameters = parameters_of_run(content.details, measures[0], BEST)
            shape_links = f"../shapes/{measured_id(parameters)}/*.html"
        self._page(f"runs/{run}.html", run_page(content, StaticLinks("../"), shape_links))

    def _shapes(self, found: tuple[ListSummary, ...]) -> None:
        """Shapes of every list; lists that differ in the baseline alone share them."""
        distinct = {measured_id(parameters_of(each)): each for each in found if each.key.baseline == BEST}
        for name, summary in distinct.items():
            shown = ranking(self.board, summary.key)
            header = run_details(self.board, [*shown.ranked, *shown.apart][0].runs[0].run).header
            for number, problem in enumerate(header.problems):
                self.progress(number, len(header.problems), str(problem))
                self._page(f"shapes/{name}/{problem}.html", self._shape_page(summary, problem))

    def _shape_page(self, summary: ListSummary, problem: Problem) -> Page:
        rows = at_shape(self.board, summary.key, str(problem))
        table = contender_table(rows, StaticLinks("../../"), summary.key, str(problem))
        notes = (describe_shape(problem, load_profile(summary.key.device)), describe_list(summary))
        nothing = () if rows else (f"No run on this list verified {problem} in this measure.",)
        return Page(str(problem), (table_section("", table),), (*notes, *nothing))

    def _downloads(self, table: Table, name: str) -> Downloads:
        for suffix, text in (("csv", table.csv()), ("json", table.json())):
            self._write(Path("data") / f"{name}.{suffix}", text)
        return (("CSV", f"data/{name}.csv"), ("JSON", f"data/{name}.json"))

    def _page(self, name: str, page: Page) -> None:
        self._write(Path(name), render(page, "../" * name.count("/"), NAV))

    def _write(self, name: Path, text: str) -> None:
        write(self.directory / name, text)
        self.written.add(self.directory / name)


def method_page() -> Page:
    """docs/protocol.md."""
    html = MarkdownIt("commonmark", {"html": False}).enable("table").render(protocol_text())
    html = re.sub(r"<h(\d)>(.*?)</h\1>", lambda found: f'<h{found[1]} id="{_slug(found[2])}">{found[2]}</h{found[1]}>', html)
    return Page("Method", (Section(html=Markup('<div class="document">{}</div>').format(Markup(html))),))


def published_page() -> Page:
    """What others report."""
    sections = [table_section(each.title, headline_table(each), (), (each.provenance,)) for each in headline()]
    return Page("Published", tuple(sections), (NOT_MEASURED,))


def lists_table(found: tuple[ListSummary, ...], root: str) -> Table:
    """Every list of the board."""
    columns = (
        Column("list", "list", link=lambda row: f"{root}lists/{row['id']}.html", prose=True),
        Column("runs", "runs"),
        Column("latest_utc", "latest run"),
    )
    rows: Iterator[Row] = (
        {"list": describe_list(each), "id": list_id(each), "runs": each.runs, "latest_utc": each.latest_utc} for each in found
    )
    return Table(columns, tuple(rows))


def list_id(summary: ListSummary) -> str:
    """Names a list in file names."""
    return summary.key.sha256()[:12]


def measured_id(parameters: Mapping[str, str]) -> str:
    """Names in file names what lists of different baselines share."""
    text = "&".join(f"{name}={value}" for name, value in sorted(parameters.items()) if name != "baseline")
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _slug(heading: str) -> str:
    """A heading's anchor as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", re.sub(r"<[^>]*>", "", heading).lower()).replace(" ", "-")
