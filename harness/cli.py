"""The command line `hgemm`. Commands are imported only when they are used, so that every one starts at once."""

from __future__ import annotations

import importlib
import io
import os
import sys
from importlib.metadata import version
from typing import Annotated, Any, NamedTuple, TextIO

import typer

from harness.installation import strangers
from harness.model import DataError, HgemmError, InfraError, printable

INTERRUPTED = 130
RESULTS = 1
"""Descriptor of standard output."""
USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""What typer raises for a command line that it cannot read. It has no public name in every version of typer."""


class Command(NamedTuple):
    """A command that is not imported yet."""

    target: str
    """`module:function`, or `module:app` for a group."""
    help: str
    """One line."""


COMMANDS = {
    "run": Command("harness.commands.run:run", "Verify and time a submission over a set of shapes."),
    "check": Command("harness.commands.check:check", "Check a submission: manifest, plan, build, verification."),
    "audit": Command("harness.commands.audit:audit", "Ask of a submission what a reviewer would, on hidden shapes too."),
    "show": Command("harness.commands.show:show", "Show a run."),
    "new": Command("harness.commands.new:new", "Start a submission from a template."),
    "build": Command("harness.commands.build:build", "Build every kernel that a submission needs; no device needed."),
    "shapes": Command("harness.commands.shapes:shapes", "List and describe the sets of shapes."),
    "doctor": Command("harness.commands.doctor:doctor", "Test this machine and its instrument, and say what is missing."),
    "cache": Command("harness.commands.cache:app", "Look at the build cache, or prune it."),
    "saturate": Command("harness.commands.saturate:saturate", "Find the highest rate of arrivals that meets a bound on p99."),
    "replay": Command("harness.commands.replay:replay", "Measure one shape of a run again, from its stored seed."),
    "compare": Command("harness.commands.compare:compare", "Compare two runs shape by shape."),
    "gate": Command("harness.commands.gate:gate", "Gate on a pinned baseline: has a submission become slower?"),
    "submit": Command("leaderboard.commands:submit", "Check a submission, measure it on the devices here, and publish it."),
    "publish": Command("leaderboard.commands:publish", "Put a finished run on the board."),
    "rank": Command("leaderboard.commands:rank", "Rank the submissions on the board."),
    "report": Command("leaderboard.commands:report", "Write a run as one HTML page and its charts as PNG."),
    "import": Command("leaderboard.commands:import_app", "Take in figures that others publish; never ranked."),
    "board": Command("leaderboard.commands:board_app", "Open the board as an app; rebuild it; withdraw submissions."),
    "search": Command("agents.commands:search", "Measure many kernel configurations over many shapes; resumable."),
    "export": Command("agents.commands:export", "Write a submission of the best configurations."),
    "schema": Command("harness.commands.schema:schema", "Print the JSON Schema of a file format."),
}

FORMATS = {
    "ranking": "leaderboard.ranking:Ranking",
    "board-event": "leaderboard.journal:Event",
    "search-segment": "agents.journal:Segment",
    "search-heat": "agents.journal:Heat",
    "search-final": "agents.journal:Final",
}
"""Formats of these packages, for `hgemm schema`: per name, where the model is."""


def main() -> None:
    """Run the command line; never returns."""
    _open_outputs()
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    try:
        if wanted != "doctor":  # which says so itself, among the rest
            _refuse_strangers()
        try:
            code = build_app(wanted)(standalone_mode=False)
        finally:
            sys.stdout.flush()
        if code == INTERRUPTED:  # typer made a number of it
            raise KeyboardInterrupt
        sys.exit(code or 0)
    except HgemmError as error:
        typer.echo(f"error: {printable(str(error))}", err=True)
        sys.exit(error.exit_code)
    except USAGE_ERROR as error:
        sys.exit(_explain_usage(error))
    except OSError as error:
        what, why = printable(str(error.filename or "a file")), error.strerror or error
        typer.echo(f"error: {what} cannot be used ({why}); mend that and try again.", err=True)
        sys.exit(InfraError.exit_code)


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
    app.callback()(_options)
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


class _Patient(io.FileIO):
    """An output whose reader may leave (head, a pager): the rest goes nowhere, and the command ends with its own exit code.

    Of what cannot be written otherwise only results count: a progress line is no reason to give up a run.
    """

    _gone = False

    def write(self, data: Any, /) -> int:
        if not self._gone:
            try:
                return super().write(data)
            except OSError as error:
                self._gone = True
                if self.fileno() == RESULTS and not isinstance(error, BrokenPipeError):
                    raise OSError(error.errno, error.strerror, "standard output") from error
        return len(data)


def _open_outputs() -> None:
    """Make both outputs patient; one that cannot show "µ" shows "?" instead of failing, and a closed one is /dev/null."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # Else the next file that is opened would be standard output. The lowest free number is taken.
            os.open(os.devnull, os.O_RDWR)
    sys.stdout, sys.stderr = (_patient(stream, descriptor) for descriptor, stream in ((1, sys.stdout), (2, sys.stderr)))


def _patient(stream: TextIO | None, descriptor: int) -> TextIO:
    encoding = "utf-8" if stream is None else stream.encoding
    buffered = io.BufferedWriter(_Patient(descriptor, "w", closefd=False))
    return io.TextIOWrapper(buffered, encoding, "replace", line_buffering=descriptor != RESULTS or buffered.isatty())


def _unused() -> None:
    """Stand-in for a command that was not asked for."""


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hgemm-arena {version('hgemm-arena')}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Honest, fast benchmarking of half-precision matrix-multiply (HGEMM) kernels."""


def _explain_usage(error: Exception) -> int:
    """Say on one line what is wrong with the command line; a group without a command has its help printed already."""
    if type(error).__name__ != "NoArgsIsHelpError":
        said = " ".join(getattr(error, "format_message", error.__str__)().split()).rstrip(".")
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "hgemm"
        typer.echo(f"error: {said} (`{command} --help` shows what there is)", err=True)
    return DataError.exit_code


def _refuse_strangers() -> None:
    """Refuse to run where another distribution installs a package of the same name over ours.

    Raises:
        HgemmError: names the distribution and the mend.
    """
    for package, others in strangers().items():
        raise HgemmError(
            f"the package {package!r} is also installed by {', '.join(others)}, which breaks both; "
            f"install hgemm-arena in an environment of its own, or: pip uninstall {' '.join(others)}"
        )
