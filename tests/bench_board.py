"""Seconds that the board costs; `make bench` runs this file, `make test` does not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
import synthetic
from browsers import FLAGS, Server, chromium
from pytest_benchmark.fixture import BenchmarkFixture
from runs import COLD, WARM, Recipe, make_run

from harness.record import SUBMISSION
from leaderboard.database import Database
from leaderboard.queries import choose_list, history, lists, ranking, runs
from leaderboard.shape_queries import at_shape, shape_rows
from leaderboard.store import Board

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PUBLISH_LIMIT_S = 5.0
RANKING_LIMIT_S = 1.0
"""Of the three seconds that a ranking page may take, what reading may."""
PAGE_LIMIT_S = 3.0
"""Until the ranking page of a large board can be used."""
FIRST_START_LIMIT_S = 20.0
FIRST_PAGE_LIMIT_S = 2.0
"""The same on the shipped runs."""
SIZES = (10, 50, 100, 200)
VISITS = 5
"""The best of so many counts: server and browser share the cores with whatever else runs here."""


@pytest.fixture(scope="module")
def grid_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over the whole grid, two measures, twenty rounds."""
    return make_run(tmp_path_factory.mktemp("grid"), Recipe(shapes="grid1000", measures=(COLD, WARM), rounds=20))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    """200 submissions × 1,000 shapes × 2 modes."""
    with Board(Database.open(str(tmp_path_factory.mktemp("large") / "board.sqlite"))) as board:
        synthetic.fill(board, SIZES[-1])
        yield board


class Grown(NamedTuple):
    """A board and how many submissions stand on its list."""

    board: Board
    size: int


@pytest.fixture(scope="module", params=SIZES)
def grown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grown]:
    """How the board grows: so many submissions × 1,000 shapes × 2 modes."""
    with Board(Database.open(str(tmp_path_factory.mktemp("grown") / "board.sqlite"))) as board:
        synthetic.fill(board, request.param)
        yield Grown(board, request.param)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        yield browser
        browser.close()


def load(page: Page, url: str) -> None:
    """Open the ranking page, until its table stands and its script has ended."""
    page.goto(url, wait_until="commit")
    page.wait_for_selector('table[aria-label="ranking"]', timeout=60_000)
    page.wait_for_selector('[data-testid="stApp"][data-test-script-state="notRunning"]')


def use(page: Page, url: str) -> None:
    """The same, and open a filter."""
    load(page, url)
    page.get_by_role("combobox", name="Baseline").click()
    page.get_by_role("option", name="cublas", exact=True).wait_for()


Visit = Callable[["Page", str], None]


def measure(visit: Visit, benchmark: BenchmarkFixture, browser: Browser, database: str, cache: Path) -> float:
    """Seconds of the quickest of several visitors, each of whom was never there before."""

    def newcomer() -> tuple[tuple[Page, str], dict[str, object]]:
        return (browser.new_context(viewport={"width": 1280, "height": 1000}).new_page(), server.url), {}

    with Server(database, cache) as server:
        visit(*newcomer()[0])
        benchmark.pedantic(visit, setup=newcomer, rounds=VISITS)
    return float(benchmark.stats.stats.min)


@pytest.mark.chromium
def test_ranking_page_of_a_large_board(benchmark: BenchmarkFixture, large: Board, browser: Browser, tmp_path: Path) -> None:
    assert measure(use, benchmark, browser, str(large.database.url), tmp_path) < PAGE_LIMIT_S


@pytest.mark.chromium
def test_first_page_on_the_shipped_runs(benchmark: BenchmarkFixture, browser: Browser, tmp_path: Path) -> None:
    assert measure(load, benchmark, browser, f"sqlite:///{tmp_path / 'board.sqlite'}", tmp_path) < FIRST_PAGE_LIMIT_S


def test_first_start_builds_the_board(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """What the progress bar of the first `hgemm board` covers."""
    url = f"sqlite:///{tmp_path / 'board.sqlite'}"
    benchmark.pedantic(lambda: Board.open(url).close(), rounds=1)
    assert benchmark.stats.stats.max < FIRST_START_LIMIT_S


def test_publish(benchmark: BenchmarkFixture, board: Board, grid_run: Path) -> None:
    """Recheck, sanity, scores and rows of one run, once per database."""
    begin = time.perf_counter()
    published = benchmark.pedantic(board.publish, args=(grid_run,), rounds=1)
    assert time.perf_counter() - begin < PUBLISH_LIMIT_S
    assert published.added


def test_publish_on_a_large_board(benchmark: BenchmarkFixture, large: Board, grid_run: Path) -> None:
    begin = time.perf_counter()
    published = benchmark.pedantic(large.publish, args=(grid_run,), rounds=1)
    assert time.perf_counter() - begin < PUBLISH_LIMIT_S
    assert published.added


def test_ranking(benchmark: BenchmarkFixture, grown: Grown) -> None:
    found = benchmark(lambda: (lists(grown.board), ranking(grown.board, choose_list(grown.board))))
    assert len(found[1].ranked) + len(found[1].apart) >= grown.size
    assert benchmark.stats.stats.median < RANKING_LIMIT_S


def test_history(benchmark: BenchmarkFixture, grown: Grown) -> None:
    key = choose_list(grown.board)
    assert len(benchmark(history, grown.board, key)) >= grown.size


def test_shapes_of_a_run(benchmark: BenchmarkFixture, grown: Grown) -> None:
    name = runs(grown.board)[0].run
    assert len(benchmark(shape_rows, grown.board, name, COLD)) == 1000


def test_one_shape(benchmark: BenchmarkFixture, grown: Grown) -> None:
    found = benchmark(at_shape, grown.board, choose_list(grown.board), "4096x4096x4096")
    # All but what has no verified record of it.
    assert sum(row.contender == SUBMISSION for row in found) >= 0.9 * grown.size
