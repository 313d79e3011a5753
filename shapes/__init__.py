"""Sets of matrix-multiply shapes: one TOML file per set beside this module, and nothing that depends on the harness.

A set file holds `description` and `source` and any of

- `shapes`: a list of `"MxNxK"`;
- `[[products]]`: every combination of the lists `m`, `n` and `k`, or of `m` and `nk` (pairs `[n, k]`).

`source` may also stand in a product, where it says where that product's numbers come from.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from importlib import resources
from typing import Any, NamedTuple

MAX_SIDE = 10**7 - 1
"""Largest M, N or K that a set may hold."""

_SHAPE = re.compile(r"([1-9][0-9]{0,6})x([1-9][0-9]{0,6})x([1-9][0-9]{0,6})")


class Shape(NamedTuple):
    """C (M×N) = A (M×K) · B (K×N)."""

    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


class ShapeList(NamedTuple):
    """One set: its shapes in the order in which they run, without repetition."""

    name: str
    description: str
    source: str
    shapes: tuple[Shape, ...]


class ShapeError(ValueError):
    """A set of shapes cannot be read; the message says where and why."""


def names() -> tuple[str, ...]:
    """Names of the sets in this package."""
    files = (entry.name for entry in resources.files(__name__).iterdir())
    return tuple(sorted(file.removesuffix(".toml") for file in files if file.endswith(".toml")))


def load(name: str) -> ShapeList:
    """The set of that name.

    Raises:
        ShapeError: there is none.
    """
    if name not in names():
        raise ShapeError(f"no set of shapes is called {name!r}; there are {', '.join(names())}")
    return parse_toml(resources.files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8"), name)


def parse_toml(text: str, name: str) -> ShapeList:
    """Read a set file.

    Raises:
        ShapeError: not TOML, an unknown key, no shape, a shape twice, or a side that is no positive integer.
    """
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # grammar, an integer of thousands of digits, or nesting
        raise ShapeError(f"{name} is not valid TOML: {error}") from error
    _only(data, {"description", "source", "shapes", "products"}, name)
    listed = _list(data, "shapes", name)
    products = _list(data, "products", name)
    shapes = [parse_shape(item, name) for item in listed]
    shapes += itertools.chain.from_iterable(_product(item, name) for item in products)
    return ShapeList(name, _text(data, "description", name), _text(data, "source", name), distinct(shapes, name))


def parse_shape(text: object, where: str = "") -> Shape:
    """Read `MxNxK`; `where` starts the message if that fails.

    Raises:
        ShapeError: it is not three positive integers joined by `x`.
    """
    match = _SHAPE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        prefix = f"{where}: " if where else ""
        raise ShapeError(f"{prefix}{text!r} is not a shape; write MxNxK with positive integers, as in 4096x4096x64")
    return Shape(*(int(side) for side in match.groups()))


def distinct(shapes: list[Shape], where: str) -> tuple[Shape, ...]:
    """The shapes as they are, since a set must hold at least one and none twice.

    Raises:
        ShapeError: it does not.
    """
    if not shapes:
        raise ShapeError(f"{where} holds no shape")
    seen: set[Shape] = set()
    for shape in shapes:
        if shape in seen:
            raise ShapeError(f"{where} holds {shape} twice")
        seen.add(shape)
    return tuple(shapes)


def _product(item: object, where: str) -> list[Shape]:
    if not isinstance(item, dict):
        raise ShapeError(f"{where}: an entry of products is not a table")
    _only(item, {"source", "m", "n", "k", "nk"}, where)
    if ("nk" in item) == ("n" in item or "k" in item):
        raise ShapeError(f"{where}: a product has the lists m, n and k, or m and nk")
    if "nk" in item:
        pairs = [tuple(_sides(pair, where)) for pair in _list(item, "nk", where)]
    else:
        pairs = list(itertools.product(_sides(item.get("n"), where), _sides(item.get("k"), where)))
    if any(len(pair) != 2 for pair in pairs):
        raise ShapeError(f"{where}: nk holds pairs [n, k]")
    return [Shape(m, n, k) for m in _sides(item.get("m"), where) for n, k in pairs]


def _sides(value: object, where: str) -> list[int]:
    if not isinstance(value, list) or not value:
        raise ShapeError(f"{where}: {value!r} is not a list of sides")
    for side in value:
        if type(side) is not int or not 1 <= side <= MAX_SIDE:
            raise ShapeError(f"{where}: {side!r} is not a side; sides are integers from 1 to {MAX_SIDE}")
    return value


def _list(data: dict[str, Any], key: str, where: str) -> list[Any]:
    value = data.get(key, [])
    if not isinstance(value, list):
        raise ShapeError(f"{where}: {key} is not a list")
    return value


def _text(data: dict[str, Any], key: str, where: str) -> str:
    value = data.get(key, "")
    if not isinstance(value, str):
        raise ShapeError(f"{where}: {key} is not a string")
    return value.strip()


def _only(data: dict[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(data) - known)
    if unknown:
        raise ShapeError(f"{where}: unknown key {unknown[0]!r}; a set has {', '.join(sorted(known))}")
