"""Documents that the board shows: docs/protocol.md, from the wheel or the repository."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from harness.model import InfraError

PROTOCOL = "protocol.md"


def protocol_text() -> str:
    """docs/protocol.md without its first heading.

    Raises:
        InfraError: it is neither installed nor in a repository around the package.
    """
    package = Path(str(resources.files("leaderboard")))
    for path in (package / "docs" / PROTOCOL, package.parent / "docs" / PROTOCOL):
        if path.is_file():
            return path.read_text(encoding="utf-8").partition("\n")[2].lstrip()
    raise InfraError(f"docs/{PROTOCOL} is not installed with hgemm-arena; install its wheel again.")
