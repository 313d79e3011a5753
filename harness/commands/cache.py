"""`hgemm cache`: what the build cache holds, and pruning it."""

from __future__ import annotations

import re
import time
from typing import Annotated

import typer

from harness.model import DataError

app = typer.Typer(no_args_is_help=True)

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


@app.command()
def info(json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False) -> None:
    """Say where the cache is, and how much it holds."""
    from harness.cache import Cache

    found = Cache.default().info()
    if json:
        typer.echo(found.model_dump_json(indent=2))
        return
    typer.echo(found.directory)
    unused = "" if found.oldest_use_unix_s is None else f", unused for up to {_days(time.time() - found.oldest_use_unix_s)}"
    typer.echo(f"{found.entries} built kernels, {_size(found.size_bytes)}{unused}")
    if found.temporary_bytes:
        typer.echo(f"{_size(found.temporary_bytes)} of running or killed builds (`hgemm cache prune` removes old ones)")


@app.command()
def prune(
    older_than: Annotated[float, typer.Option(help="Remove kernels that were not used for this many days.", min=0)] = 30.0,
    max_size: Annotated[str | None, typer.Option(help="Then remove the least recently used ones over this, as in 2G.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """Remove kernels that were not used for a while, and what killed builds left behind."""
    from rich.console import Console

    from harness.cache import Cache

    limit = None if max_size is None else _bytes(max_size)
    done = Cache.default().prune(max_bytes=limit, older_than_s=older_than * 86400)
    if json:
        typer.echo(done.model_dump_json(indent=2))
        return
    left = f" and {done.removed_temporaries} of killed builds" if done.removed_temporaries else ""
    text = f"removed {done.removed_entries} built kernels{left}, {_size(done.freed_bytes)}, from {done.directory}"
    Console(stderr=True).print(text, highlight=False, markup=False, soft_wrap=True)


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise DataError(f"{text!r} is not a size; write a number of bytes with K, M, G or T, as in 2G.")
    return int(float(found[1]) * (1 << _UNITS[found[2].upper()]))


def _size(count: int) -> str:
    """Bytes for a person."""
    for unit, shift in reversed(_UNITS.items()):
        if count >= 1 << shift and unit:
            return f"{count / (1 << shift):.1f} {unit}iB"
    return f"{count} bytes"


def _days(seconds: float) -> str:
    return f"{max(seconds, 0.0) / 86400:.1f} days"
