"""Published figures: read strictly, labelled as reported, and nowhere near the rankings."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli import build_app
from harness.importers.published import Reported, guess_from_name, read_table, reported
from harness.model import DataError
from harness.problem import Track
from harness.record import Mode
from leaderboard.database import Database
from leaderboard.published import headline, imported
from leaderboard.queries import lists
from leaderboard.store import Board
from leaderboard.views import headline_table, reported_table

ABOUT = Reported(kernel="theirs", device="H100", track=Track.F32, mode=Mode.SERVER, source="https://example.org, commit 1")
GOOD = "mnk,torch.matmul,cuBLAS-max\n64_64_64,2.0,1.5\n64_128_256,0.5,1.5\n"


def write(tmp_path: Path, text: str, name: str = "table.csv") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_table_is_read_with_both_means(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, GOOD), ABOUT)
    assert (table.shapes, table.baselines) == (("64x64x64", "64x128x256"), ("torch.matmul", "cuBLAS-max"))
    assert table.arithmetic_mean("torch.matmul") == 1.25
    assert table.geometric_mean("torch.matmul") == pytest.approx(1.0)
    assert table.title == "theirs, H100, f32, server"


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("", "has no heading"),
        ("shape,torch\n64_64_64,1\n", "has no heading"),
        ("mnk\n64_64_64\n", "has no heading"),
        ("mnk,a\n", "no shape"),
        ("mnk,a\n64_64,1\n", "64x64"),
        ("mnk,a\n64_64_64,1,2\n", "row 2 has 3 cells"),
        ("mnk,a\n64_64_64,fast\n", "column a holds 'fast'"),
        ("mnk,a\n64_64_64,nan\n", "positive and finite"),
        ("mnk,a\n64_64_64,inf\n", "positive and finite"),
        ("mnk,a\n64_64_64,-1\n", "positive and finite"),
        ("mnk,a\n64_64_64,0\n", "positive and finite"),
        ("mnk,a\n64_64_64,1\n64_64_64,1\n", "there twice"),
        ("mnk,a,a\n64_64_64,1,1\n", "there twice"),
    ],
)
def test_what_is_no_table_is_refused_in_one_sentence(tmp_path: Path, text: str, because: str) -> None:
    with pytest.raises(DataError, match=because):
        read_table(write(tmp_path, text), ABOUT)


def test_files_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "x.csv", tmp_path / "absent.csv", tmp_path):
        with pytest.raises(DataError, match="cannot be read as CSV"):
            read_table(path, ABOUT)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cuda_l2_h100_F32F16F16F32_speedup_server.csv", ("cuda_l2", "H100", "f32", "server")),
        ("cuda_l2_3090_F32F16F16F32_speedup_offline.csv", ("cuda_l2", "RTX 3090", "f32", "offline")),
        ("cuda_l2_a100_F16F16F16F16_speedup_server.csv", ("cuda_l2", "A100", "f16", "server")),
        ("table.csv", (None, None, None, None)),
    ],
)
def test_file_names_tell_what_a_table_is(name: str, expected: tuple[str | None, ...]) -> None:
    found = guess_from_name(Path(name))
    assert tuple(found.get(field) for field in ("kernel", "device", "track", "mode")) == expected


def test_what_is_not_told_is_asked_for() -> None:
    with pytest.raises(DataError, match="give --track and --mode"):
        reported({"kernel": "x", "device": "H100", "source": "s"})
    with pytest.raises(DataError, match="not described well: track"):
        reported({"kernel": "x", "device": "H100", "source": "s", "track": "f64", "mode": "server"})


def test_import_stores_it_for_the_page_and_never_on_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HGEMM_CACHE", str(tmp_path / "cache"))
    path = write(tmp_path, GOOD, "x_h100_F32_server.csv")
    for _ in range(2):
        result = CliRunner().invoke(build_app("import"), ["import", "published", str(path)])
        assert result.exit_code == 0, result.output
    assert "2 shapes, reported, not measured here" in result.stdout
    (table,) = imported()
    assert (table.title, table.about.source) == ("x, H100, f32, server", f"file {path.name}")
    assert [row["torch.matmul"] for row in reported_table(table).rows] == [2.0, 0.5]
    with Board(Database.open(str(tmp_path / "board.sqlite"))) as board:
        assert lists(board) == ()


def test_headline_table_names_its_source_and_covers_three_devices_in_both_modes() -> None:
    (source,) = headline()
    assert source.source in source.provenance
    assert "not measured here" in source.provenance
    assert "commit dbe0177" in source.provenance
    f32 = {(row.device, row.mode) for row in source.rows if row.track is Track.F32}
    assert f32 == {(device, mode) for device in ("A100", "H100", "RTX 3090") for mode in Mode}
    for row in source.rows:
        assert set(row.arithmetic) == {"torch_matmul", "cublas", "cublaslt_heuristic", "cublaslt_autotuned"}
        # The arithmetic mean of positive numbers is never below the geometric one.
        assert all(row.arithmetic[name] >= row.geometric[name] > 0 for name in row.arithmetic)
    h100 = next(row for row in source.rows if (row.device, row.mode) == ("H100", Mode.OFFLINE))
    assert math.isclose(h100.arithmetic["cublaslt_autotuned"], 1.070, abs_tol=5e-4)
    assert len(headline_table(source).rows) == 2 * len(source.rows)
