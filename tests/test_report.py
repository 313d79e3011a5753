"""Reports: a run as one page, and the board as a site whose links lead somewhere and whose figures are the ranking's."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from boards import HOSTILE_AUTHOR, RECIPES, make_board
from runs import COLD, begin_run, make_run, measured
from typer.testing import CliRunner

from harness.cli import build_app
from harness.model import DataError
from harness.run import Run
from leaderboard import pictures, store
from leaderboard.database import Database
from leaderboard.export import Site, list_id, method_page
from leaderboard.links import NoLinks, parameters_of, parameters_of_run
from leaderboard.queries import choose_list, lists, ranking, run_details
from leaderboard.report import render, run_page
from leaderboard.run_content import RunContent
from leaderboard.store import Board


class Links(HTMLParser):
    """Addresses and identifiers of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.anchors: set[str] = set()
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.addresses.append(value)
            if name == "id" and value:
                self.anchors.add(value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A board, and its site."""
    folder = tmp_path_factory.mktemp("site")
    make_board(folder)
    with Board(Database.open(str(folder / "board.sqlite"))) as board:
        Site(board, folder / "site", lambda done, total, what: None).export()
    return folder


def test_content_of_a_directory_is_what_the_board_has(folder: Path) -> None:
    with Board(Database.open(str(folder / "board.sqlite"))) as board:
        for path in (folder / "runs").glob("*/"):
            mine, theirs = RunContent.of(Run.read(path)), RunContent.published(board, path.name)
            assert (mine.rows, mine.verifications, mine.files) == (theirs.rows, theirs.verifications, theirs.files)
            if mine.details.summary.verified == mine.details.summary.shapes:
                assert sorted(map(str, mine.scores)) == sorted(map(str, theirs.scores))
            own = mine.details.summary._replace(published_utc=theirs.details.summary.published_utc)
            assert own == theirs.details.summary
            assert mine.details.end_sha256 == theirs.details.end_sha256


def test_a_page_of_a_run_stands_alone(tmp_path: Path) -> None:
    content = RunContent.of(Run.read(make_run(tmp_path, RECIPES["fast"])))
    page = Links(text := render(run_page(content, NoLinks())))
    assert page.addresses == []
    assert "Plotly.newPlot" in text
    assert "8/8 of custom" in text
    score = next(line for line in content.scores if line.baseline == "best" and line.regime is None)
    assert score.geomean is not None
    assert f">{score.geomean.value:.4f}</td>" in text


def test_a_page_of_an_unfinished_run_shows_what_there_is(tmp_path: Path) -> None:
    import random

    recipe = RECIPES["fast"]
    run = begin_run(tmp_path, recipe)
    run.append(*measured(run, recipe, recipe.problems[0], random.Random(1)))
    run.close()
    text = render(run_page(RunContent.of(Run.read(run.path)), NoLinks()))
    assert "1/8 of custom" in text
    assert "to not ended" in text


def test_what_is_rejected_is_shown_with_its_reason(tmp_path: Path) -> None:
    text = render(run_page(RunContent.of(Run.read(make_run(tmp_path, RECIPES["wrong"]))), NoLinks()))
    assert "Not verified" in text
    assert "<td>rejected</td><td>wrong_result</td>" in text


def test_every_link_of_the_site_leads_to_a_page(folder: Path) -> None:
    site = folder / "site"
    seen = 0
    for path in site.rglob("*.html"):
        page = Links(path.read_text(encoding="utf-8"))
        for address in page.addresses:
            parts = urlsplit(address)
            assert not parts.scheme, (path, address)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.is_file(), (path, address)
            if parts.fragment:
                assert parts.fragment in page.anchors, (path, address)
            seen += 1
    assert seen > 200
    with Board(Database.open(str(folder / "board.sqlite"))) as board:
        for patterns in re.findall(r'data-links="([^"]*\*[^"]*)"', (site / "index.html").read_text(encoding="utf-8")):
            for entry in ranking(board, choose_list(board)).ranked:
                assert (site / patterns.replace("*", entry.runs[0].run)).is_file()


def test_lists_and_downloads_of_the_site_are_the_ranking(folder: Path) -> None:
    with Board(Database.open(str(folder / "board.sqlite"))) as board:
        for summary in lists(board):
            found, name = ranking(board, summary.key), list_id(summary)
            data = (folder / "site/data" / f"ranking-{name}.csv").read_text(encoding="utf-8")
            rows = list(csv.DictReader(io.StringIO(data)))
            assert [row["submission"] for row in rows] == [entry.name for entry in found.ranked]
            for row, entry in zip(rows, found.ranked, strict=True):
                assert entry.geomean is not None
                assert (float(row["geomean"]), row["rank"]) == (entry.geomean.value, str(entry.rank))
            assert len(json.loads((folder / "site/data" / f"ranking-{name}.json").read_text())) == len(rows)
            page = (folder / "site/lists" / f"{name}.html").read_text(encoding="utf-8")
            for entry in (*found.ranked, *found.apart):
                assert entry.name in page
                assert entry.standing.value.replace("_", " ") in page or entry.rank is not None


def test_text_of_others_is_neither_html_nor_formula(folder: Path) -> None:
    for path in (folder / "site").rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert "<script>window" not in text
        assert "img" not in Links(text).tags
    for path in (folder / "site/data").glob("*.csv"):
        for row in csv.reader(io.StringIO(path.read_text(encoding="utf-8"))):
            assert not any(cell.startswith(("=", "+", "@")) for cell in row)
    everything = "".join(path.read_text(encoding="utf-8") for path in (folder / "site/data").glob("ranking-*.json"))
    assert json.dumps(HOSTILE_AUTHOR)[1:-1].replace("<", "\\u003c") in everything


def test_exporting_again_replaces_and_removes(folder: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with Board(Database.open(str(tmp_path / "empty.sqlite"))) as board:
        shutil.copytree(folder / "site", site)
        assert Site(board, site, lambda done, total, what: None).export() == 3
    assert {path.name for path in site.rglob("*.html")} == {"index.html", "method.html", "published.html"}
    assert "hgemm publish runs/NAME" in (site / "index.html").read_text(encoding="utf-8")


def test_a_folder_with_something_else_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.html").write_text("precious")
    with (
        Board(Database.open(str(folder / "board.sqlite"))) as board,
        pytest.raises(DataError, match="choose another directory"),
    ):
        Site(board, tmp_path, lambda done, total, what: None).export()
    assert (tmp_path / "thesis.html").read_text() == "precious"


def test_parameters_of_a_run_name_its_list(folder: Path) -> None:
    with Board(Database.open(str(folder / "board.sqlite"))) as board:
        named = [parameters_of(each) for each in lists(board)]
        for path in (folder / "runs").glob("*/"):
            details = run_details(board, path.name)
            for measure in details.header.protocol.measures:
                assert parameters_of_run(details, measure, "best") in named


def test_the_method_page_has_the_anchors_that_it_links_to() -> None:
    page = Links(render(method_page()))
    wanted = {address[1:] for address in page.addresses if address.startswith("#")}
    assert len(wanted) > 10
    assert wanted <= page.anchors


def test_report_command_writes_html_and_says_why_no_png(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pictures, "BROWSERS", ())
    run = make_run(tmp_path, RECIPES["fast"])
    result = CliRunner().invoke(build_app("report"), ["report", str(run), "--output", str(tmp_path / "out")])
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path / 'out' / 'report.html'}\n")
    assert "no PNG" in result.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]


@pytest.mark.chromium
def test_report_command_draws_its_charts(tmp_path: Path) -> None:
    run = make_run(tmp_path, RECIPES["fast"])
    result = CliRunner().invoke(build_app("report"), ["report", str(run), "--output", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    for name in ("heatmap", "speedup", "roofline"):
        picture = (tmp_path / "out" / f"{name}.png").read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert len(picture) > 10_000


def test_export_command(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "shipped", list)
    options = ["--database", str(folder / "board.sqlite")]
    result = CliRunner().invoke(build_app("board"), ["board", "export", str(tmp_path / "site"), *options])
    assert result.exit_code == 0, result.output
    exported = {path.relative_to(tmp_path) for path in (tmp_path / "site").rglob("*")}
    assert exported == {path.relative_to(folder) for path in (folder / "site").rglob("*")}


def test_measure_of_the_page_is_the_first(tmp_path: Path) -> None:
    content = RunContent.of(Run.read(make_run(tmp_path, RECIPES["fast"])))
    assert f"Speedup, {COLD}, against the best baseline" in [section.title for section in run_page(content, NoLinks()).sections]
