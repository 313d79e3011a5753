"""Published figures: what others report. Kept apart from what is measured, in files of their own, and never ranked."""

from __future__ import annotations

import hashlib
import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated

from pydantic import Field

from harness.cache import Cache
from harness.importers.published import ReportedTable
from harness.model import InfraError, Model, Name, Positive
from harness.problem import Track
from harness.record import Mode


class HeadlineRow(Model):
    """One device, track and mode: the mean of the reported speedups over each baseline."""

    device: str
    """Device that its authors measured on."""
    track: Annotated[Track, Field(strict=False)]
    """Accumulation track."""
    mode: Annotated[Mode, Field(strict=False)]
    """How requests arrived."""
    shapes: Positive
    """Shapes of their table."""
    arithmetic: dict[str, float]
    """Arithmetic mean of the ratios by baseline, as its authors add them up."""
    geometric: dict[str, float]
    """Geometric mean of the same ratios, which is what ranks here for what is measured."""


class Headline(Model):
    """What one source reports."""

    name: Name
    """Short name."""
    title: str
    """Heading."""
    source: str
    """Address."""
    provenance: str
    """What the figures are and where they come from, in a sentence or two."""
    rows: Annotated[tuple[HeadlineRow, ...], Field(strict=False)]
    """The figures."""


def headline() -> tuple[Headline, ...]:
    """The shipped tables of headline figures."""
    data = tomllib.loads(resources.files("leaderboard").joinpath("published.toml").read_text(encoding="utf-8"))
    return tuple(Headline.model_validate(each) for each in data["headline"])


def imported() -> tuple[ReportedTable, ...]:
    """The tables per shape that `hgemm import published` stored, by title.

    Raises:
        DataError: one of them is not valid.
    """
    found = [ReportedTable.parse(path.read_bytes(), str(path)) for path in sorted(folder().glob("*.json"))]
    return tuple(sorted(found, key=lambda each: each.title))


def store(table: ReportedTable) -> Path:
    """Keep a table for the board; another one of its title is replaced.

    Raises:
        InfraError: the folder is not writable.
    """
    path = folder() / f"{hashlib.sha256(table.title.encode()).hexdigest()[:16]}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(table.model_dump_json(indent=1), encoding="utf-8")
    except OSError as error:
        raise InfraError(f"{path} cannot be written ({error.strerror}); set HGEMM_CACHE to a writable place.") from error
    return path


def folder() -> Path:
    """Where imported tables are: in the cache folder, beside the board."""
    return Cache.default().directory / "published"
