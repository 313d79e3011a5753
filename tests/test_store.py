"""The store: publishing, refusing, rebuilding, verdicts; on SQLite and on PostgreSQL."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from runs import COLD, H200, WARM, Recipe, begin_run, cpu_recipe, make_run
from sqlalchemy import select, text

from harness.model import DataError, InfraError
from harness.profiles import load_profile
from harness.protocol import Purpose, protocol_for
from harness.record import Status
from leaderboard import journal
from leaderboard.journal import JOURNAL, read_events
from leaderboard.models import Base
from leaderboard.queries import choose_list, lists, ranking, run_details, runs
from leaderboard.ranking import Origin
from leaderboard.store import Board

SMALL = Recipe(shapes="64x64x64,128x64x64")
IDS = {"id", "run_id", "submission_id"}


def dump(board: Board) -> dict[str, list[Any]]:
    """Every row of every table but the state, without what numbers rows."""
    names: dict[tuple[str, int], str] = {}
    found: dict[str, list[Any]] = {}
    with board.database.reading() as session:
        for table in Base.metadata.sorted_tables:
            if table.name == "board_state":
                continue
            rows = [dict(row._mapping) for row in session.execute(select(table))]
            for row in rows:
                if "id" in row:
                    names[table.name, row["id"]] = str(row.get("tree_sha256") or row.get("end_sha256"))
                owner = [names["runs", row["run_id"]]] if "run_id" in row else []
                owner += [names["submissions", row["submission_id"]]] if "submission_id" in row else []
                row["owner"] = owner
            stripped = [{key: value for key, value in row.items() if key not in IDS} for row in rows]
            found[table.name] = sorted(stripped, key=repr)
    return found


def counts(board: Board) -> dict[str, int]:
    return {table: len(rows) for table, rows in dump(board).items()}


def test_what_a_published_run_leaves_in_the_tables(board: Board, tmp_path: Path) -> None:
    recipe = SMALL.but(measures=(COLD, WARM))
    published = board.publish(make_run(tmp_path, recipe))
    assert published.added
    assert published.permalink.endswith(f"/submission?run={published.run}")
    assert counts(board) == {
        "submissions": 1,
        "submission_files": 3,
        "verdicts": 0,
        "runs": 1,
        "scores": 2 * 5 * 2,  # measures, baselines with `best`, the set and its one regime
        "records": 2,
        "timings": 2 * 2 * 5,
    }
    details = run_details(board, published.run)
    assert (details.header.device, details.counts[Status.VERIFIED], details.because) == (H200, 2, "")


def test_publishing_again_changes_nothing(board: Board, tmp_path: Path) -> None:
    path = make_run(tmp_path, SMALL)
    first = board.publish(path)
    before, revision, events = dump(board), board.revision(), read_events(tmp_path)
    again = board.publish(path)
    assert (again.run, again.permalink, again.added) == (first.run, first.permalink, False)
    assert (dump(board), board.revision(), read_events(tmp_path)) == (before, revision, events)


def test_a_moved_run_is_published_where_it_is_now(board: Board, tmp_path: Path) -> None:
    path = make_run(tmp_path / "here", SMALL)
    board.publish(path)
    (tmp_path / "there").mkdir()
    moved = shutil.move(path, tmp_path / "there" / path.name)
    assert not board.publish(Path(moved)).added
    assert run_details(board, path.name).path == str(moved)
    assert len(read_events(tmp_path / "there")) == 1


def expect_refusal(board: Board, path: Path, said: str) -> None:
    before, journal_path = dump(board), path.parent / JOURNAL
    with pytest.raises(DataError, match=said) as caught:
        board.publish(path)
    assert "\n" not in str(caught.value)
    assert dump(board) == before
    assert not journal_path.exists()


def test_incomplete_changed_and_insane_runs_are_refused(board: Board, tmp_path: Path) -> None:
    run = begin_run(tmp_path / "a", SMALL)
    run.close()
    expect_refusal(board, run.path, "hgemm run --resume")
    path = make_run(tmp_path / "b", SMALL)
    (path / "records.jsonl").write_text((path / "records.jsonl").read_text().replace('"seconds":0.1', '"seconds":0.2'))
    expect_refusal(board, path, "records.jsonl was changed after the run ended")
    crippled = {**SMALL.speedups, "cublaslt_autotuned": 1.3}
    expect_refusal(board, make_run(tmp_path / "c", SMALL.but(speedups=crippled)), "autotuned_slower")
    screen = protocol_for(load_profile("h200"), Purpose.SCREEN)
    expect_refusal(board, make_run(tmp_path / "d", SMALL.but(protocol=screen)), "only a full run publishes")
    expect_refusal(board, tmp_path, "no end.json")


def test_a_second_run_of_the_same_name_is_refused(board: Board, tmp_path: Path) -> None:
    board.publish(make_run(tmp_path / "a", SMALL))
    expect_refusal(board, make_run(tmp_path / "b", SMALL.but(seed=2)), "another run called")


def test_a_full_disk_publishes_nothing_and_is_one_sentence(
    board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, before = make_run(tmp_path / "a", SMALL), dump(board)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(journal.os, "fsync", full)
        with pytest.raises(InfraError, match="No space left on device"):
            board.publish(path)
    assert dump(board) == before
    assert read_events(path.parent) == []
    assert board.publish(path).added


def test_a_full_database_publishes_nothing_and_is_one_sentence(tmp_path: Path) -> None:
    from leaderboard.database import Database

    path = make_run(tmp_path / "a", SMALL.but(shapes=",".join(f"64x64x{k}" for k in range(1, 90))))
    with Board(Database.open(f"sqlite:///{tmp_path / 'b.sqlite'}")) as board:
        before = dump(board)
        with board.database.engine.connect() as connection:
            pages = connection.execute(text("PRAGMA page_count")).scalar_one()
            connection.execute(text(f"PRAGMA max_page_count={pages + 5}"))
        with pytest.raises(InfraError, match=r"full.*free some space"):
            board.publish(path)
        assert dump(board) == before
        assert read_events(path.parent) == []
        with board.database.engine.connect() as connection:
            connection.execute(text("PRAGMA max_page_count=100000"))
        assert board.publish(path).added


def fill(board: Board, parent: Path) -> None:
    """A board with versions, authors, devices, origins and verdicts, from two directories."""
    one, two = parent / "one", parent / "two"
    board.publish(make_run(one, SMALL))
    board.publish(make_run(one, SMALL.but(version="2.0.0", speedup=1.1, code="// 2\n", stamp="20261102T000000Z")))
    board.publish(make_run(one, SMALL.but(stamp="20261103T000000Z", seed=3)))
    board.publish(make_run(two, SMALL.but(name="other", author="Bob", speedup=1.3, code="// cheat\n")))
    board.publish(make_run(two, cpu_recipe(shapes="64x64x64")))
    board.publish(make_run(two, SMALL.but(name="theirs", author="Eve")), Origin.REPORTED, "mail of 1 November")
    board.publish(make_run(two, SMALL.but(name="bad", code="// 3\n", statuses={"64x64x64": Status.REJECTED})))
    board.withdraw("kernel@2.0.0", "an error in the split")
    board.mark_cheating("other", "returns what it saw before")


def test_rebuilding_equals_publishing_one_by_one(board: Board, tmp_path: Path) -> None:
    fill(board, tmp_path)
    before, told = dump(board), []
    rebuilt = board.rebuild(progress=lambda done, total, what: told.append((done, total)))
    assert dump(board) == before
    assert (len(rebuilt.published), rebuilt.refused, rebuilt.unpublished) == (7, (), ())
    assert told == [(n, 7) for n in range(8)]


def test_a_lost_database_is_rebuilt_from_the_directories(board: Board, tmp_path: Path) -> None:
    from leaderboard.database import Database

    fill(board, tmp_path)
    with Board(Database.open(str(tmp_path / "new.sqlite"))) as fresh:
        fresh.rebuild([tmp_path / "one", tmp_path / "two"])
        assert dump(fresh) == dump(board)


def test_rebuilding_leaves_out_and_names_what_no_longer_passes(board: Board, tmp_path: Path) -> None:
    good, bad = make_run(tmp_path, SMALL), make_run(tmp_path, SMALL.but(name="edited"))
    for path in (good, bad):
        board.publish(path)
    stray = make_run(tmp_path, SMALL.but(name="stray"))
    (bad / "run.json").write_text((bad / "run.json").read_text() + " ")
    rebuilt = board.rebuild()
    assert rebuilt.published == (good.name,)
    assert [refusal.path for refusal in rebuilt.refused] == [bad]
    assert "run.json was changed" in rebuilt.refused[0].because
    assert rebuilt.unpublished == (stray,)
    assert [run.run for run in runs(board)] == [good.name]
    with pytest.raises(DataError, match="is not a directory"):
        board.rebuild([tmp_path / "nowhere"])


def standings(board: Board) -> dict[str, str]:
    found = ranking(board, choose_list(board, device="h200"))
    return {f"{entry.name}@{entry.version}": entry.standing.value for entry in (*found.ranked, *found.apart)}


def test_a_withdrawal_brings_the_previous_best_back(board: Board, tmp_path: Path) -> None:
    for version, speedup in (("1.0.0", 1.0), ("1.1.0", 1.1), ("1.2.0", 1.2)):
        board.publish(make_run(tmp_path, SMALL.but(version=version, speedup=speedup, code=f"// {version}\n")))
    assert standings(board) == {"kernel@1.2.0": "ranked", "kernel@1.1.0": "superseded", "kernel@1.0.0": "superseded"}
    board.withdraw("kernel@1.2.0", "wrong on Tuesdays")
    assert standings(board) == {"kernel@1.1.0": "ranked", "kernel@1.2.0": "withdrawn", "kernel@1.0.0": "superseded"}
    board.mark_cheating("kernel@1.1.0", "caches")
    assert standings(board) == {"kernel@1.0.0": "ranked", "kernel@1.2.0": "withdrawn", "kernel@1.1.0": "cheating"}
    board.reinstate("kernel@1.2.0", "it was Monday")
    assert standings(board)["kernel@1.2.0"] == "ranked"
    assert [event.kind.value for event in read_events(tmp_path)][3:] == ["withdrawn", "cheating", "reinstated"]
    board.rebuild()
    assert standings(board) == {"kernel@1.2.0": "ranked", "kernel@1.0.0": "superseded", "kernel@1.1.0": "cheating"}


def test_code_that_cheats_does_so_under_every_name_also_later(board: Board, tmp_path: Path) -> None:
    board.publish(make_run(tmp_path / "a", SMALL.but(code="// cheat\n")))
    board.publish(make_run(tmp_path / "b", SMALL.but(name="copy", code="// cheat\n")))
    assert len(board.mark_cheating("kernel", "caches")) == 2
    board.publish(make_run(tmp_path / "c", SMALL.but(name="late", author="Eve", code="// cheat\n")))
    board.publish(make_run(tmp_path / "c", SMALL.but(name="honest", code="// honest\n")))
    assert standings(board) == {
        "kernel@1.0.0": "cheating",
        "copy@1.0.0": "cheating",
        "late@1.0.0": "cheating",
        "honest@1.0.0": "ranked",
    }
    before = dump(board)
    board.rebuild([tmp_path / "b", tmp_path / "c"])
    assert {run.verdict and run.verdict.value for run in runs(board) if run.name != "honest"} == {"cheating"}
    assert dump(board)["verdicts"] == before["verdicts"]


def test_a_verdict_needs_one_submission_and_a_reason(board: Board, tmp_path: Path) -> None:
    for number in (1, 2):
        board.publish(make_run(tmp_path, SMALL.but(version=f"{number}.0.0", code=f"// {number}\n")))
    for meant, reason, said in (
        ("nobody", "x", "no submission on the board is called 'nobody'"),
        ("kernel", "x", "may be any of kernel@1.0.0"),
        ("kernel@1.0.0", " ", "needs a reason"),
    ):
        with pytest.raises(DataError, match=said):
            board.withdraw(meant, reason)
    tree = runs(board)[0].tree_sha256
    assert board.withdraw(tree[:12], "x") == (tree,)


def test_reported_runs_stand_in_lists_of_their_own(board: Board, tmp_path: Path) -> None:
    board.publish(make_run(tmp_path, SMALL))
    path = make_run(tmp_path, SMALL.but(name="theirs"))
    board.publish(path, Origin.REPORTED, "their page")
    assert list(standings(board)) == ["kernel@1.0.0"]
    reported = ranking(board, choose_list(board, origin="reported"))
    assert [entry.name for entry in reported.ranked] == ["theirs"]
    assert run_details(board, path.name).source == "their page"
    with pytest.raises(DataError, match="published as reported already"):
        board.publish(path)


def test_runs_on_a_cpu_are_listed_and_never_rank(board: Board, tmp_path: Path) -> None:
    board.publish(make_run(tmp_path, cpu_recipe()))
    found = ranking(board, choose_list(board))
    assert found.ranked == ()
    (entry,) = found.apart
    assert (entry.standing.value, entry.because) == ("not_rankable", "a CPU only exercises the pipeline")
    assert entry.geomean is not None
    assert entry.badges == ("native",)


def test_lists_part_by_everything_that_is_not_comparable(board: Board, tmp_path: Path) -> None:
    newer = H200.model_copy(update={"libraries": {**H200.libraries, "cublasLt": "130200"}})
    patched = H200.model_copy(update={"driver": "580.159.99", "uuid": "GPU-2"})
    variants = [
        SMALL,
        SMALL.but(device=patched, seed=9, name="same-list"),
        SMALL.but(device=newer, name="newer-cublas"),
        SMALL.but(device=H200.model_copy(update={"driver": "590.1.2"}), name="newer-driver"),
        SMALL.but(device=H200.model_copy(update={"profile": "h100", "name": "NVIDIA H100"}), name="other-device"),
        SMALL.but(track="f16", name="other-track"),
        SMALL.but(shapes="64x64x64", name="other-shapes"),
        SMALL.but(protocol=protocol_for(load_profile("h200"), sustained=True), name="sustained"),
    ]
    for variant in variants:
        board.publish(make_run(tmp_path, variant))
    cold = {each.key: each.runs for each in lists(board) if (each.key.l2_state, each.key.baseline) == ("cold", "best")}
    assert sorted(cold.values()) == [1] * 6 + [2]
    (shared,) = [key for key, count in cold.items() if count == 2]
    assert {entry.name for entry in ranking(board, shared).ranked} == {"kernel", "same-list"}


def test_the_journal_is_cut_where_a_kill_tore_it_and_appended_to(tmp_path: Path, board: Board) -> None:
    board.publish(make_run(tmp_path, SMALL))
    with (tmp_path / JOURNAL).open("a") as file:
        file.write('{"kind": "publ')
    assert len(read_events(tmp_path)) == 1
    board.publish(make_run(tmp_path, SMALL.but(name="second")))
    assert [event.run.split("-")[0] for event in read_events(tmp_path)] == ["kernel", "second"]
    (tmp_path / JOURNAL).write_text(json.dumps({"kind": "withdrawn", "at_utc": "x"}) + "\n")
    with pytest.raises(DataError, match=r"board.jsonl, line 1 is not valid: .*names tree, code and reason"):
        read_events(tmp_path)


def test_opening_publishes_what_is_shipped_once(board_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from leaderboard import store
    from leaderboard.database import Database

    monkeypatch.setattr(store, "shipped", lambda: [tmp_path / "data"])
    told: list[str] = []

    def opened() -> list[str]:
        with Board.open(board_url, lambda done, total, what: told.append(what)) as board:
            return sorted(run.name for run in runs(board))

    with Board(Database.open(str(tmp_path / "author.sqlite"))) as author:
        first = author.publish(make_run(tmp_path / "data", SMALL))
        assert (opened(), told) == (["kernel"], [first.run, ""])
        assert (opened(), told) == (["kernel"], [first.run, ""])
        author.publish(make_run(tmp_path / "data", SMALL.but(name="second")))
        assert opened() == ["kernel", "second"]
        author.withdraw("second", "x")
    opened()
    with Board.open(board_url) as board:
        assert [run.name for run in runs(board) if run.verdict] == ["second"]
