"""The base of every noun that is written to a file: frozen, strict, and with a sentence under every field."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from pathlib import PurePosixPath
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

SCHEMA_VERSION = 1
"""Version of every file that this code writes. Readers upgrade older ones and refuse newer ones."""


class Model(BaseModel):
    """Frozen, refuses unknown fields and implicit conversions, and exports its field docstrings to JSON Schema."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        ser_json_inf_nan="constants",
    )

    def canonical_json(self) -> str:
        """Sorted keys, no spaces: equal models give equal text, so this is what gets hashed."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=True)

    def sha256(self) -> str:
        """Hex SHA-256 of `canonical_json`."""
        return hashlib.sha256(self.canonical_json().encode()).hexdigest()


class Document(Model):
    """A model that is the whole content of a file (or of one line of it), so it carries the schema version."""

    schema_version: Annotated[int, Field(ge=1)] = SCHEMA_VERSION
    """Version of the file format; a reader refuses a newer one than it knows."""

    @classmethod
    def parse(cls, text: str | bytes, source: str) -> Self:
        """Validate one JSON document.

        Raises:
            DataError: not JSON, written by a newer version, or not valid; one sentence that names `source`.
        """
        data = parse_json(text, source)
        refuse_newer(data, source)
        try:
            return cls.model_validate_json(json.dumps(data))
        except ValidationError as error:
            raise DataError(f"{source} is not valid: {one_sentence(error)}.") from error


class HgemmError(Exception):
    """Something the user can mend; the message is one sentence that says what and how."""

    exit_code = 2


class DataError(HgemmError):
    """A file or an argument does not hold what it must."""


class InfraError(HgemmError):
    """The machine, not the submission, failed (device lost, disk full, cache not writable)."""

    exit_code = 3


class MissingDependencyError(InfraError):
    """An optional dependency is needed and absent."""

    def __init__(self, module: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {module}; install it with: pip install 'hgemm-arena[{extra}]'")


def parse_json(text: str | bytes, source: str) -> dict[str, Any]:
    """One JSON object.

    Raises:
        DataError: not JSON, or not an object.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{source} is not valid JSON: {error}.") from error
    if not isinstance(data, dict):
        raise DataError(f"{source} must hold one JSON object, not {type(data).__name__}.")
    return data


def one_sentence(error: ValidationError) -> str:
    """The first problems of a pydantic error as text for a person: `field: what is wrong; field: …`."""
    problems = [
        f"{'.'.join(str(part) for part in item['loc']) or 'document'}: {item['msg'].rstrip('.')}" for item in error.errors()
    ]
    more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
    return "; ".join(problems[:3]) + more


def printable(text: str, keep: str = "") -> str:
    """Text of others that is safe on a terminal and, unless `keep` holds a newline, on one line."""
    return "".join(character if character.isprintable() or character in keep else " " for character in text)


def refuse_newer(data: dict[str, Any], source: str) -> None:
    """Refuse a document that a newer version wrote.

    Raises:
        DataError: one sentence that names `source`.
    """
    version = data.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise DataError(
            f"{source} was written by a newer version (schema {version}, this one reads up to {SCHEMA_VERSION}); "
            "upgrade hgemm-arena to read it."
        )


def _relative_path(value: str) -> str:
    path = PurePosixPath(value)
    if not value.isprintable() or not value or "\\" in value or path.is_absolute() or ".." in path.parts or str(path) != value:
        raise ValueError(f"{value!r} must be a plain relative path inside the submission (no '..', no leading '/')")
    return value


def _date_and_time(value: str) -> str:
    datetime.fromisoformat(value)
    return value


Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
"""A name that is safe as a file name and in a URL: lower case, digits, `.`, `_`, `-`."""

RunName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")]
"""Name of a run's directory: pages and reports are called after it, so it holds no separator and starts with no dot."""

Line = Annotated[str, AfterValidator(lambda text: printable(text, keep=""))]
"""Text of others on one line: what cannot be printed, and so could move a terminal's cursor, becomes a space."""

Text = Annotated[str, AfterValidator(lambda text: printable(text, keep="\n"))]
"""The same on any number of lines."""

Identifier = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
"""A C identifier."""

RelativePath = Annotated[str, AfterValidator(_relative_path)]
"""A POSIX path that stays inside its directory."""

Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""Hex SHA-256."""

Timestamp = Annotated[
    str, Field(pattern=r"^20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"), AfterValidator(_date_and_time)
]
"""UTC to the second, as in 2026-12-01T00:09:11Z."""

MAX_COUNT = 2**63 - 1
"""Largest integer that databases hold; also far inside what a float does."""

Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Positive = Annotated[int, Field(ge=1, le=MAX_COUNT)]
