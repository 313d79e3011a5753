"""The sets of shapes, and reading `--shapes`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import shapes
from harness.model import DataError
from harness.problem import Problem, Track
from harness.problem_sets import resolve_shapes, shape_hash
from harness.profiles import load_profile

# A set that changes is another set: rename it, since results of runs over it stop being comparable.
HASHES = {
    "cpu": "0f4c1d6b3e476f52181395e69a5fda4e56be4159e15c3d962a4e0e69520a5533",
    "grid1000": "68e2982a4f14fd132f36a501c363063244803cdf09c0caf02fb2c05476d6d17b",
    "llm": "cdefc5135c969fd124ec71bef80c747aa6c6b06d59d2e964bc66b21a1db6545e",
    "quick": "a46d5394d5d297e342584fdc173d39500cca2ce77babe047c7f5c92479a2f9f9",
    "ragged": "11e6ccb40a56dd3e1ad74a61845d8509253d654f66b4bdf7fe006862e08f6df5",
}
COUNTS = {"cpu": 12, "grid1000": 1000, "llm": 175, "quick": 16, "ragged": 28}


def test_sets_are_those_that_are_documented() -> None:
    assert set(shapes.names()) == set(HASHES)


@pytest.mark.parametrize("name", sorted(HASHES))
def test_set_is_unchanged(name: str) -> None:
    found = resolve_shapes(name)
    assert len(found.problems) == COUNTS[name] == len(set(found.problems))
    assert found.sha256 == HASHES[name]
    listed = shapes.load(name)
    assert listed.description
    assert listed.source


def test_grid_is_every_combination_of_ten_sizes() -> None:
    sides = {64, 128, 256, 512, 1024, 2048, 4096, 8192, 12288, 16384}
    grid = shapes.load("grid1000").shapes
    assert {shape.m for shape in grid} == {shape.n for shape in grid} == {shape.k for shape in grid} == sides
    assert len(set(grid)) == 1000


def test_quick_has_three_shapes_of_every_regime_on_the_grid() -> None:
    from harness.scores import Regime, regime

    problems = resolve_shapes("quick").problems
    counts = Counter(regime(problem, load_profile("h200")) for problem in problems)
    assert set(counts) == set(Regime)
    assert min(counts.values()) >= 3
    assert set(problems) <= set(resolve_shapes("grid1000").problems)


def test_cpu_shapes_are_small_and_partly_ragged() -> None:
    found = shapes.load("cpu").shapes
    assert max(shape.m * shape.n * shape.k for shape in found) <= 256**3
    assert sum(any(side % 8 for side in shape) for shape in found) >= 4


def test_llm_has_every_batch_size_and_known_layers() -> None:
    found = set(shapes.load("llm").shapes)
    assert {shape.m for shape in found} == {1, 7, 32, 33, 128, 4096}
    assert {(6144, 4096), (8192, 28672), (37888, 3584), (24576, 1536)} <= {(shape.n, shape.k) for shape in found}
    assert not [shape for shape in found if shape.m == 4096 and shape.n > 100_000]


def test_ragged_covers_each_kind_of_edge() -> None:
    found = shapes.load("ragged").shapes
    assert max(max(shape) for shape in found) == 2049
    for side in ("m", "n", "k"):
        assert any(getattr(shape, side) == 1 for shape in found)
    assert any(shape.n == 7 for shape in found)
    assert any(shape.k == 13 for shape in found)
    aligned = {(shape.k % 8 == 0, shape.n % 8 == 0) for shape in found}
    assert aligned == {(True, True), (True, False), (False, True), (False, False)}


def test_hash_ignores_order_and_name_but_no_shape(tmp_path: Path) -> None:
    first = resolve_shapes("64x64x64,1x2x3")
    assert resolve_shapes("1x2x3, 64x64x64").sha256 == first.sha256
    assert resolve_shapes("1x2x3,64x64x65").sha256 != first.sha256
    assert shape_hash((shapes.Shape(1, 23, 4),)) != shape_hash((shapes.Shape(12, 3, 4),))


def test_a_list_keeps_its_order_and_takes_the_track() -> None:
    found = resolve_shapes("64x64x64,1x2x3", Track.F16)
    assert found.name == "custom"
    assert found.problems == (Problem(m=64, n=64, k=64, track=Track.F16), Problem(m=1, n=2, k=3, track=Track.F16))


def test_a_text_file_holds_a_shape_per_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("# my layers\n64x64x64\n\n  1x2x3  # small\n", encoding="utf-8")
    found = resolve_shapes(str(path))
    assert found.name == "mine"
    assert [str(problem) for problem in found.problems] == ["64x64x64", "1x2x3"]


def test_a_toml_file_reads_as_a_shipped_set_does(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('shapes = ["1x2x3"]\n[[products]]\nm = [4, 5]\nnk = [[6, 7]]\n', encoding="utf-8")
    found = resolve_shapes(str(path))
    assert found.name == "mine"
    assert [str(problem) for problem in found.problems] == ["1x2x3", "4x6x7", "5x6x7"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("grid", "grid1000"),
        ("", "no file"),
        ("64x64", "'64x64' is not a shape"),
        ("64x64x0", "'64x64x0' is not a shape"),
        ("64x64x64,64x-1x64", "'64x-1x64' is not a shape"),
        ("64x64x64,64x64x64", "64x64x64 twice"),
        ("6x6x99999999", "is not a shape"),
        ("٣x1x1,1x1x1", "is not a shape"),
        (",", "no shape"),
    ],
)
def test_bad_text_is_refused_in_one_sentence(text: str, said: str) -> None:
    with pytest.raises(DataError) as raised:
        resolve_shapes(text)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("shapes = [", "not valid TOML"),
        ("shape = []", "unknown key 'shape'"),
        ("shapes = []", "no shape"),
        ("shapes = [64]", "64 is not a shape"),
        ('shapes = "1x1x1"', "not a list"),
        ("[[products]]\nm = [1]\nn = [1]", "not a list of sides"),
        ("[[products]]\nm = [1]\nn = [1]\nk = [1]\nnk = [[1, 1]]", "m and nk"),
        ("[[products]]\nm = [1]\nnk = [[1, 1, 1]]", "pairs"),
        ("[[products]]\nm = [true]\nn = [1]\nk = [1]", "True is not a side"),
        ("[[products]]\nm = [0]\nn = [1]\nk = [1]", "0 is not a side"),
        ("[[products]]\nm = [1, 1]\nn = [1]\nk = [1]", "1x1x1 twice"),
        ("products = [1]", "not a table"),
        ("description = 1\nshapes = ['1x1x1']", "not a string"),
    ],
)
def test_bad_files_are_refused_in_one_sentence(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError) as raised:
        resolve_shapes(str(path))
    assert said in str(raised.value)
    assert "bad" in str(raised.value)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary.txt"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot be read"):
        resolve_shapes(str(path))


@pytest.mark.parametrize("name", ["grid1000.txt", "cpu.toml"])
def test_a_file_does_not_pass_for_a_set(tmp_path: Path, name: str) -> None:
    """The board would show its results as those of the set."""
    path = tmp_path / name
    path.write_text('shapes = ["64x64x64"]' if path.suffix == ".toml" else "64x64x64", encoding="utf-8")
    with pytest.raises(DataError, match=f"holds other shapes than the set {path.stem}, .*; rename it"):
        resolve_shapes(str(path))


def test_a_copy_of_a_set_may_have_its_name(tmp_path: Path) -> None:
    path = tmp_path / "cpu.txt"
    path.write_text("\n".join(map(str, reversed(shapes.load("cpu").shapes))), encoding="utf-8")
    assert (resolve_shapes(str(path)).name, resolve_shapes(str(path)).sha256) == ("cpu", HASHES["cpu"])
