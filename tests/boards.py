"""A small board for pages: runs of several standings, one with text that must not be believed; and what a board is asked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from runs import COLD, H200, WARM, Recipe, cpu_recipe, make_run
from sqlalchemy import event

from harness.record import Status
from leaderboard.database import Database
from leaderboard.store import Board

SHAPES = "64x64x64,128x64x64,64x128x64,128x128x64,64x64x128,128x64x128,64x128x128,128x128x128"
HOSTILE_AUTHOR = '=HYPERLINK("http://evil.example","click")<img src=x onerror=window.broken=1>'
HOSTILE_TEXT = "<script>window.broken=1</script> **bold** [link](javascript:window.broken=1) $x^2$ :red[no]"
OTHER = H200.model_copy(update={"uuid": "GPU-00000000-0000-0000-0000-000000000002"})
BASE = Recipe(shapes=SHAPES, measures=(COLD, WARM))
RECIPES = {
    "fast": BASE.but(name="fast", author="Ada", code="// fast\n", speedup=1.2, by_shape={"128x64x128": 0.5}),
    "slow": BASE.but(name="slow", author="Bob", code="// slow\n", speedup=0.8, stamp="20261102T000000Z", device=OTHER),
    "older": BASE.but(name="slow", version="0.9.0", author="Bob", code="// older\n", speedup=0.7),
    "evil": BASE.but(
        name="evil", author=HOSTILE_AUTHOR, description=HOSTILE_TEXT, code="// </pre><script>window.broken=1</script>\n"
    ),
    "partial": BASE.but(name="partial", code="// partial\n", statuses={"64x64x64": Status.UNSUPPORTED}),
    "wrong": BASE.but(name="wrong", code="// wrong\n", statuses={"128x64x64": Status.REJECTED}),
    "cpu": cpu_recipe(name="cpu", shapes="64x64x64"),
}


def make_runs(parent: Path) -> dict[str, Path]:
    """Their run directories."""
    return {name: make_run(parent, recipe) for name, recipe in RECIPES.items()}


def make_board(folder: Path, url: str | None = None) -> dict[str, Path]:
    """A board at a URL, or `folder/board.sqlite`, with all of them published; returns their directories."""
    paths = make_runs(folder / "runs")
    with Board(Database.open(url or str(folder / "board.sqlite"))) as board:
        for path in paths.values():
            board.publish(path)
    return paths


class Statement(NamedTuple):
    """What was sent to a database."""

    text: str
    parameters: Any

    def rows(self, board: Board) -> Sequence[Any]:
        """What it returns when it is sent again."""
        with board.database.engine.connect() as connection:
            return connection.exec_driver_sql(self.text, self.parameters).all()


@contextlib.contextmanager
def statements(board: Board) -> Iterator[list[Statement]]:
    """Statements sent to the database meanwhile, without those that begin or end a transaction."""
    sent: list[Statement] = []

    def note(connection: object, cursor: object, statement: str, parameters: object, *rest: object) -> None:
        if not statement.startswith(("BEGIN", "PRAGMA")):
            sent.append(Statement(statement, parameters))

    event.listen(board.database.engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(board.database.engine, "before_cursor_execute", note)
