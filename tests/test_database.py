"""The database: migrations, versions, many writers beside a reader, and errors as one sentence."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from runs import Recipe, make_run
from sqlalchemy import func, select, text

from harness.model import DataError, InfraError
from harness.record import Measure
from leaderboard import database
from leaderboard.database import HEAD, Database, parse_url, revision_of
from leaderboard.journal import read_events
from leaderboard.models import Base, RecordRow, RunRow, TimingRow
from leaderboard.queries import choose_list, ranking, runs
from leaderboard.shape_queries import shape_rows
from leaderboard.store import Board

WRITERS, RUNS, SHAPES = 8, 5, 40


def write(url: str, parent: Path, writer: int) -> None:
    """One writer's process: publish its runs."""
    with Board(Database.open(url)) as board:
        for run in sorted(parent.glob(f"writer-{writer}-*")):
            assert board.publish(run).added


def read(url: str) -> None:
    """The reader's process: look until everything is there, and never see less than before, or half a run."""
    seen = 0
    with Board(Database.open(url)) as board:
        while seen < WRITERS * RUNS:
            found = runs(board)
            assert len(found) >= seen, "a run that was there is gone"
            seen = len(found)
            for run in found[-1:]:
                rows = shape_rows(board, run.run, Measure())
                assert len(rows) == SHAPES
                assert all(row.speedup is not None for row in rows), "half a run is visible"
                assert ranking(board, choose_list(board)).ranked


def test_migrations_make_the_tables_of_the_models(board: Board) -> None:
    with board.database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
        assert revision_of(connection) == HEAD


def test_head_is_the_last_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(database.__file__).parent / "migrations"))
    assert ScriptDirectory.from_config(config).get_current_head() == HEAD


def test_opening_again_keeps_what_is_there_and_loads_no_alembic(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'b.sqlite'}"
    with Board(Database.open(url)) as board:
        board.publish(make_run(tmp_path, Recipe(shapes="64x64x64")))
    code = f"import sys; from leaderboard.database import Database; Database.open({url!r}); print('alembic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
    with Board(Database.open(url)) as board:
        assert board.revision() == 1


def test_tables_of_a_newer_version_are_refused(board_url: str) -> None:
    with Board(Database.open(board_url)) as board, board.database.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(DataError, match=r"is of a newer version \(9999\); upgrade hgemm-arena"):
        Database.open(board_url)


def test_eight_writers_beside_a_reader_lose_nothing_and_raise_nothing(board_url: str, tmp_path: Path) -> None:
    """Eight processes publish 200 records each, in five runs, into one database and one journal."""
    shapes = ",".join(f"64x64x{64 * k}" for k in range(1, SHAPES + 1))
    for writer in range(WRITERS):
        for number in range(RUNS):
            make_run(tmp_path, Recipe(name=f"writer-{writer}-{number}", code=f"{writer} {number}", shapes=shapes))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["test_database"])
    with ProcessPoolExecutor(WRITERS + 1, mp_context=context) as pool:
        # The database is new, so that they also meet while they make its tables.
        waiting = [pool.submit(write, board_url, tmp_path, writer) for writer in range(WRITERS)]
        waiting.append(pool.submit(read, board_url))
        assert [future.exception(timeout=240) for future in waiting] == [None] * (WRITERS + 1)
    with Board(Database.open(board_url)) as board, board.database.reading() as session:
        assert session.scalar(select(func.count()).select_from(RunRow)) == WRITERS * RUNS
        assert session.scalar(select(func.count()).select_from(RecordRow)) == WRITERS * RUNS * SHAPES
        assert session.scalar(select(func.count()).select_from(TimingRow)) == WRITERS * RUNS * SHAPES * 5
        assert board.revision() == WRITERS * RUNS
    assert len({event.end_sha256 for event in read_events(tmp_path)}) == WRITERS * RUNS


def test_writers_take_turns(board: Board) -> None:
    """The second one sees what the first one wrote before it reads anything."""
    order: list[str] = []

    def second() -> None:
        with board.database.writing():
            order.append("second")

    with board.database.writing():
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.3)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://x/y", "the board lives in SQLite or PostgreSQL, not in mysql"),
        ("://", "is no database URL"),
    ],
)
def test_urls_that_are_none(url: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        parse_url(url)


def test_a_path_is_a_file_of_sqlite_and_postgres_gets_its_driver(tmp_path: Path) -> None:
    assert str(parse_url(str(tmp_path / "b"))) == f"sqlite:///{tmp_path}/b"
    assert parse_url("postgresql://u@h/d").drivername == "postgresql+psycopg"
    assert parse_url("postgres://u@h/d").drivername == "postgresql+psycopg"


def test_a_database_that_cannot_be_reached_is_one_sentence_without_its_password(tmp_path: Path) -> None:
    for url in (f"sqlite:///{tmp_path}/no/such/folder/b", "postgresql://me:secret@127.0.0.1:1/b"):
        with pytest.raises(InfraError) as caught:
            Database.open(url)
        assert "\n" not in str(caught.value)
        assert "secret" not in str(caught.value)
    (tmp_path / "text").write_text("this is no database, and long enough to be looked at" * 50)
    with pytest.raises(InfraError, match="file is not a database"):
        Database.open(str(tmp_path / "text"))


def test_the_default_is_the_cache_folder_or_what_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HGEMM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HGEMM_DATABASE", raising=False)
    with Board(Database.open()) as board:
        assert board.database.url.database == str(tmp_path / "cache" / "board.sqlite")
    monkeypatch.setenv("HGEMM_DATABASE", str(tmp_path / "elsewhere.sqlite"))
    with Board(Database.open()) as board:
        assert board.database.url.database == str(tmp_path / "elsewhere.sqlite")
