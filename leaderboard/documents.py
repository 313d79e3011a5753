"""Documents that the board hands out: docs/protocol.md, from the wheel or the repository, and submissions as archives."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

from harness.model import InfraError
from leaderboard.queries import SourceFile

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


def archive(folder: str, files: Iterable[SourceFile]) -> bytes:
    """A submission's files in a folder, as ZIP; equal files make equal bytes."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as out:
        for file in files:
            out.writestr(zipfile.ZipInfo(f"{folder}/{file.name}"), file.content, zipfile.ZIP_DEFLATED)
    return target.getvalue()
