"""Queries: the same figures as in the runs, a fixed number of statements whatever the board holds, and empty boards."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import synthetic
from boards import statements
from runs import COLD, WARM, Recipe, cpu_recipe, make_run

from harness.model import DataError
from harness.profiles import load_profile
from harness.record import SUBMISSION, L2State, Mode, Status
from harness.run import Run
from harness.scores import BEST, Regime, score
from harness.submission import Submission
from leaderboard.documents import archive
from leaderboard.links import NoLinks
from leaderboard.queries import choose_list, history, lists, ranking, run_details, run_scores, runs, submission_files
from leaderboard.sentences import describe_unmeasured
from leaderboard.shape_queries import at_shape, shape_details, shape_rows, verifications
from leaderboard.store import Board
from leaderboard.unmeasured import unmeasured
from leaderboard.views import shape_table

RECIPE = Recipe(shapes="64x64x64,128x64x64,4096x4096x64", measures=(COLD, WARM))


ALL_QUERIES: dict[str, tuple[Callable[[Board, str, str], object], int]] = {
    "lists": (lambda board, run, tree: lists(board), 1),
    "ranking": (lambda board, run, tree: ranking(board, choose_list(board)), 3),
    "history": (lambda board, run, tree: history(board, choose_list(board)), 3),
    "runs": (lambda board, run, tree: runs(board), 1),
    "run": (lambda board, run, tree: run_details(board, run), 1),
    "scores": (lambda board, run, tree: run_scores(board, run), 1),
    "files": (lambda board, run, tree: submission_files(board, tree), 1),
    "shapes": (lambda board, run, tree: shape_rows(board, run, COLD), 1),
    "shape": (lambda board, run, tree: shape_details(board, run, "64x64x64"), 1),
    "at shape": (lambda board, run, tree: at_shape(board, choose_list(board), "64x64x64"), 2),
    "verifications": (lambda board, run, tree: verifications(board, run), 1),
    "revision": (lambda board, run, tree: board.revision(), 1),
}


@pytest.mark.parametrize("name", ALL_QUERIES)
@pytest.mark.parametrize("submissions", [1, 25])
def test_statements_do_not_grow_with_the_board(board: Board, name: str, submissions: int) -> None:
    synthetic.fill(board, submissions, "quick" if submissions == 1 else "64x64x64,128x64x64")
    query, expected = ALL_QUERIES[name]
    newest = runs(board)[0]
    with statements(board) as sent:
        found = query(board, newest.run, newest.tree_sha256)
    assert found
    assert len(sent) == expected, sent


def test_a_ranking_loads_a_run_once_and_of_its_regimes_the_figure_alone(board: Board) -> None:
    synthetic.fill(board, 20, "quick")
    key = choose_list(board)
    with statements(board) as sent:
        found = ranking(board, key)
    loaded = {len(rows[0]): len(rows) for each in sent if (rows := each.rows(board))}
    regimes = sum(len(entry.regimes) for entry in (*found.ranked, *found.apart))
    assert regimes == 18 * 4
    narrow, wide = sorted(loaded)
    assert loaded == {3: regimes, wide: 20}
    assert narrow == 3


def test_shape_rows_hold_the_figures_of_the_records(board: Board, tmp_path: Path) -> None:
    path = make_run(tmp_path, RECIPE.but(statuses={"128x64x64": Status.REJECTED}))
    board.publish(path)
    run = Run.read(path)
    for measure in (COLD, WARM):
        for baseline in (BEST, "cublas"):
            rows = shape_rows(board, path.name, measure, baseline)
            assert [row.shape for row in rows] == list(run.header.shapes)
            for row, record in zip(rows, run.records, strict=True):
                assert (row.m, row.n, row.k) == (record.problem.m, record.problem.n, record.problem.k)
                assert (row.status, row.reason, row.detail) == (record.status, record.reason, record.detail)
                timing = next((each for each in record.timings if each.measure == measure), None)
                if timing is None:
                    assert (row.launch_ns, row.baseline, row.speedup) == (None, None, None)
                    continue
                name = timing.best_baseline if baseline == BEST else baseline
                mine, theirs, speedup = timing.contenders[SUBMISSION], timing.contenders[name], timing.speedups[name]
                assert (row.launch_ns, row.description, row.layout) == (mine.launch_ns, mine.description, mine.layout)
                assert (row.baseline, row.baseline_ns) == (name, theirs.launch_ns)
                assert (row.speedup, row.speedup_low, row.speedup_high) == (speedup.value, speedup.low, speedup.high)


def test_shape_details_hold_the_whole_record(board: Board, tmp_path: Path) -> None:
    path = make_run(tmp_path, RECIPE)
    board.publish(path)
    record = Run.read(path).records[0]
    found = shape_details(board, path.name, "64x64x64")
    assert found.verification == record.verification
    assert len(found.contenders) == 2 * 5
    by_measure = {(row.l2_state, row.contender): row for row in found.contenders}
    for timing in record.timings:
        for name, contender in timing.contenders.items():
            row = by_measure[timing.measure.l2_state, name]
            assert (row.launch_ns, row.launches, row.rounds) == (contender.launch_ns, 100, timing.rounds)
            assert row.best == (name == timing.best_baseline)
            assert (row.speedup is None) == (name == SUBMISSION)
    assert [row.verification for row in verifications(board, path.name)] == [r.verification for r in Run.read(path).records]
    with pytest.raises(DataError, match="no run called 'x' with shape 64x64x64"):
        shape_details(board, "x", "64x64x64")


def test_scores_are_those_of_harness_scores(board: Board, tmp_path: Path) -> None:
    path = make_run(tmp_path, RECIPE)
    board.publish(path)
    run = Run.read(path)
    expected = score(run.records, run.header.problems, load_profile("h200"))
    for line in run_scores(board, path.name):
        whole = expected.scores[line.mode][line.l2_state][line.baseline]
        each = whole if line.regime is None else expected.regimes[line.mode][line.l2_state][line.baseline][line.regime]
        assert (line.geomean, line.total_time, line.win_rate) == (each.geomean, each.total_time, each.win_rate)
        assert (line.arithmetic_mean, line.shapes) == (each.arithmetic_mean, each.shapes)
    assert len({line[:4] for line in run_scores(board, path.name)}) == 2 * 5 * 3


def test_regimes_stand_in_the_order_of_harness_scores(board: Board, tmp_path: Path) -> None:
    path = make_run(tmp_path, RECIPE.but(shapes="4096x4096x4096,4096x4096x64,4096x64x4096,64x64x64"))
    board.publish(path)
    lines = [line.regime for line in run_scores(board, path.name)]
    assert lines == [None, *Regime] * (len(lines) // 5)
    table = shape_table(shape_rows(board, path.name, COLD), NoLinks(), {}).sorted_by("regime", descending=False)
    assert [row["regime"] for row in table.rows] == [each.value for each in Regime]


def test_a_list_knows_who_is_not_measured_on_it(board: Board, tmp_path: Path) -> None:
    cold = RECIPE.but(name="cold", code="cold", measures=(COLD,))
    for recipe in (RECIPE, cold, cold.but(name="other", track="f16")):
        board.publish(make_run(tmp_path, recipe))
    found = {each.key.l2_state: unmeasured(board, each.key) for each in lists(board) if each.key.track == "f32"}
    assert found == {L2State.COLD: (), L2State.WARM: ("cold",)}
    board.withdraw("cold", "a race")
    assert unmeasured(board, choose_list(board, track="f32", l2_state="warm")) == ()
    assert describe_unmeasured("abcdefg") == "7 submissions have no run in this measure: a, b, c, d, e, 2 more."


def test_at_shape_is_fastest_first_and_leaves_out_what_is_not_valid(board: Board, tmp_path: Path) -> None:
    shapes = {"fast": 1.3, "slow": 0.9, "cheat": 2.0, "wrong": 1.5}
    for name, speedup in shapes.items():
        statuses = {"128x64x64": Status.REJECTED} if name == "wrong" else {}
        board.publish(make_run(tmp_path, RECIPE.but(name=name, code=name, speedup=speedup, statuses=statuses)))
    board.mark_cheating("cheat", "caches")
    rows = at_shape(board, choose_list(board), "64x64x64")
    assert [row.launch_ns for row in rows] == sorted(row.launch_ns for row in rows)
    assert [row.name for row in rows if row.contender == SUBMISSION] == ["fast", "slow"]
    assert {row.contender for row in rows if row.name == "slow"} == {SUBMISSION, *RECIPE.speedups}
    assert at_shape(board, choose_list(board), "1x1x1") == ()


def test_files_are_those_of_the_snapshot(board: Board, tmp_path: Path) -> None:
    path = make_run(tmp_path, RECIPE)
    board.publish(path)
    for file in submission_files(board, runs(board)[0].tree_sha256):
        assert file.content == (path / "submission" / file.name).read_bytes()
        assert file.size_bytes == len(file.content)
    files = submission_files(board, runs(board)[0].tree_sha256)
    assert len(files) == 3
    with zipfile.ZipFile(io.BytesIO(archive("kernel", files))) as zipped:
        zipped.extractall(tmp_path / "unzipped")
    assert Submission.read(tmp_path / "unzipped" / "kernel").tree_sha256 == runs(board)[0].tree_sha256
    assert submission_files(board, "0" * 64) == ()


def test_history_marks_what_was_its_authors_best(board: Board, tmp_path: Path) -> None:
    steps = [("1.0.0", 1.0), ("2.0.0", 1.2), ("3.0.0", 1.1), ("4.0.0", 1.5), ("5.0.0", 1.4)]
    for day, (version, speedup) in enumerate(steps, start=1):
        recipe = RECIPE.but(version=version, speedup=speedup, code=version, stamp=f"2026110{day}T000000Z")
        board.publish(make_run(tmp_path, recipe))
    board.withdraw("kernel@4.0.0", "x")
    points = history(board, choose_list(board))
    assert [(point.version, point.is_best) for point in points] == [
        ("1.0.0", True),
        ("2.0.0", True),
        ("3.0.0", False),
        ("4.0.0", False),
        ("5.0.0", True),
    ]
    assert [point.standing.value for point in points][2:] == ["superseded", "withdrawn", "ranked"]


def test_choosing_a_list(board: Board, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the board is empty"):
        choose_list(board)
    assert lists(board) == runs(board) == ()
    board.publish(make_run(tmp_path, RECIPE))
    board.publish(make_run(tmp_path, RECIPE.but(name="other", shapes="64x64x64")))
    board.publish(make_run(tmp_path, RECIPE.but(name="another", shapes="64x64x64")))
    key = choose_list(board)
    assert (key.mode, key.l2_state, key.baseline) == (Mode.OFFLINE, COLD.l2_state, BEST)
    assert {entry.name for entry in ranking(board, key).ranked} == {"other", "another"}
    other = choose_list(board, shapes=RECIPE.shape_set.sha256[:12], l2_state="warm", baseline="cublas")
    assert (other.l2_state, other.baseline) == (WARM.l2_state, "cublas")
    assert [entry.name for entry in ranking(board, other).ranked] == ["kernel"]
    with pytest.raises(DataError, match="no list with mode 'server'; with what else is asked for it has offline"):
        choose_list(board, mode="server")
    with pytest.raises(DataError, match="has no such list"):
        ranking(board, key.model_copy(update={"device": "h100"}))
    with pytest.raises(DataError, match="no run called 'x'"):
        run_details(board, "x")


def test_runs_on_a_cpu_do_not_hide_the_list_that_ranks(board: Board, tmp_path: Path) -> None:
    """As on the board of whoever tries the harness without a GPU first."""
    for name in ("mine", "mine-too"):
        board.publish(make_run(tmp_path, cpu_recipe(name=name)))
    board.publish(make_run(tmp_path, RECIPE))
    assert choose_list(board).device == "h200"
    assert choose_list(board, device="cpu").device == "cpu"


def test_the_revision_is_the_key_of_caches(board: Board, tmp_path: Path) -> None:
    seen = [board.revision()]
    for change in (
        lambda: board.publish(make_run(tmp_path, RECIPE)),
        lambda: board.withdraw("kernel", "x"),
        board.rebuild,
    ):
        change()
        seen.append(board.revision())
    assert seen == sorted(set(seen))
