"""Shared fixtures, and what `HGEMM_REQUIRE` means: a test whose machinery is missing is skipped, unless it is required here."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from postgres_server import PostgresServer

    from leaderboard.store import Board

# Before numpy and torch are imported: idle threads of their pools spin, and would take the processor from the other worker.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")


def missing_gpu() -> str | None:
    """Why no test can use a GPU here, or None."""
    import torch

    return None if torch.cuda.is_available() else "no CUDA device"


def missing_postgres() -> str | None:
    """Why no test can start a PostgreSQL server here, or None."""
    from postgres_server import missing

    return missing()


def missing_chromium() -> str | None:
    """Why no test can drive a browser here, or None."""
    from browsers import missing

    return missing()


def missing_nvcc() -> str | None:
    """Why no test can compile with nvcc here, or None."""
    return None if shutil.which("nvcc") else "no nvcc on PATH"


PROBES: dict[str, Callable[[], str | None]] = {
    "gpu": missing_gpu,
    "postgres": missing_postgres,
    "chromium": missing_chromium,
    "nvcc": missing_nvcc,
}
"""Per marker, a probe that says why its machinery is missing; it runs once, and only if a selected test needs it."""

REQUIRABLE = frozenset(PROBES)


def required() -> frozenset[str]:
    """What `HGEMM_REQUIRE` names.

    Raises:
        pytest.UsageError: a name that nothing could satisfy, since a typing error must not let skips through.
    """
    names = frozenset(name.strip() for name in os.environ.get("HGEMM_REQUIRE", "").split(",") if name.strip())
    if names - REQUIRABLE:
        raise pytest.UsageError(f"HGEMM_REQUIRE names {sorted(names - REQUIRABLE)}; it may name {sorted(REQUIRABLE)}")
    return names


def pytest_configure(config: pytest.Config) -> None:
    required()
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw0":
        # The CPU device pins what it times to the last processor; of two that test side by side one leaves it to the other.
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    # Tests assert causes, not seconds: a busy machine is no failure.
    settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("busy")


SLOW = (
    *("test_redteam", "test_cli", "test_families_emulated", "test_cpu_device", "test_app_browser", "test_resume"),
    *("test_pytest_plugin", "test_gate", "test_app", "test_statistics", "test_database", "test_evaluate"),
    *("test_simulated_card", "test_replay", "test_report", "test_wheel", "test_audit_command", "test_families"),
    *("test_native_build", "test_cuda_submissions", "test_server_measurement"),
)
"""Modules that take long come first, so that neither of two workers waits for the other in the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: SLOW.index(item.path.stem) if item.path.stem in SLOW else len(SLOW))
    for marker, probe in PROBES.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        reason = probe() if marked else None
        for item in marked if reason else []:
            item.stash[_MISSING] = f"{marker}: {reason}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    reason = item.stash.get(_MISSING, "")
    if reason and reason.split(":")[0] in required():
        pytest.fail(f"HGEMM_REQUIRE asks for {reason}", pytrace=False)
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="session", autouse=True)
def runtime_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Device locks of this process's tests only: tests that run side by side, and the user's runs, are none of its business."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        yield


@pytest.fixture(scope="session", autouse=True)
def build_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One empty build cache per session: no test sees, or fills, the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HGEMM_CACHE", str(tmp_path_factory.mktemp("hgemm-cache")))
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server per session, started when a test first asks for it."""
    from postgres_server import PostgresServer

    with PostgresServer() as server:
        yield server


DATABASES = ("sqlite", pytest.param("postgresql", marks=pytest.mark.postgres))
"""Kinds of database that a board lives in."""


@pytest.fixture(params=DATABASES)
def board_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty database, of each kind in turn."""
    return _new_database(request, tmp_path)


@pytest.fixture
def board(board_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Board]:
    """An empty board, without the runs that are shipped."""
    from leaderboard.database import Database
    from leaderboard.store import Board

    monkeypatch.setattr("leaderboard.store.shipped", list)
    with Board(Database.open(board_url)) as board:
        yield board


@pytest.fixture(scope="module", params=DATABASES)
def new_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], str]:
    """Makes an empty database and returns its URL; of each kind in turn, for all tests of a module."""
    return lambda: _new_database(request, tmp_path_factory.mktemp("database"))


@pytest.fixture(scope="module")
def full_url(new_url: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """URL of the board of `boards.py`, which the tests of a module share and do not change."""
    from boards import make_board

    url = new_url()
    make_board(tmp_path_factory.mktemp("full"), url)
    return url


@pytest.fixture
def full_board(full_url: str) -> Iterator[Board]:
    """The board behind `full_url`."""
    from leaderboard.database import Database
    from leaderboard.store import Board

    with Board(Database.open(full_url)) as board:
        yield board


def _new_database(request: pytest.FixtureRequest, folder: Path) -> str:
    """URL of an empty database of the kind that the fixture's parameter names."""
    if request.param == "sqlite":
        return f"sqlite:///{folder / 'board.sqlite'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()


_MISSING = pytest.StashKey[str]()
