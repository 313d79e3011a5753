"""The leaderboard's commands: what they print, how they end, and that all print the one ranking."""

from __future__ import annotations

import json
import shutil
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from runs import Recipe, cpu_recipe, make_run
from typer.testing import CliRunner, Result

from harness.cli import COMMANDS, build_app
from harness.devices import SubmissionFault
from harness.model import DataError
from harness.record import Status
from harness.run import Run
from leaderboard import serving, store
from leaderboard.commands import COLUMNS, entry_table
from leaderboard.database import Database
from leaderboard.journal import read_events
from leaderboard.queries import choose_list, ranking, runs
from leaderboard.ranking import Ranking
from leaderboard.store import Board

ROOT = Path(__file__).resolve().parent.parent
SMALL = Recipe(shapes="64x64x64,128x64x64")


@pytest.fixture(autouse=True)
def database(monkeypatch: pytest.MonkeyPatch, board_url: str) -> None:
    """An empty board for every command, without the shipped runs."""
    monkeypatch.setenv("HGEMM_DATABASE", board_url)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(store, "shipped", list)


def hgemm(*arguments: object) -> Result:
    """A command in this process; what it raises is raised."""
    command, *rest = map(str, arguments)
    result = CliRunner().invoke(build_app(command), [command, *rest])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def publish_mixed(parent: Path) -> dict[str, Path]:
    """Runs of several standings."""
    recipes = {
        "fast": SMALL.but(name="fast", author="Ada [Lovelace]", code="fast", speedup=1.2),
        "slow": SMALL.but(name="slow", code="slow", speedup=0.8, noise=0.0),
        "wrong": SMALL.but(name="wrong", code="wrong", statuses={"64x64x64": Status.REJECTED}),
        "partial": SMALL.but(name="partial", code="partial", statuses={"64x64x64": Status.UNSUPPORTED}),
        "cpu": cpu_recipe(name="cpu", shapes="64x64x64"),
    }
    paths = {name: make_run(parent, recipe) for name, recipe in recipes.items()}
    for path in paths.values():
        hgemm("publish", path)
    return paths


def test_publish_prints_the_permalink_alone_and_again_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HGEMM_BOARD_URL", "https://board.example/")
    path = make_run(tmp_path, SMALL)
    for said in ("published", "was published already"):
        result = hgemm("publish", path)
        assert result.exit_code == 0
        assert result.stdout == f"https://board.example/submission?run={path.name}\n"
        assert result.stderr == f"{path.name} {said}\n"


def test_an_unknown_origin_and_an_empty_board_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="operator or reported, not 'mine'"):
        hgemm("publish", make_run(tmp_path, SMALL), "--origin", "mine")
    with pytest.raises(DataError, match="the board is empty; publish a run with: hgemm publish"):
        hgemm("rank")


def test_rank_prints_the_one_ranking(tmp_path: Path, board_url: str) -> None:
    publish_mixed(tmp_path)
    with Board(Database.open(board_url)) as board:
        for filters in ({}, {"device": "cpu"}, {"baseline": "cublas"}, {"kind": "native"}):
            expected = ranking(board, choose_list(board, **filters))
            options = [text for name, value in filters.items() for text in (f"--{name}", value)]
            assert Ranking.model_validate_json(hgemm("rank", *options, "--json").stdout) == expected
            shown = hgemm("rank", *options).stdout
            order = [entry.name for entry in (*expected.ranked, *expected.apart)]
            found = [line.split()[1] for line in shown.splitlines() if line.split()[1:2] and line.split()[1] in order]
            assert found == order
            for entry in expected.apart:
                assert f"{entry.name} {entry.version} {entry.standing}: {entry.because}" in shown


def test_rank_shows_intervals_ranges_runs_and_what_is_apart(tmp_path: Path) -> None:
    publish_mixed(tmp_path)
    shown = hgemm("rank").stdout
    first = next(line for line in shown.splitlines() if "fast" in line)
    assert first.startswith("1 ")
    assert "Ada [Lovelace]" in first
    assert "2/2" in first
    assert "1 run only" in first
    assert "NVIDIA H200, track f32, kind device, offline/cold, against best" in shown
    assert "cuBLAS 13.1, driver 580.159, operator" in shown
    assert "wrong 1.0.0 rejected: 1 of 2 shapes were rejected in wrong-h200" in shown
    assert "partial 1.0.0 incomplete: 1 of 2 shapes are verified, 1 not supported" in shown
    assert "Nothing ranks here." in hgemm("rank", "--device", "cpu").stdout


def test_a_narrow_terminal_gets_fewer_columns_instead_of_cut_figures(tmp_path: Path, board_url: str) -> None:
    publish_mixed(tmp_path)
    with Board(Database.open(board_url)) as board:
        entries = [("1", entry) for entry in ranking(board, choose_list(board)).ranked]
    console = Console(width=80, record=True, file=StringIO())
    console.print(entry_table(80, "rank", entries))
    text = console.export_text()
    assert "…" not in text
    assert [f"{entry.geomean.value:.4f}" in text for _, entry in entries if entry.geomean] == [True] * len(entries)
    assert {column.header for column in entry_table(200, "rank", entries).columns} == {"rank", *COLUMNS}


def test_verdicts_by_command(tmp_path: Path) -> None:
    publish_mixed(tmp_path)
    assert hgemm("board", "withdraw", "fast", "--reason", "an error").stdout.endswith("withdrawn\n")
    assert "fast 1.0.0 withdrawn: an error" in hgemm("rank").stdout
    assert hgemm("board", "cheating", "slow@1.0.0", "--reason", "caches").stdout.endswith("marked as cheating\n")
    assert "Nothing ranks here." in hgemm("rank").stdout
    hgemm("board", "reinstate", "fast", "--reason", "none after all")
    assert json.loads(hgemm("rank", "--json").stdout)["ranked"][0]["name"] == "fast"
    assert [event.kind.value for event in read_events(tmp_path)][-3:] == ["withdrawn", "cheating", "reinstated"]


def test_rebuild_by_command_names_what_it_leaves_out(tmp_path: Path) -> None:
    paths = publish_mixed(tmp_path)
    before = hgemm("rank", "--json").stdout
    (paths["cpu"] / "run.json").write_text("{}")
    stray = make_run(tmp_path, SMALL.but(name="stray"))
    result = hgemm("board", "rebuild")
    assert result.stdout == "4 runs on the board\n"
    assert f"left out: {paths['cpu'] / 'run.json'} is not valid" in result.stderr
    assert f"not published: {stray} (hgemm publish {stray})" in result.stderr
    assert hgemm("rank", "--json").stdout == before
    assert hgemm("board", "rebuild", tmp_path).stdout == result.stdout


@pytest.mark.parametrize("board_url", ["sqlite"], indirect=True)
def test_board_alone_makes_the_board_and_starts_the_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[object, ...]] = []
    monkeypatch.setattr(serving, "serve", lambda database, port, options: called.append((database, port, *options)) or 7)
    assert hgemm("board", "--port", "1234", "--database", tmp_path / "x.sqlite").exit_code == 7
    assert called == [(str(tmp_path / "x.sqlite"), 1234, "--server.address=localhost")]
    assert (tmp_path / "x.sqlite").is_file()


@pytest.mark.parametrize("board_url", ["sqlite"], indirect=True)
def test_submit_checks_measures_publishes_and_prints_the_permalink(tmp_path: Path, board_url: str) -> None:
    submission = ROOT / "submissions" / "cpu-blocked"
    result = hgemm("submit", submission, "--shapes", "16x16x16", "--output", tmp_path / "runs", "--device", "cpu")
    assert result.exit_code == 0
    (path,) = [each for each in (tmp_path / "runs").iterdir() if each.is_dir()]
    assert result.stdout.endswith(f"/submission?run={path.name}\n")
    assert Run.read(path).complete
    with Board(Database.open(board_url)) as board:
        assert [run.run for run in runs(board)] == [path.name]


@pytest.mark.parametrize("board_url", ["sqlite"], indirect=True)
def test_submit_of_a_wrong_kernel_times_and_publishes_nothing(tmp_path: Path) -> None:
    submission = tmp_path / "wrong"
    shutil.copytree(ROOT / "submissions" / "cpu-naive", submission)
    (source,) = (submission / "kernels").iterdir()
    source.write_text(source.read_text().replace("+=", "-="))
    with pytest.raises(SubmissionFault, match="rejected at 16x16x16") as caught:
        hgemm("submit", submission, "--shapes", "16x16x16", "--output", tmp_path / "runs", "--device", "cpu")
    assert caught.value.exit_code == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("board_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("command", ["rank", "publish", "submit", "board"])
def test_commands_are_mounted_by_their_import_string(command: str) -> None:
    assert COMMANDS[command].target.startswith("leaderboard.commands:")
    assert COMMANDS[command].help
    assert hgemm(command, "--help").exit_code == 0
