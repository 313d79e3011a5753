"""A PostgreSQL server of the tests' own, from Debian's programs: no system service, no port, no password."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

STANDARD = Path("/usr/lib/postgresql")


def program(name: str) -> Path | None:
    """A program of the newest PostgreSQL here."""
    versions = sorted(STANDARD.glob(f"*/bin/{name}"), key=lambda path: float(path.parent.parent.name))
    found = versions[-1] if versions else shutil.which(name)
    return None if found is None else Path(found)


def user() -> str | None:
    """Whom the server runs as: it refuses root, so then another user of the system."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid()).pw_name
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in names), None)


def missing() -> str | None:
    """Why no server can be started here, or None."""
    if program("initdb") is None:
        return "no initdb (apt-get install postgresql)"
    if user() is None:
        return "no user but root to run PostgreSQL as"
    return None if importlib.util.find_spec("psycopg") else "no psycopg (pip install 'psycopg[binary]')"


class PostgresServer:
    """A server on a socket in a directory of its own. A context manager."""

    def __init__(self) -> None:
        self._user = user() or ""
        # Not below pytest's directories, which other users may not enter.
        self._root = Path(tempfile.mkdtemp(prefix="hgemm-postgres-"))
        self._count = 0

    def __enter__(self) -> Self:
        if os.geteuid() == 0:
            shutil.chown(self._root, self._user)
        self._call("initdb", "--pgdata", "data", "--username", "tester", "--auth", "trust", "--no-sync", "--encoding", "UTF8")
        settings = f"-c listen_addresses= -c unix_socket_directories={self._root} -c fsync=off -c max_connections=60"
        self._call("pg_ctl", "start", "--pgdata", "data", "--wait", "--silent", "--log", "log", "--options", settings)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._call("pg_ctl", "stop", "--pgdata", "data", "--mode", "immediate", "--silent")
        shutil.rmtree(self._root)

    def new_database(self) -> str:
        """URL of an empty database."""
        import psycopg

        self._count += 1
        with psycopg.connect(host=str(self._root), user="tester", dbname="postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE board{self._count}")  # type: ignore[arg-type]
        return f"postgresql://tester@/board{self._count}?host={self._root}"

    def _call(self, name: str, *arguments: str) -> None:
        other = {"user": self._user, "group": pwd.getpwnam(self._user).pw_gid, "extra_groups": []}
        output = self._root / "output"
        # To a file: a server that inherits a pipe keeps it open for as long as it runs.
        with output.open("w", encoding="utf-8") as file:
            result = subprocess.run(
                [str(program(name)), *arguments],
                cwd=self._root,
                env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                check=False,
                **(other if os.geteuid() == 0 else {}),  # type: ignore[arg-type]
            )
        if result.returncode != 0:
            raise RuntimeError(f"{name} failed: {output.read_text(encoding='utf-8')}")
