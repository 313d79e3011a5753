"""The app in a real browser: addresses, clicks, downloads, and text that must not be executed."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest
from boards import HOSTILE_AUTHOR, HOSTILE_TEXT
from browsers import FLAGS, Server, chromium
from sqlalchemy import update

from leaderboard.database import Database
from leaderboard.journal import JOURNAL
from leaderboard.models import BoardState
from leaderboard.queries import choose_list, ranking, runs
from leaderboard.store import Board, shipped

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

pytestmark = pytest.mark.chromium

one_database = pytest.mark.parametrize("new_url", ["sqlite"], indirect=True)
"""Of tests of what a browser makes of a page, whatever database it comes from."""

LINK = "text=Permalink of this view"
ON_VIEW = {
    "Overview": 'table[aria-label="manifest"]',
    "Heatmap": ".js-plotly-plot",
    "Shapes": 'table[aria-label="shapes"]',
    "Source": "code",
    "Provenance": 'table[aria-label="provenance"]',
}
"""Found on one view of the Submission page alone."""


@pytest.fixture(scope="module")
def context() -> Iterator[BrowserContext]:
    """One for all tests, which find the app's scripts in its cache as a second visitor of the same browser does."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        context = browser.new_context(viewport={"width": 1280, "height": 1000}, accept_downloads=True)
        context.set_default_timeout(30_000)
        yield context
        browser.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    page = context.new_page()
    yield page
    page.close()


@pytest.fixture(scope="module")
def app(full_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the app on that board."""
    with serving(full_url, tmp_path_factory.mktemp("app")) as server:
        yield server.url


def serving(url: str, folder: Path) -> Server:
    """The app on what a database holds alone: what is shipped counts as published there already."""
    digest = hashlib.sha256(b"".join((each / JOURNAL).read_bytes() for each in shipped())).hexdigest()
    with Board(Database.open(url)) as board, board.database.writing() as session:
        session.execute(update(BoardState).values(shipped_sha256=digest))
    return Server(url, folder / "cache")


def run_named(board: Board, name: str) -> str:
    return runs(board, name=name)[0].run


def settled(page: Page) -> None:
    """Wait until the page shows what its address means, whole."""
    page.wait_for_selector(LINK)
    page.wait_for_selector('[data-testid="stApp"][data-test-script-state="notRunning"]')


def rows_of(page: Page, label: str) -> list[list[str]]:
    """A table as the browser shows it."""
    table = page.locator(f'table[aria-label="{label}"]')
    table.wait_for()
    return [row.locator("th,td").all_inner_texts() for row in table.locator("tr").all()]


def query_of(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def choose(page: Page, label: str, option: str) -> None:
    page.get_by_role("combobox", name=label).click()
    page.get_by_role("option", name=option, exact=True).click()


def turn_to(page: Page, view: str) -> None:
    """Another view of the Submission page, until what it is about is there."""
    page.get_by_role("radio", name=view, exact=True).click()
    page.wait_for_selector(ON_VIEW[view])
    settled(page)


def test_a_filter_is_in_the_address_and_the_address_restores_it(page: Page, app: str) -> None:
    page.goto(app)
    settled(page)
    choose(page, "L2 cache", "warm")
    page.get_by_text("offline/warm, against best").wait_for()
    settled(page)
    assert query_of(page) == {"l2_state": ["warm"]}
    before = rows_of(page, "ranking")
    page.goto(page.url)
    page.get_by_text("offline/warm, against best").wait_for()
    settled(page)
    assert rows_of(page, "ranking") == before


def test_the_permalink_names_everything_and_leads_to_the_same_view(page: Page, app: str) -> None:
    page.goto(f"{app}/?l2_state=warm&baseline=cublas")
    page.get_by_text("offline/warm, against cublas").wait_for()
    settled(page)
    before = rows_of(page, "ranking")
    address = page.locator(LINK).get_attribute("href")
    assert address
    assert set(parse_qs(address[1:])) >= {
        "device",
        "track",
        "mode",
        "l2_state",
        "baseline",
        "kind",
        "shapes",
        "protocol",
        "driver",
    }
    page.locator(LINK).click()
    page.wait_for_load_state()
    page.get_by_text("offline/warm, against cublas").wait_for()
    settled(page)
    assert rows_of(page, "ranking") == before


def test_a_click_on_the_heatmap_leads_to_the_shape(page: Page, app: str, full_board: Board) -> None:
    page.goto(f"{app}/submission?run={run_named(full_board, 'fast')}&view=Heatmap&only=128")
    settled(page)
    plot = page.locator(".stPlotlyChart .nsewdrag").first
    plot.wait_for()
    box = plot.bounding_box()
    assert box
    # Two columns (N) and two rows (M) of cells; this is the one with the larger M and the smaller N.
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + box["height"] * 0.25)
    page.wait_for_selector(".hoverlayer .hovertext")
    page.mouse.click(box["x"] + box["width"] * 0.25, box["y"] + box["height"] * 0.25)
    page.wait_for_url("**/shape?*")
    assert query_of(page)["shape"] == ["128x64x128"]
    assert "fast 1.0.0" in [row[0] for row in rows_of(page, "shape 128x64x128")]
    page.get_by_role("link", name="fast 1.0.0").first.click()
    page.wait_for_url("**/submission?*")
    assert query_of(page)["run"] == [run_named(full_board, "fast")]


def test_compare_of_two_submissions(page: Page, app: str, full_board: Board) -> None:
    page.goto(f"{app}/compare?a={run_named(full_board, 'fast')}&b={run_named(full_board, 'slow')}")
    settled(page)
    differs = {row[0]: row[3] for row in rows_of(page, "differences")[1:]}
    assert "device.uuid" in differs
    table = rows_of(page, "compare offline cold")
    verdict = {row[0]: row[table[0].index("verdict")] for row in table[1:]}
    assert (verdict["64x64x64"], verdict["128x64x128"]) == ("A is faster", "B is faster")


def test_downloads_are_what_is_shown(page: Page, app: str) -> None:
    page.goto(f"{app}/?sort=wins")
    settled(page)
    shown = rows_of(page, "ranking")
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").first.click()
    rows = list(csv.reader(io.StringIO(Path(download.value.path()).read_text(encoding="utf-8"))))
    assert len(rows) == len(shown) > 2
    for heading, column in zip(rows[0], range(len(rows[0])), strict=True):
        for text, cell in zip([row[column] for row in shown[1:]], [row[column] for row in rows[1:]], strict=True):
            if heading in {"geomean", "geomean_low", "geomean_high"}:
                assert text == f"{float(cell):.4f}"
            elif heading == "total_time":
                assert text == f"{float(cell):.3f}"
            elif heading == "win_rate":
                assert text == f"{float(cell):.1%}"
            else:
                assert text == cell.removeprefix("'")
    with page.expect_download() as download:
        page.get_by_role("button", name="JSON").first.click()
    found = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
    assert [list(row) for row in found] == [rows[0]] * len(found)
    assert [row["submission"] for row in found] == [row[1] for row in shown[1:]]


def test_the_page_is_the_ranking(page: Page, app: str, full_board: Board) -> None:
    page.goto(app)
    settled(page)
    found = ranking(full_board, choose_list(full_board))
    assert [row[:2] for row in rows_of(page, "ranking")[1:]] == [[str(entry.rank), entry.name] for entry in found.ranked]
    assert [row[0] for row in rows_of(page, "not ranked")[1:]] == [entry.standing.value for entry in found.apart]


@one_database
def test_text_of_others_is_shown_and_never_executed(page: Page, app: str, full_board: Board) -> None:
    page.goto(app)
    settled(page)
    assert HOSTILE_AUTHOR in [row[-1] for row in rows_of(page, "ranking")]
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").first.click()
    assert f"'{HOSTILE_AUTHOR}" in [
        row["authors"] for row in csv.DictReader(io.StringIO(Path(download.value.path()).read_text(encoding="utf-8")))
    ]
    page.goto(f"{app}/submission?run={run_named(full_board, 'evil')}")
    for view in ("Overview", "Heatmap", "Source", "Provenance"):
        turn_to(page, view)
        assert page.get_by_text(HOSTILE_TEXT).count() == 1
    for name in ("History", "Compare", "Shape"):
        page.get_by_role("link", name=name).click()
        page.get_by_role("heading", name=name, exact=True).wait_for()
        settled(page)
        # The same window all the while, so it would know.
        assert page.evaluate("window.broken") is None
        assert page.locator('img[src="x"]').count() == 0


@one_database
def test_an_empty_board_says_what_to_do_on_every_page(page: Page, new_url: Callable[[], str], tmp_path: Path) -> None:
    with serving(new_url(), tmp_path) as server:
        page.goto(f"{server.url}/published")
        page.get_by_text("Reported by the CUDA-L2 project").wait_for()
        for name in ("Ranking", "Submission", "Shape", "Compare", "History"):
            page.get_by_role("link", name=name).click()
            page.get_by_role("heading", name=name if name != "Submission" else "No run is published").wait_for()
            page.get_by_text("hgemm publish runs/NAME").wait_for()
            assert page.locator('[data-testid="stException"]').count() == 0


@one_database
def test_no_page_is_wider_than_a_phone(page: Page, app: str, full_board: Board) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.emulate_media(color_scheme="dark")
    for address in (
        "",
        "shape",
        "compare",
        "history",
        "method",
        "published",
        f"submission?run={run_named(full_board, 'fast')}",
    ):
        page.goto(f"{app}/{address}")
        page.wait_for_selector("h2")
        page.wait_for_selector(LINK if address not in ("method", "published") else "table")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, address
    for view in ("Heatmap", "Shapes", "Source"):
        turn_to(page, view)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, view
