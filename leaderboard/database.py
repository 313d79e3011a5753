"""Database: where the board's tables are, brought to the newest schema, one writer at a time.

SQLite (write-ahead log, so that readers never wait) in the cache folder by default; PostgreSQL by URL. Both take writers one
by one, SQLite by `BEGIN IMMEDIATE` and PostgreSQL by an advisory lock, so that what a writer has read still holds when it
writes, and no two of them deadlock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.orm import Session

from harness.cache import Cache
from harness.model import DataError, HgemmError, InfraError, MissingDependencyError
from leaderboard.models import BoardState

FILE = "board.sqlite"
HEAD = "0001"
"""Newest revision of the schema, the last of `migrations/versions`."""
BUSY_TIMEOUT_S = 120
"""How long a writer waits for its turn."""
WRITER_LOCK = 0x68_67_65_6D_6D
"""Key of PostgreSQL's advisory lock."""


class Database:
    """An engine whose tables have the newest schema."""

    def __init__(self, url: URL) -> None:
        self.url = url
        self.engine = _engine(url)

    @classmethod
    def open(cls, url: str | None = None) -> Self:
        """Open a board's database, and make or upgrade its tables.

        Args:
            url: as SQLAlchemy reads it; default is `$HGEMM_DATABASE`, else the SQLite file in the cache folder.

        Raises:
            DataError: not a URL of SQLite or PostgreSQL, or the tables are those of a newer version.
            InfraError: it cannot be reached or written.
            MissingDependencyError: PostgreSQL without its driver.
        """
        database = cls(parse_url(url or os.environ.get("HGEMM_DATABASE") or default_url()))
        try:
            with database.errors(), database._turn():
                database._migrate()
        except HgemmError:
            database.close()
            raise
        return database

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a file of SQLite."""
        return self.url.get_backend_name() == "sqlite"

    @contextlib.contextmanager
    def reading(self) -> Iterator[Session]:
        """A session on one consistent state."""
        engine = self.engine if self.is_sqlite else self.engine.execution_options(isolation_level="REPEATABLE READ")
        with self.errors(), Session(engine) as session:
            yield session

    @contextlib.contextmanager
    def writing(self) -> Iterator[Session]:
        """A session that alone may write; commits unless an exception leaves it.

        Raises:
            InfraError: the disk is full, or the database is gone or not writable; nothing was changed.
        """
        engine = self.engine.execution_options(writer=True)
        with self.errors(), Session(engine) as session, session.begin():
            # Begins the transaction, which otherwise waits for the first statement.
            _take_turn(session.connection())
            yield session
            state = session.get_one(BoardState, 1)
            state.revision += 1

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turn the database's errors into one sentence.

        Raises:
            InfraError: any of them.
        """
        try:
            yield
        except DBAPIError as error:
            said = str(error.orig).splitlines()[0].rstrip(".")
            mend = "free some space and try again" if "full" in said or "No space" in said else "see to that and try again"
            raise InfraError(f"the database {self} failed ({said}); {mend}.") from error
        except SQLAlchemyError as error:
            raise InfraError(
                f"the database {self} failed ({str(error).splitlines()[0]}); see to that and try again."
            ) from error

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def __str__(self) -> str:
        return self.url.render_as_string(hide_password=True)

    def _migrate(self) -> None:
        with self.engine.connect() as connection:
            if revision_of(connection) == HEAD:
                return
        with self.engine.execution_options(writer=True).begin() as connection:
            _take_turn(connection)
            upgrade(connection, self)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Processes that open a new file together take turns: its busy timeout does not cover the switch to a log."""
        if not self.is_sqlite:
            yield
            return
        path = Path(f"{self.url.database}.lock")
        try:
            file = path.open("w", encoding="utf-8")
        except OSError as error:
            raise InfraError(f"{path} cannot be written ({error.strerror}); choose another place with --database.") from error
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def default_url() -> str:
    """The SQLite file in the cache folder, which is made.

    Raises:
        InfraError: it cannot be made.
    """
    directory = Cache.default().directory
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InfraError(f"{directory} cannot be made ({error.strerror}); set HGEMM_CACHE to a writable place.") from error
    return f"sqlite:///{directory / FILE}"


def parse_url(text: str) -> URL:
    """A database URL; a plain path is a file of SQLite.

    Raises:
        DataError: neither, or another kind of database.
    """
    if "://" not in text:
        return make_url(f"sqlite:///{Path(text).expanduser().absolute()}")
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise DataError(f"{text!r} is no database URL; write postgresql://user@host/name, or the path of a file.") from error
    if url.drivername in {"postgresql", "postgres"}:
        return url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() not in {"sqlite", "postgresql"}:
        raise DataError(f"the board lives in SQLite or PostgreSQL, not in {url.get_backend_name()}.")
    return url


def upgrade(connection: Connection, database: object) -> None:
    """Run the migrations that the tables behind the connection lack.

    Raises:
        DataError: they are newer than this version.
    """
    found = revision_of(connection)
    if found == HEAD:
        return
    from alembic import command
    from alembic.config import Config
    from alembic.util.exc import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise DataError(
            f"the database {database} is of a newer version ({found}); upgrade hgemm-arena, or choose another with --database."
        ) from error


def revision_of(connection: Connection) -> str | None:
    """Revision of the tables; None where there are none."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _engine(url: URL) -> Engine:
    options: dict[str, Any] = {"timeout": BUSY_TIMEOUT_S} if url.get_backend_name() == "sqlite" else {}
    try:
        engine = create_engine(url, connect_args=options)
    except (ImportError, NoSuchModuleError) as error:
        raise MissingDependencyError("psycopg", "postgres", "a PostgreSQL board") from error
    if url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _take_turn(connection: Connection) -> None:
    """Wait until no other process writes. On SQLite the transaction began so."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": WRITER_LOCK})


def _prepare_sqlite(connection: Any, record: object) -> None:
    """Transactions are begun by `_begin_sqlite`, not by the driver, which begins them too late to be consistent."""
    connection.isolation_level = None
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA synchronous=NORMAL")


def _begin_sqlite(connection: Connection) -> None:
    immediate = connection.get_execution_options().get("writer", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
