"""`hgemm new`: start a submission from a template."""

from __future__ import annotations

import shutil
from enum import StrEnum
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError

from harness.model import DataError, InfraError, Name

SUFFIX = ".j2"


class Target(StrEnum):
    """Templates, by what they run on."""

    CPU = "cpu"
    """Host C."""
    SM_90A = "sm_90a"
    """CUDA C++ for Hopper."""


def new(
    name: Annotated[str, typer.Argument(help="Name of the submission: lower case, digits, '.', '_', '-'.", show_default=False)],
    target: Annotated[Target, typer.Option(help="What it runs on.")] = Target.CPU,
    output: Annotated[Path, typer.Option(help="Where its directory is made.")] = Path(),
) -> None:
    """Start a submission: a manifest, a plan and a small kernel that is right for every shape, to be made fast."""
    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError as error:
        raise DataError(f"{name!r} is no name; write lower case letters, digits, '.', '_' and '-', as in my-kernel.") from error
    directory = output / name
    if directory.exists():
        raise DataError(f"{directory} exists already; choose another name or --output.")
    files = render(target, name)
    try:
        for path, text in files.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_text(text, encoding="utf-8")
    except OSError as error:
        shutil.rmtree(directory, ignore_errors=True)
        raise InfraError(f"{directory} cannot be written ({error.strerror}); choose another --output.") from error
    for path in files:
        typer.echo(directory / path)
    typer.echo(f"next: hgemm check {directory}", err=True)


def render(target: Target, name: str) -> dict[str, str]:
    """The files of a fresh submission, by path inside it."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    root = resources.files("harness").joinpath("templates", target.value)
    return {
        path.removesuffix(SUFFIX): environment.from_string(text).render(name=name, target=target.value)
        for path, text in sorted(_files(root).items())
    }


def _files(folder: Traversable) -> dict[str, str]:
    """Texts of all templates below a folder, by path inside it."""
    found = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            found.update({f"{entry.name}/{path}": text for path, text in _files(entry).items()})
        elif entry.name.endswith(SUFFIX):
            found[entry.name] = entry.read_text(encoding="utf-8")
    return found
