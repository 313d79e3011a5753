"""Commands of the leaderboard: `hgemm rank`, `publish`, `submit`, `report`, `import` and `board`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from harness.commands.runs import ThisRun, find_run
from harness.model import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.table import Table

    from leaderboard.ranking import Entry, Ranking
    from leaderboard.store import Board, Progress, Published

T = TypeVar("T")

Url = Annotated[
    str | None,
    typer.Option("--database", help="URL or file of the board; default $HGEMM_DATABASE, else in the cache folder."),
]
Reason = Annotated[str, typer.Option(help="Why, for everybody to read.")]
Meant = Annotated[str, typer.Argument(help="Name, name@version, or the start of its hash.")]

COLUMNS = ("submission", "authors", "geomean", "95 % interval", "total time", "wins", "verified", "runs")
WIDE_ONLY = {"authors", "total time", "wins"}

board_app = typer.Typer(invoke_without_command=True)
import_app = typer.Typer(no_args_is_help=True)


def rank(
    device: Annotated[str | None, typer.Option(help="Device profile, as in h200.")] = None,
    track: Annotated[str | None, typer.Option(help="f32 or f16.")] = None,
    kind: Annotated[str | None, typer.Option(help="device or native.")] = None,
    mode: Annotated[str | None, typer.Option(help="offline or server.")] = None,
    l2_state: Annotated[str | None, typer.Option("--l2", help="cold or warm.")] = None,
    baseline: Annotated[str | None, typer.Option(help="best, or one baseline.")] = None,
    shapes: Annotated[str | None, typer.Option(help="Name of the set of shapes, or the start of its hash.")] = None,
    protocol: Annotated[str | None, typer.Option(help="Version of the measurement protocol.")] = None,
    cublas: Annotated[str | None, typer.Option(help="cuBLAS, major.minor.")] = None,
    driver: Annotated[str | None, typer.Option(help="Driver, major.minor.")] = None,
    origin: Annotated[str | None, typer.Option(help="operator or reported.")] = None,
    database: Url = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Rank submissions. What no option names is the usual: offline, cold, best, and the list with the most runs.

    A list holds what is comparable; anything else that differs makes another list.
    """
    from leaderboard.queries import choose_list, lists, ranking

    asked = {
        "device": device,
        "track": track,
        "kind": kind,
        "mode": mode,
        "l2_state": l2_state,
        "baseline": baseline,
        "shapes": shapes,
        "protocol": protocol,
        "cublas": cublas,
        "driver": driver,
        "origin": origin,
    }
    with _open(database) as board:
        found = ranking(board, choose_list(board, **{name: value for name, value in asked.items() if value is not None}))
        others = len(lists(board)) - 1
    if json:
        typer.echo(found.model_dump_json(indent=2))
    else:
        _print_ranking(found, others)


def publish(
    run: ThisRun,
    origin: Annotated[str, typer.Option(help="operator, or reported: measured by somebody else.")] = "operator",
    source: Annotated[str, typer.Option(help="Where a reported run comes from.")] = "",
    database: Url = None,
) -> None:
    """Put a finished run on the board, once its files, figures and baselines have been checked."""
    from leaderboard.ranking import Origin

    if origin not in set(Origin):
        raise DataError(f"the origin of a run is operator or reported, not {origin!r}.")
    with _open(database) as board:
        _print_published(board.publish(find_run(run), Origin(origin), source))


def submit(
    submission: Annotated[Path, typer.Argument(help="Directory of the submission.")],
    shapes: Annotated[str | None, typer.Option(help="A set, a file, or MxNxK,…; default grid1000, on a CPU cpu.")] = None,
    device: Annotated[str, typer.Option(help="auto: every model of device here that it targets; or cpu, cuda:0, …")] = "auto",
    output: Annotated[Path, typer.Option(help="Where the run's directory is made.")] = Path("runs"),
    database: Url = None,
) -> None:
    """Check a submission, measure it on the devices here, and publish what came out.

    Exit codes: 0 published and verified, 1 rejected (by the check: not published), 3 the machine failed, 4 unsupported shapes.
    """
    from harness.commands.run import exit_code
    from harness.run import Run
    from leaderboard.submitting import measure, targets

    code = 0
    with _open(database) as board:
        for choice in targets(submission, device):
            path = measure(submission, choice, shapes, output)
            _print_published(board.publish(path))
            code = max(code, exit_code(list(Run.read(path).latest().values()), 0))
    sys.exit(code)


def report(
    run: ThisRun,
    output: Annotated[Path | None, typer.Option(help="Directory of the report; default report-NAME.")] = None,
    png: Annotated[bool, typer.Option(help="Also write the charts as PNG, where a browser is here.")] = True,
) -> None:
    """Write a run as one HTML page that needs no server, with its charts as PNG beside it."""
    from harness.run import Run
    from leaderboard.links import NoLinks
    from leaderboard.pictures import browser, write_pictures
    from leaderboard.report import render, run_figures, run_page, write
    from leaderboard.run_content import RunContent

    found = Run.read(find_run(run))
    directory = output or Path(f"report-{found.header.name}")
    content = RunContent.of(found)
    page = run_page(content, NoLinks())
    write(directory / "report.html", render(page))
    typer.echo(directory / "report.html")
    if png and browser() is None:
        typer.echo("no PNG: no Chromium or Chrome is on PATH (Debian: apt-get install chromium)", err=True)
    elif png:
        for path in write_pictures(run_figures(content), directory, page.title):
            typer.echo(path)


@import_app.callback()
def import_() -> None:
    """Take in what others publish, for the Published page; never ranked."""


@import_app.command("published")
def import_published(
    table: Annotated[Path, typer.Argument(help="CSV: `mnk` with 64_128_256, and a column of speedups per baseline.")],
    source: Annotated[str | None, typer.Option(help="Where it was published; default the name of the file.")] = None,
    kernel: Annotated[str | None, typer.Option(help="Whose speedups they are; default from the file's name.")] = None,
    device: Annotated[str | None, typer.Option(help="Device that they measured on; default from the file's name.")] = None,
    track: Annotated[str | None, typer.Option(help="f32 or f16; default from the file's name.")] = None,
    mode: Annotated[str | None, typer.Option(help="offline or server; default from the file's name.")] = None,
) -> None:
    """Take in a table of speedups per shape that others report."""
    from harness.importers.published import guess_from_name, read_table, reported
    from leaderboard.published import store

    told = {"device": device, "track": track, "mode": mode, "source": source, "kernel": kernel}
    about = reported({**guess_from_name(table), **{name: text for name, text in told.items() if text is not None}})
    found = read_table(table, about)
    store(found)
    means = ", ".join(f"{name} {found.arithmetic_mean(name):.3f}" for name in found.baselines)
    typer.echo(f"{found.title}: {len(found.shapes)} shapes, reported, not measured here")
    typer.echo(f"arithmetic means: {means}")


@board_app.callback()
def board(
    context: typer.Context,
    database: Url = None,
    port: Annotated[int, typer.Option(help="Port of the app.", min=1, max=65535)] = 8501,
    host: Annotated[str, typer.Option(help="Address that the app listens on; 0.0.0.0 shows it to the network.")] = "localhost",
) -> None:
    """Open the board as an app in the browser; or one of the commands below."""
    if context.invoked_subcommand is None:
        from leaderboard.serving import serve

        _open(database).close()
        typer.echo(f"the board is at http://{host}:{port}; stop it with Ctrl-C", err=True)
        sys.exit(serve(database, port, (f"--server.address={host}",)))


@board_app.command()
def export(
    directory: Annotated[Path, typer.Argument(help="New, empty, or an earlier export, which is replaced.")],
    database: Url = None,
) -> None:
    """Write the board as a static site: no server, for GitHub Pages."""
    from leaderboard.export import Site

    with _open(database) as board:
        pages = _with_progress(lambda progress: Site(board, directory, progress).export())
    typer.echo(f"{directory / 'index.html'} and {pages - 1} more pages", err=True)


@board_app.command()
def rebuild(
    directories: Annotated[list[Path] | None, typer.Argument(help="That hold runs; default those of the board.")] = None,
    database: Url = None,
) -> None:
    """Make the board anew from run directories and the journals beside them."""
    with _open(database) as board:
        found = _with_progress(lambda progress: board.rebuild(directories or (), progress))
    for refusal in found.refused:
        typer.echo(f"left out: {refusal.because}", err=True)
    for path in found.unpublished:
        typer.echo(f"not published: {path} (hgemm publish {path})", err=True)
    from harness.commands.tables import plural

    typer.echo(f"{plural(len(found.published), 'run')} on the board")


@board_app.command()
def withdraw(submission: Meant, reason: Reason, database: Url = None) -> None:
    """Take a submission off the lists; its author's previous best stands again."""
    with _open(database) as board:
        _print_verdict("withdrawn", board.withdraw(submission, reason))


@board_app.command()
def cheating(submission: Meant, reason: Reason, database: Url = None) -> None:
    """Mark a submission's code as cheating, under whatever name it was or will be published."""
    with _open(database) as board:
        _print_verdict("marked as cheating", board.mark_cheating(submission, reason))


@board_app.command()
def reinstate(submission: Meant, reason: Reason, database: Url = None) -> None:
    """Take the verdicts on a submission back."""
    with _open(database) as board:
        _print_verdict("reinstated", board.reinstate(submission, reason))


def _open(database: str | None) -> Board:
    """The board; a progress bar while shipped runs are new to it."""
    from leaderboard.store import Board

    return _with_progress(lambda progress: Board.open(database, progress))


def _with_progress(work: Callable[[Progress], T]) -> T:
    """Do something that tells its progress, shown on standard error where that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("runs", visible=False)
        return work(lambda done, total, what: bar.update(task, completed=done, total=total, description=what, visible=True))


def _print_published(published: Published) -> None:
    typer.echo(f"{published.run} {'published' if published.added else 'was published already'}", err=True)
    typer.echo(published.permalink)


def _print_verdict(what: str, trees: tuple[str, ...]) -> None:
    for tree in trees:
        typer.echo(f"{tree[:12]} {what}")


def _print_ranking(found: Ranking, others: int) -> None:
    from harness.commands.tables import plural, say, stdout

    console, key = stdout(), found.key
    libraries = f"cuBLAS {key.cublas}, driver {key.driver}" if key.cublas else f"kernel {key.driver}"
    say(console, f"{found.device_name}, track {key.track}, kind {key.kind}, {key.mode}/{key.l2_state}, against {key.baseline}")
    say(console, f"shapes {found.shape_set} ({key.shapes_sha256[:12]}), protocol {key.protocol}, {libraries}, {key.origin}")
    if found.ranked:
        console.print(entry_table(console.width, "rank", [(str(entry.rank), entry) for entry in found.ranked]))
    else:
        say(console, "Nothing ranks here.")
    if found.apart:
        console.print(entry_table(console.width, "apart", [(entry.standing.value, entry) for entry in found.apart]))
        for entry in found.apart:
            say(console, f"{entry.name} {entry.version} {entry.standing.value}: {entry.because}")
    if others:
        say(console, f"The board has {plural(others, 'other list')}: `hgemm rank --help` names what tells them apart.")


def entry_table(width: int, head: str, entries: Iterable[tuple[str, Entry]]) -> Table:
    """One line per entry; on a narrow terminal fewer columns, so that what an entry is and its score are whole."""
    from harness.commands.tables import PIPE_WIDTH, plain_table

    shown = [place for place, column in enumerate(COLUMNS) if column not in WIDE_ONLY or width >= PIPE_WIDTH]
    table = plain_table(head, *(COLUMNS[place] for place in shown))
    for column in table.columns[:2]:
        column.no_wrap = True
    for standing, entry in entries:
        cells = _cells(entry)
        table.add_row(standing, *(cells[place] for place in shown))
    return table


def _cells(entry: Entry) -> tuple[str, ...]:
    badges = "".join(f" [{badge}]" for badge in entry.badges)
    figures = ("", "", "", "")
    if entry.geomean is not None and entry.total_time is not None and entry.win_rate is not None:
        interval = f"{entry.geomean.low:.4f} to {entry.geomean.high:.4f}"
        figures = (f"{entry.geomean.value:.4f}", interval, f"{entry.total_time:.3f}", f"{entry.win_rate:.0%}")
    runs = "1 run only" if entry.single_run else str(len(entry.runs))
    verified = f"{entry.verified}/{entry.shapes}"
    return f"{entry.name} {entry.version}{badges}", ", ".join(entry.authors), *figures, verified, runs
