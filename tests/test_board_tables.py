"""Tables of the board: what is shown is what is downloaded, and nothing of it is executed."""

from __future__ import annotations

import csv
import io
import json
import math

from hypothesis import given
from hypothesis import strategies as st

from leaderboard.tables import TALL, Column, Table, figure, harmless, microseconds, percent

TABLE = Table(
    (
        Column("name", "name", link=lambda row: f"run?x={row['id']}"),
        Column("ratio", "ratio", figure(2)),
        Column("badge", "kind", badge=True),
    ),
    (
        {"name": "b", "ratio": 2.0, "badge": "device", "id": 1},
        {"name": "=1+1", "ratio": None, "badge": "native binary", "id": 2},
        {"name": "<b>a</b>", "ratio": -3.14159, "badge": "", "id": 3},
    ),
)


def test_csv_has_the_shown_columns_and_unrounded_figures_and_no_formula() -> None:
    rows = list(csv.reader(io.StringIO(TABLE.csv())))
    assert rows[0] == ["name", "ratio", "badge"]
    assert [row[0] for row in rows[1:]] == ["b", "'=1+1", "<b>a</b>"]
    assert [row[1] for row in rows[1:]] == ["2.0", "", "-3.14159"]


@given(st.text(), st.sampled_from(["=", "+", "-", "@", "\t", "\r", "\n"]))
def test_no_text_starts_a_formula(text: str, start: str) -> None:
    for value in (text, start + text):
        cell = str(harmless(value))
        assert cell[:1] not in {"=", "+", "-", "@", "\t", "\r", "\n"}
        assert cell in (value, f"'{value}")


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_stay_numbers(value: float) -> None:
    table = Table((Column("x", "x"),), ({"x": value},))
    assert float(list(csv.reader(io.StringIO(table.csv())))[1][0]) == value
    assert json.loads(table.json()) == [{"x": value}]


def test_json_is_the_rows_and_holds_no_tag() -> None:
    assert json.loads(TABLE.json())[2] == {"name": "<b>a</b>", "ratio": -3.14159, "badge": ""}
    assert "<" not in TABLE.json()


@given(st.text())
def test_html_reads_no_cell_as_html(text: str) -> None:
    html = Table((Column("x", "x", link=lambda row: f"?{row['x']}"),), ({"x": f'<script>{text}</script>"'},)).html('"><script>')
    assert "<script" not in html
    assert html.count("<td") == html.count("</td>") == 1


def test_html_links_badges_and_aligns() -> None:
    html = TABLE.html("table")
    assert '<a href="run?x=1">b</a>' in html
    assert '<span class="hg-badge">native</span> <span class="hg-badge">binary</span>' in html
    assert '<td class="hg-n">2.00</td>' in html


@given(st.lists(st.one_of(st.none(), st.integers(0, 3), st.floats(0.5, 2))), st.booleans())
def test_rows_without_a_value_come_last_either_way_and_equal_ones_keep_their_order(
    values: list[float | None], descending: bool
) -> None:
    rows = tuple({"x": value, "id": number} for number, value in enumerate(values))
    found = Table((Column("x", "x"), Column("id", "id")), rows).sorted_by("x", descending).rows
    known = [row for row in found if row["x"] is not None]
    assert found[len(known) :] == tuple(row for row in rows if row["x"] is None)
    assert [row["x"] for row in known] == sorted((value for value in values if value is not None), reverse=descending)
    for value in set(values):
        equal = [row["id"] for row in known if row["x"] == value]
        assert equal == sorted(equal)


def test_columns_are_chosen_by_title_in_their_own_order() -> None:
    assert [column.title for column in TABLE.only(["kind", "name"]).columns] == ["name", "kind"]
    assert TABLE.only(["nothing"]).columns == TABLE.columns
    assert TABLE.sorted_by("nothing") == TABLE


def test_long_text_is_wrapped_and_long_tables_scroll() -> None:
    prose = Table((Column("x", "x", prose=True),), ({"x": "why"},) * (TALL + 1))
    assert '<td class="hg-prose">why</td>' in prose.html("t")
    assert "hg-tall" in prose.html("t")
    assert "hg-tall" not in TABLE.html("t")


def test_rows_are_found_by_what_they_show() -> None:
    assert [row["id"] for row in TABLE.matching("BIN").rows] == [2]
    assert [row["id"] for row in TABLE.matching(" -3.14 ").rows] == [3]
    assert TABLE.matching("") == TABLE
    assert TABLE.matching("absent").rows == ()


def test_figures_as_text() -> None:
    assert (figure(3)(math.pi), figure(0)(1234567), figure(2)(None)) == ("3.142", "1,234,567", "")
    assert (percent(0.046), percent(None)) == ("4.6%", "")
    times = [microseconds(value) for value in (2602.4, 178_000, 1_234_500, 9_999_600, None)]
    assert times == [
        "2.602",
        "178.0",
        "1,234",
        "10,000",
        "",
    ]
