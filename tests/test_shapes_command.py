"""`hgemm shapes` and `hgemm schema`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from harness.commands.schema import FORMATS, model_of, schema
from harness.commands.shapes import ShapeSetDetails, ShapeSetList, shapes
from harness.model import DataError
from harness.problem_sets import resolve_shapes


def test_list_names_every_set_with_its_count(capsys: pytest.CaptureFixture[str]) -> None:
    shapes()
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:2] == ["grid1000", "1000"] for line in lines)
    assert any(line.split()[:2] == ["quick", "16"] for line in lines)


def test_list_as_json_is_valid_and_has_the_hashes(capsys: pytest.CaptureFixture[str]) -> None:
    shapes(json=True)
    document = ShapeSetList.parse(capsys.readouterr().out, "stdout")
    assert {each.name: each.shapes_sha256 for each in document.sets}["llm"] == resolve_shapes("llm").sha256


def test_one_set_is_counted_by_regime(capsys: pytest.CaptureFixture[str]) -> None:
    shapes("quick", json=True)
    document = ShapeSetDetails.parse(capsys.readouterr().out, "stdout")
    assert document.regimes == {"latency": 4, "skinny": 4, "output_bound": 4, "compute": 4}
    assert document.shapes == tuple(str(problem) for problem in resolve_shapes("quick").problems)
    shapes("quick")
    text = capsys.readouterr().out
    assert "regime on h200" in text
    assert "2048x4096x256 (5.37 µs)" in text


def test_the_device_decides_the_regimes(capsys: pytest.CaptureFixture[str]) -> None:
    shapes("1024x1024x1024", device="h200", json=True)
    on_h200 = ShapeSetDetails.parse(capsys.readouterr().out, "stdout").regimes
    shapes("1024x1024x1024", device="rtx3090", json=True)
    on_rtx3090 = ShapeSetDetails.parse(capsys.readouterr().out, "stdout").regimes
    assert on_h200 == {"latency": 1}
    assert on_rtx3090 == {"compute": 1}


def test_an_unknown_set_or_device_is_refused() -> None:
    with pytest.raises(DataError, match="grid1000"):
        shapes("grid")
    with pytest.raises(DataError, match="h200"):
        shapes("quick", device="h2000")


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_format_has_a_schema_with_a_sentence_per_field(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    schema(name)
    document = json.loads(capsys.readouterr().out)
    assert document["$schema"].endswith("2020-12/schema")
    assert document["additionalProperties"] is False
    assert set(document["properties"]) == set(model_of(name).model_fields)
    assert [field for field, value in document["properties"].items() if not value.get("description")] == []


def test_without_a_name_all_schemas_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    schema()
    assert list(json.loads(capsys.readouterr().out)) == list(FORMATS)


def test_schemas_of_other_packages_need_no_extra() -> None:
    """A library that is None in sys.modules cannot be imported."""
    absent = ("sqlalchemy", "streamlit", "plotly", "jinja2", "torch", "cupy")
    forgotten = f"import sys; sys.modules.update(dict.fromkeys({absent!r}))"
    program = f"{forgotten}; from harness.commands.schema import schema; schema()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert {"ranking", "board-event", "search-heat"} < set(json.loads(done.stdout)) == set(FORMATS)


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(DataError, match="there are submission, plan"):
        schema("plans")
