"""From what a person writes after `--shapes` to Problems: a set's name, a file, or a comma list of MxNxK."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

import shapes
from harness.model import DataError
from harness.problem import Problem, Track


class ShapeSet(NamedTuple):
    """The problems of a run. Runs over different sets are never compared, which `sha256` decides."""

    name: str
    """Name of the set, stem of the file, or `custom` for a list."""
    problems: tuple[Problem, ...]
    """The problems, in the order in which they run."""
    sha256: str
    """Hash of the shapes; order, name and track do not enter it."""
    description: str = ""
    """What the set is for; empty for a list."""
    source: str = ""
    """Where its shapes come from; empty for a list."""


def resolve_shapes(text: str, track: Track = Track.F32) -> ShapeSet:
    """Read a set's name, the path of a file (`.toml`, or one MxNxK per line, `#` starts a comment), or `MxNxK,MxNxK`.

    Raises:
        DataError: it is none of these, or holds no shape, a bad one or one twice; one sentence.
    """
    text = text.strip()
    try:
        found = _resolve(text)
    except shapes.ShapeError as error:
        raise DataError(f"{error}.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the shapes of {text} cannot be read: {error}.") from error
    problems = tuple(Problem(m=shape.m, n=shape.n, k=shape.k, track=track) for shape in found.shapes)
    return ShapeSet(found.name, problems, shape_hash(found.shapes), found.description, found.source)


def shape_hash(of: tuple[shapes.Shape, ...]) -> str:
    """Hex SHA-256 over the sorted shapes, one `MxNxK` per line."""
    return hashlib.sha256("\n".join(str(shape) for shape in sorted(of)).encode()).hexdigest()


def has_shapes_of_its_name(name: str, sha256: str) -> bool:
    """Whether shapes of that hash may be called so: only a set of this package has a name of this package's sets."""
    return name not in shapes.names() or sha256 == shape_hash(shapes.load(name).shapes)


def _resolve(text: str) -> shapes.ShapeList:
    if text in shapes.names():
        return shapes.load(text)
    if "," in text or re.fullmatch(r"[\dx]+", text):
        return _listed([item.strip() for item in text.split(",") if item.strip()], "custom", "the list of shapes")
    path = Path(text)
    if path.is_file():
        return _read(path)
    known = ", ".join(shapes.names())
    raise shapes.ShapeError(f"{text!r} is no set of shapes ({known}), no file, and no list such as 512x512x512,64x4096x64")


def _read(path: Path) -> shapes.ShapeList:
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".toml":
        found = shapes.parse_toml(content, path.name)._replace(name=path.stem)
    else:
        lines = [line.split("#")[0].strip() for line in content.splitlines()]
        found = _listed([line for line in lines if line], path.stem, path.name)
    if not has_shapes_of_its_name(found.name, shape_hash(found.shapes)):
        raise shapes.ShapeError(
            f"{path} holds other shapes than the set {path.stem}, so its results would be taken for it; rename it"
        )
    return found


def _listed(items: list[str], name: str, where: str) -> shapes.ShapeList:
    return shapes.ShapeList(name, "", "", shapes.distinct([shapes.parse_shape(item, where) for item in items], where))
