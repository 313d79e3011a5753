"""Pages of the app, run without a browser: they show what queries return, whatever is on the board."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, parse_qsl, urlsplit

import pytest
from boards import BASE, HOSTILE_AUTHOR, HOSTILE_TEXT, RECIPES, SHAPES, statements
from runs import COLD, make_run
from streamlit.testing.v1 import AppTest

from harness.record import SUBMISSION
from leaderboard import samples, store, ui
from leaderboard.database import Database
from leaderboard.links import AppLinks, NoLinks, parameters_of
from leaderboard.queries import choose_list, lists, ranking, runs
from leaderboard.report import render, run_page
from leaderboard.run_content import RunContent
from leaderboard.shape_queries import at_shape
from leaderboard.store import Board

PAGES = Path(store.__file__).parent / "pages"
NAMES = ("ranking", "submission", "shape", "compare", "history", "method", "published")
TIMEOUT_S = 60


@pytest.fixture(autouse=True)
def database(full_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HGEMM_DATABASE", full_url)
    monkeypatch.setattr(store, "shipped", list)


def page(name: str, **parameters: str | list[str]) -> AppTest:
    """A page as its address opens it."""
    app = AppTest.from_file(str(PAGES / f"{name}.py"), default_timeout=TIMEOUT_S)
    for key, value in parameters.items():
        app.query_params[key] = value
    app.run()
    assert not app.exception, app.exception
    return app


def html(app: AppTest) -> str:
    """Everything that is not a widget."""
    return "".join(element.proto.body for element in app.get("html"))


def cells(app: AppTest, label: str) -> list[list[str]]:
    """Rows of a table as text."""
    table = re.search(rf'aria-label="{label}">.*?</table>', html(app), re.DOTALL)
    assert table, f"no table {label}"
    return [
        [re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)]
        for row in re.findall(r"<tr>(.*?)</tr>", table[0])
    ]


def column(app: AppTest, label: str, title: str) -> list[str]:
    rows = cells(app, label)
    return [row[rows[0].index(title)] for row in rows[1:]]


@pytest.mark.parametrize("name", NAMES)
def test_every_page_shows_and_names_itself_by_a_permalink(name: str) -> None:
    app = page(name)
    assert not app.error
    if name in ("method", "published"):
        return
    address = re.search(r'<a href="\?([^"]*)">Permalink', html(app))
    assert address
    parameters = parse_qs(address[1].replace("&amp;", "&"))
    again = page(name, **parameters)
    assert html(again) == html(app)


def test_a_permalink_names_what_was_chosen() -> None:
    chosen = {"find": "o", "sort": "geomean", "up": "true", "columns": ["submission", "geomean"], "l2_state": "warm"}
    app = page("ranking", **chosen)
    address = re.search(r'<a href="\?([^"]*)">Permalink', html(app))
    assert address
    named = parse_qsl(address[1].replace("&amp;", "&"))
    for key, value in chosen.items():
        assert [each for name, each in named if name == key] == ([value] if isinstance(value, str) else value)


@pytest.mark.parametrize("name", ["ranking", "submission", "shape", "compare", "history"])
def test_an_empty_board_says_what_to_do(name: str, new_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HGEMM_DATABASE", new_url())
    app = page(name)
    assert [code.value for code in app.code] == ["hgemm publish runs/NAME"]
    assert not app.error


def test_an_unreachable_board_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HGEMM_DATABASE", "mysql://nowhere/x")
    app = page("ranking")
    assert len(app.error) == 1


def test_ranking_is_the_ranking(full_board: Board) -> None:
    for summary in lists(full_board):
        found, app = ranking(full_board, summary.key), page("ranking", **parameters_of(summary))
        if found.ranked:
            assert column(app, "ranking", "submission") == [entry.name for entry in found.ranked]
            assert column(app, "ranking", "rank") == [str(entry.rank) for entry in found.ranked]
            assert column(app, "ranking", "geomean") == [
                f"{entry.geomean.value:.4f}" for entry in found.ranked if entry.geomean
            ]
            assert set(column(app, "ranking", "verified")) == {"8/8"}
        if found.apart:
            assert column(app, "not ranked", "submission") == [entry.name for entry in found.apart]
            assert column(app, "not ranked", "because") == [entry.because for entry in found.apart]


@pytest.mark.parametrize(("name", "sent"), [("ranking", 4), ("submission", 4), ("shape", 7), ("compare", 3), ("history", 3)])
def test_a_page_asks_once_and_a_second_visit_asks_for_the_revision_alone(name: str, sent: int) -> None:
    here = ui.board()
    ui._answer.cache_clear()
    with statements(here) as first:
        page(name)
    with statements(here) as second:
        page(name)
    assert len([each for each in first if "revision" not in each.text]) == sent
    assert {each.text for each in second} == {each.text for each in first if "revision" in each.text}


def test_a_list_names_who_is_not_measured_on_it(
    new_url: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_url()
    with Board(Database.open(url)) as board:
        for recipe in (BASE.but(name="both"), BASE.but(name="cold", code="// cold\n", measures=(COLD,))):
            board.publish(make_run(tmp_path, recipe))
    monkeypatch.setenv("HGEMM_DATABASE", url)
    assert "1 submission has no run in this measure: cold." in html(page("ranking", l2_state="warm"))
    assert "no run in this measure" not in html(page("ranking"))


def test_columns_and_order_come_from_the_address() -> None:
    app = page("ranking", sort="geomean", up="true", columns=["latency", "submission", "geomean"])
    assert cells(app, "ranking")[0] == ["submission", "geomean", "latency"]
    figures = [float(value) for value in column(app, "ranking", "geomean")]
    assert figures == sorted(figures)
    assert len(figures) > 1


def test_entries_are_found_by_their_authors() -> None:
    app = page("ranking", find="bob")
    assert column(app, "ranking", "submission") == ["slow"]
    assert column(app, "not ranked", "authors") == ["Bob"]


def test_a_parameter_that_means_nothing_is_ignored() -> None:
    assert html(page("ranking", device="abacus", l2_state="lukewarm")) == html(page("ranking"))


def test_filters_leave_only_lists_that_there_are() -> None:
    app = page("ranking", device="cpu")
    assert {box.key for box in app.selectbox} == {"device", "baseline", "sort"}
    assert "kind native" in html(app)
    app.selectbox(key="device").set_value("h200").run()
    assert "kind device" in html(app)


@pytest.mark.parametrize("view", ["Overview", "Heatmap", "Roofline", "Shapes", "Source", "Verification", "Provenance"])
def test_every_view_of_every_submission(full_board: Board, view: str) -> None:
    names = [each.run for each in runs(full_board)]
    for run in names:
        app = page("submission", run=run, view=view)
        assert not app.error
        assert run in html(app) or view != "Provenance"


def test_text_of_others_is_shown_as_it_is(full_board: Board) -> None:
    (run,) = (each.run for each in runs(full_board, name="evil"))
    for view in ("Overview", "Source", "Provenance"):
        body = html(page("submission", run=run, view=view))
        assert "<script>window" not in body
        assert "<img" not in body
    shown = html(page("submission", run=run))
    assert HOSTILE_TEXT.replace("<", "&lt;").replace(">", "&gt;") in shown
    assert "&lt;img src=x onerror=window.broken=1&gt;" in shown
    assert HOSTILE_AUTHOR.split("<")[0].replace('"', "&#34;") in shown
    code = page("submission", run=run, view="Source", file="kernels/k.cu").code[0]
    assert "</pre><script>" in code.value


def test_heatmap_of_one_panel_is_a_link(full_board: Board) -> None:
    (run,) = (each.run for each in runs(full_board, name="fast"))
    app = page("submission", run=run, view="Heatmap", panel="m", only="128")
    spec = app.get("plotly_chart")[0].proto.spec
    assert "M = 128" in spec
    assert "M = 64" not in spec
    assert '"128x64x128"' in spec


def test_shape_page_shows_everybody_fastest_first(full_board: Board) -> None:
    key = choose_list(full_board)
    rows = at_shape(full_board, key, "128x64x128")
    app = page("shape", shape="128x64x128", every="true")
    names = column(app, "shape 128x64x128", "contender")
    assert len(names) == len(rows) + 1
    assert "speed of light" in names
    times = [float(text.replace(",", "")) for text in column(app, "shape 128x64x128", "µs")]
    assert times == sorted(times)
    assert "10 scoring windows per contender" in html(app)
    beside = column(page("shape", shape="128x64x128"), "shape 128x64x128", "contender")
    assert [name for name in beside if " " in name] == [name for name in names if " " in name]
    assert sorted(name for name in beside if " " not in name) == sorted(RECIPES["fast"].speedups)


def test_baselines_of_every_run_stand_beside_the_run_that_tells_them_apart(full_board: Board) -> None:
    label = "shape 128x64x128"
    found = cells(page("shape", shape="128x64x128", every="true"), label)
    assert found[0][:2] == ["contender", "in run"]
    rows = at_shape(full_board, choose_list(full_board), "128x64x128")
    baselines = sorted([row.contender, row.run] for row in rows if row.contender != SUBMISSION)
    assert sorted(row[:2] for row in found if row[0] in RECIPES["fast"].speedups) == baselines
    assert len(baselines) > len(RECIPES["fast"].speedups)
    assert cells(page("shape", shape="128x64x128"), label)[0][-1] == "in run"


def test_what_is_no_option_any_more_leaves_the_address(full_board: Board) -> None:
    """As when a run of one measure is chosen while another's server mode is shown."""
    fast, cpu = (next(each.run for each in runs(full_board, name=name)) for name in ("fast", "cpu"))
    app = page("submission", run=fast, view="Shapes", measure="offline/warm", against="cublas")
    assert set(app.query_params) == {"run", "view", "measure", "against"}
    app.selectbox(key="run").set_value(cpu).run()
    assert (app.selectbox(key="measure").value, app.selectbox(key="against").value) == ("offline/cold", "best")
    assert not {"measure", "against"} & set(app.query_params)


@pytest.mark.parametrize(("shape", "said"), [("1x2", "1x2"), ("<b>", "b"), ("3x5x7", "No run on this list verified 3x5x7")])
def test_shapes_that_are_none(shape: str, said: str) -> None:
    app = page("shape", shape=shape)
    assert said in "".join(error.value for error in app.error) + html(app)


def test_samples_that_are_elsewhere_are_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    for cache in (samples.opened, ui._answer):
        cache.cache_clear()
    monkeypatch.setattr(samples, "HEADER", "absent.json")
    assert "is not on this machine" in html(page("shape", shape="128x64x128"))


def test_compare_puts_differences_first_and_finds_the_faster(full_board: Board) -> None:
    (a,) = (each.run for each in runs(full_board, name="fast"))
    b = next(each.run for each in runs(full_board, name="slow") if each.version == "1.0.0")
    app = page("compare", a=a, b=b)
    body = html(app)
    assert body.index('aria-label="differences"') < body.index('aria-label="compare offline cold"')
    verdicts = dict(
        zip(column(app, "compare offline cold", "shape"), column(app, "compare offline cold", "verdict"), strict=True)
    )
    assert set(verdicts) == set(SHAPES.split(","))
    assert verdicts["64x64x64"] == "A is faster"
    assert verdicts["128x64x128"] == "B is faster"


def test_compare_of_devices_asks_first(full_board: Board) -> None:
    a, b = ((next(each.run for each in runs(full_board, name=name))) for name in ("fast", "cpu"))
    app = page("compare", a=a, b=b)
    assert "do not mean the same" in app.warning[0].value
    assert "aria-label" not in html(app)


def test_a_verdict_comes_before_the_figures_wherever_a_submission_is_shown(full_board: Board) -> None:
    run = next(each.run for each in runs(full_board, name="fast"))
    full_board.withdraw("fast", "a race")
    try:
        app, listed, then = page("submission", run=run), page("ranking"), page("history")
        notes = render(run_page(RunContent.published(full_board, run), NoLinks()))
    finally:
        full_board.reinstate("fast", "none after all")
    assert [warning.value for warning in app.warning] == ["withdrawn\\: a race"]
    assert html(app).index(">withdrawn<") < html(app).index("Geometric mean speedup")
    assert notes.index("withdrawn: a race") < notes.index("Geometric mean speedup")
    assert (
        dict(zip(column(listed, "not ranked", "submission"), column(listed, "not ranked", "because"), strict=True))["fast"]
        == "a race"
    )
    assert "withdrawn" in column(then, "history", "then")


def test_history_marks_what_was_superseded() -> None:
    app = page("history")
    found = dict(zip(column(app, "history", "submission"), column(app, "history", "then"), strict=True))
    assert found["slow 1.0.0"] == found["slow 0.9.0"] == "best so far"
    stands = dict(zip(column(app, "history", "submission"), column(app, "history", "stands now"), strict=True))
    assert stands["slow 0.9.0"] == "superseded"


def test_method_is_the_protocol() -> None:
    text = "".join(element.value for element in page("method").markdown)
    assert "## Constants" in text
    assert "A/A" in text


def test_links_name_pages_and_parameters() -> None:
    links = AppLinks()
    assert links.submission("a b") == "submission?run=a%20b"
    address = urlsplit(links.shape("1x2x3", {"device": "h200"}))
    assert (address.path, dict(parse_qsl(address.query))) == ("shape", {"shape": "1x2x3", "device": "h200"})
