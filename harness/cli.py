"""The command line `hgemm`. Commands are imported only when they are used, so that every one starts at once."""

from __future__ import annotations

import importlib
import sys
from typing import NamedTuple

import typer

from harness.model import HgemmError

PACKAGES = ("harness", "agents", "leaderboard", "shapes")


class Command(NamedTuple):
    """A command that is not imported yet."""

    target: str
    """`module:function`, or `module:app` for a group."""
    help: str
    """One line."""


COMMANDS = {
    "run": Command("harness.commands.run:run", "Verify and time a submission over a set of shapes."),
    "check": Command("harness.commands.check:check", "Check a submission: manifest, plan, build, verification."),
    "show": Command("harness.commands.show:show", "Show a run."),
    "new": Command("harness.commands.new:new", "Start a submission from a template."),
    "build": Command("harness.commands.build:build", "Build every kernel that a submission needs; no device needed."),
    "shapes": Command("harness.commands.shapes:shapes", "List and describe the sets of shapes."),
    "doctor": Command("harness.commands.doctor:doctor", "Test this machine and its instrument, and say what is missing."),
    "cache": Command("harness.commands.cache:app", "Look at the build cache, or prune it."),
    "schema": Command("harness.commands.schema:schema", "Print the JSON Schema of a file format."),
}


def main() -> None:
    """Run the command line; never returns."""
    try:
        _refuse_strangers()
        build_app(sys.argv[1] if len(sys.argv) > 1 else "")()
    except HgemmError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output (head, a pager) has seen enough.
        sys.stderr.close()
        sys.exit(0)


def build_app(wanted: str) -> typer.Typer:
    """The application with the wanted command imported and the others by name only."""
    app = typer.Typer(
        name="hgemm",
        help="Honest, fast benchmarking of half-precision matrix-multiply (HGEMM) kernels.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        epilog="Exit codes: 0 verified, 1 rejected, 2 usage, 3 machine at fault, 4 incomplete, 130 interrupted.",
    )
    for name, command in COMMANDS.items():
        if name != wanted:
            app.command(name, help=command.help)(_unused)
            continue
        module, attribute = command.target.split(":")
        target = getattr(importlib.import_module(module), attribute)
        if isinstance(target, typer.Typer):
            app.add_typer(target, name=name, help=command.help)
        else:
            app.command(name)(target)
    return app


def _unused() -> None:
    """Stand-in for a command that was not asked for."""


def _refuse_strangers() -> None:
    """Refuse to run where another distribution installs a package of the same name over ours (openai-agents: `agents`).

    Raises:
        HgemmError: names the distribution and the mend.
    """
    from importlib.metadata import packages_distributions

    providers = packages_distributions()
    for package in PACKAGES:
        others = sorted(set(providers.get(package, ())) - {"hgemm-arena"})
        if others:
            raise HgemmError(
                f"the package {package!r} is also installed by {', '.join(others)}, which breaks both; "
                f"install hgemm-arena in an environment of its own, or: pip uninstall {' '.join(others)}"
            )
