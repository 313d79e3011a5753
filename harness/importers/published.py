"""Published tables: speedups per shape that others report, as CSV.

The first column is `mnk` with shapes as `64_128_256`; every other column is a baseline with the submission's speedup over it.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from harness.model import DataError, Document, Model, one_sentence
from harness.problem import Problem, Track
from harness.record import Mode

SHAPE_COLUMN = "mnk"
MAX_BYTES = 16 << 20
"""A table of a million shapes is not one that a page shows."""

Speedup = Annotated[float, Field(gt=0, lt=math.inf)]


class Reported(Model):
    """What a table reports on, as its reader was told."""

    kernel: Annotated[str, Field(min_length=1, max_length=100)]
    """Whose speedups they are."""
    device: Annotated[str, Field(min_length=1, max_length=100)]
    """Device that its authors measured on."""
    track: Annotated[Track, Field(strict=False)]
    """Accumulation track."""
    mode: Annotated[Mode, Field(strict=False)]
    """How requests arrived."""
    source: Annotated[str, Field(min_length=1, max_length=1000)]
    """Where it was published: address, commit."""


class ReportedTable(Document):
    """Speedups per shape that others report. Not measured here."""

    about: Reported
    """What it is."""
    baselines: Annotated[tuple[str, ...], Field(min_length=1)]
    """Columns, under the names that its authors gave them."""
    shapes: Annotated[tuple[str, ...], Field(min_length=1)]
    """Rows, `MxNxK`."""
    speedups: tuple[tuple[Speedup, ...], ...]
    """By shape and baseline; above 1 their kernel wins."""

    @model_validator(mode="after")
    def _is_a_table(self) -> Self:
        if len(self.speedups) != len(self.shapes) or any(len(row) != len(self.baselines) for row in self.speedups):
            raise ValueError("speedups must have one row per shape and one column per baseline")
        if len(set(self.shapes)) != len(self.shapes) or len(set(self.baselines)) != len(self.baselines):
            raise ValueError("a shape or a baseline is there twice")
        return self

    @property
    def title(self) -> str:
        """Names it among others."""
        about = self.about
        return f"{about.kernel}, {about.device}, {about.track}, {about.mode}"

    def arithmetic_mean(self, baseline: str) -> float:
        """Mean of the speedups over a baseline: the statistic that such tables are headed with."""
        values = self._column(baseline)
        return math.fsum(values) / len(values)

    def geometric_mean(self, baseline: str) -> float:
        """Geometric mean of the same."""
        values = self._column(baseline)
        return math.exp(math.fsum(map(math.log, values)) / len(values))

    def _column(self, baseline: str) -> list[float]:
        place = self.baselines.index(baseline)
        return [row[place] for row in self.speedups]


def reported(fields: Mapping[str, str]) -> Reported:
    """What a table reports on, from text.

    Raises:
        DataError: a field is missing or not valid.
    """
    missing = [name for name in Reported.model_fields if name not in fields]
    if missing:
        named = " and ".join(f"--{name}" for name in missing)
        raise DataError(f"the file's name does not tell everything about the table; give {named}.")
    try:
        return Reported.model_validate(dict(fields))
    except ValidationError as error:
        raise DataError(f"the table is not described well: {one_sentence(error)}.") from error


def read_table(path: Path, about: Reported) -> ReportedTable:
    """Read a CSV file.

    Raises:
        DataError: it is none, or a cell is not a shape or a positive number; names line and column.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DataError(f"{path} is larger than {MAX_BYTES >> 20} MiB; give a table of speedups per shape.")
        text = path.read_text(encoding="utf-8-sig")
        lines = [line for line in csv.reader(text.splitlines()) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV ({error}); give a table of speedups per shape.") from error
    if not lines or lines[0][0] != SHAPE_COLUMN or len(lines[0]) < 2:
        raise DataError(f"{path} has no heading `{SHAPE_COLUMN},BASELINE,…`, which a table of speedups begins with.")
    if len(lines) == 1:
        raise DataError(f"{path} has a heading and no shape.")
    rows = list(_rows(path, lines))
    data = {"about": about, "baselines": tuple(lines[0][1:]), "shapes": tuple(shape for shape, _ in rows)}
    try:
        return ReportedTable.model_validate({**data, "speedups": tuple(values for _, values in rows)})
    except ValidationError as error:
        raise DataError(f"{path} is not valid: {one_sentence(error)}.") from error


def guess_from_name(path: Path) -> dict[str, str]:
    """What a file name such as `cuda_l2_h100_F32F16F16F32_speedup_server.csv` tells of its table."""
    found = {"source": f"file {path.name}"}
    name = path.stem.lower()
    if device := re.search(r"(?:^|_)([a-z]?\d{3,4})(?:_|$)", name):
        found["kernel"] = path.stem[: device.start()] or path.stem
        found["device"] = device[1].upper() if device[1][0].isalpha() else f"RTX {device[1]}"
    if types := re.search(r"(?:^|_)(f16|f32)(?:f(?:16|32))*(?:_|$)", name):
        found["track"] = types[1]
    if mode := re.search(r"(?:^|_)(offline|server)(?:_|$)", name):
        found["mode"] = mode[1]
    return found


def _rows(path: Path, lines: Sequence[Sequence[str]]) -> Iterator[tuple[str, tuple[float, ...]]]:
    width = len(lines[0])
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != width:
            raise DataError(f"{path}, row {number} has {len(line)} cells, the heading {width}.")
        shape = str(Problem.parse(line[0].replace("_", "x")))
        yield shape, tuple(_speedup(cell, f"{path}, row {number}, column {lines[0][place]}") for place, cell in _cells(line))


def _cells(line: Sequence[str]) -> Iterator[tuple[int, str]]:
    return ((place, cell) for place, cell in enumerate(line) if place)


def _speedup(cell: str, where: str) -> float:
    try:
        value = float(cell)
    except ValueError as error:
        raise DataError(f"{where} holds {cell!r}, which is not a number.") from error
    if not 0 < value < math.inf:
        raise DataError(f"{where} holds {cell}, and a speedup is positive and finite.")
    return value
