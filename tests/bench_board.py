"""Seconds that the board costs; `make bench` runs this file, `make test` does not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import synthetic
from pytest_benchmark.fixture import BenchmarkFixture
from runs import COLD, WARM, Recipe, make_run

from harness.record import SUBMISSION
from leaderboard.database import Database
from leaderboard.queries import choose_list, history, lists, ranking, runs
from leaderboard.shape_queries import at_shape, shape_rows
from leaderboard.store import Board

PUBLISH_LIMIT_S = 5.0
RANKING_LIMIT_S = 1.0
"""Of the three seconds that a ranking page may take, what reading may."""


@pytest.fixture(scope="module")
def grid_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over the whole grid, two measures, twenty rounds."""
    return make_run(tmp_path_factory.mktemp("grid"), Recipe(shapes="grid1000", measures=(COLD, WARM), rounds=20))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    """200 submissions × 1,000 shapes × 2 modes."""
    with Board(Database.open(str(tmp_path_factory.mktemp("large") / "board.sqlite"))) as board:
        synthetic.fill(board, 200)
        yield board


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


def test_ranking_of_a_large_board(benchmark: BenchmarkFixture, large: Board) -> None:
    found = benchmark(lambda: (lists(large), ranking(large, choose_list(large))))
    assert len(found[1].ranked) + len(found[1].apart) >= 200
    assert benchmark.stats.stats.median < RANKING_LIMIT_S


def test_history_of_a_large_board(benchmark: BenchmarkFixture, large: Board) -> None:
    key = choose_list(large)
    assert len(benchmark(history, large, key)) >= 200


def test_shapes_of_a_run_on_a_large_board(benchmark: BenchmarkFixture, large: Board) -> None:
    name = runs(large)[0].run
    assert len(benchmark(shape_rows, large, name, COLD)) == 1000


def test_one_shape_of_a_large_board(benchmark: BenchmarkFixture, large: Board) -> None:
    key = choose_list(large)
    found = benchmark(at_shape, large, key, "4096x4096x4096")
    assert sum(row.contender == SUBMISSION for row in found) >= 200
