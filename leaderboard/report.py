"""Report: pages as static HTML, by Jinja2 and without a server. One run by itself, or the board as a site.

Pages are the same tables and charts that the app shows. What needs computing on request, comparing two runs and the raw samples
of one shape, is in the app and in `hgemm compare` alone.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from harness.model import InfraError
from harness.profiles import load_profile
from harness.scores import BEST
from leaderboard.charts import roofline, speedup_against_roof, speedup_heatmap
from leaderboard.links import Links, NoLinks, parameters_of_run
from leaderboard.run_content import RunContent
from leaderboard.sentences import describe_run, describe_verification
from leaderboard.tables import Table
from leaderboard.views import manifest_table, provenance_table, score_table, shape_table, verification_table, worst_rows

if TYPE_CHECKING:
    import plotly.graph_objects as go

Downloads = tuple[tuple[str, str], ...]
"""Names and addresses of files with a table's content."""


class Section(NamedTuple):
    """A part of a page."""

    title: str = ""
    notes: tuple[str, ...] = ()
    html: Markup | None = None
    figure: Markup | None = None
    figure_links: str = ""
    """Address that a click on a point leads to, with `*` for what the point stands for."""
    downloads: Downloads = ()

    @property
    def anchor(self) -> str:
        """Name of the section in addresses."""
        return "".join(each if each.isalnum() else "-" for each in self.title.lower())


class Page(NamedTuple):
    """A page before it is HTML."""

    title: str
    sections: tuple[Section, ...]
    notes: tuple[str, ...] = ()

    @property
    def has_figures(self) -> bool:
        """Whether it needs plotly."""
        return any(section.figure is not None for section in self.sections)


def render(page: Page, root: str = "", nav: tuple[tuple[str, str], ...] = ()) -> str:
    """HTML of a page.

    Args:
        page: what it holds.
        root: address of the site's root as seen from the page.
        nav: titles and addresses of the site's pages; without any the page stands alone and carries plotly itself.
    """
    css = Markup(_text("board.css") + _text("site.css"))
    plotly = Markup(plotly_source()) if page.has_figures and not nav else ""
    return _templates().get_template("page.html.j2").render(page=page, css=css, plotly=plotly, root=root, nav=nav)


def run_page(content: RunContent, links: Links, shape_links: str = "") -> Page:
    """Everything about a run.

    Args:
        content: the run.
        links: where tables lead.
        shape_links: where points of charts lead, with `*` for the shape.
    """
    details = content.details
    summary, measures = details.summary, details.header.protocol.measures
    sections = [Section(html=manifest_table(details).html("manifest"))]
    whole = [line for line in content.scores if line.regime is None]
    regimes = [line for line in content.scores if line.regime is not None and line.baseline == BEST]
    if summary.verified < summary.shapes:
        sections.append(_failures(content))
    sections.append(Section("Scores", html=score_table(whole).html("scores")))
    sections.append(Section("By regime, against the best baseline", html=score_table(regimes).html("regimes")))
    for measure in measures[:1]:
        rows, profile = content.rows[measure], load_profile(details.header.device.profile)
        where = f"{measure}, against the best baseline"
        parameters = parameters_of_run(details, measure, BEST)
        sections += [
            Section(f"Speedup, {where}", figure=figure_html(speedup_heatmap(rows)), figure_links=shape_links),
            Section(
                "Against the speed of light", figure=figure_html(speedup_against_roof(rows, profile)), figure_links=shape_links
            ),
            Section("Roofline", figure=figure_html(roofline(rows, profile)), figure_links=shape_links),
            Section("Slowest", html=shape_table(worst_rows(rows), links, parameters).html("slowest")),
            Section(f"Shapes, {where}", html=shape_table(rows, links, parameters).html("shapes")),
        ]
    sections += [Section(f"Source: {file.name}", html=source_html(file.name, file.content)) for file in content.files]
    compared = (describe_verification(content.verifications),)
    sections.append(Section("Verification", compared, verification_table(content.verifications).html("verification")))
    sections.append(Section("Provenance", html=provenance_table(details).html("provenance")))
    apart = (f"Does not rank: {details.because}",) if details.because else ()
    verdict = (f"{summary.verdict}: {summary.verdict_reason}",) if summary.verdict else ()
    notes = (*verdict, describe_run(details, content.scores), details.description, *apart)
    return Page(f"{summary.name} {summary.version} on {details.header.device.name}", tuple(sections), notes)


def run_figures(content: RunContent) -> dict[str, go.Figure]:
    """The charts of a run by name."""
    profile = load_profile(content.details.header.device.profile)
    rows = content.rows[content.details.header.protocol.measures[0]]
    return {
        "heatmap": speedup_heatmap(rows),
        "speedup": speedup_against_roof(rows, profile),
        "roofline": roofline(rows, profile),
    }


def write(path: Path, text: str) -> None:
    """Write a file and the folders that it lies in.

    Raises:
        InfraError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InfraError(f"{path} cannot be written ({error.strerror}); choose another place.") from error


def figure_html(figure: go.Figure) -> Markup:
    """A chart that plotly draws where the page has loaded it."""
    config = {"displayModeBar": False, "responsive": True}
    return Markup(figure.to_html(full_html=False, include_plotlyjs=False, config=config))


def table_section(title: str, table: Table, downloads: Downloads = (), notes: tuple[str, ...] = ()) -> Section:
    """A table, or that there is nothing in it."""
    if not table.rows:
        return Section(title, (*notes, "Nothing to show."))
    return Section(title, notes, table.html(title or "table"), downloads=downloads)


def source_html(name: str, content: bytes) -> Markup:
    """A file with colours; what is not text as its size."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_for_filename
    from pygments.lexers.special import TextLexer
    from pygments.util import ClassNotFound

    if name.endswith(".cubin"):
        return Markup("<p>{} bytes of binary code</p>").format(len(content))
    try:
        lexer = get_lexer_for_filename({"cu": "x.cpp", "cuh": "x.cpp", "ptx": "x.s"}.get(name.rpartition(".")[2], name))
    except ClassNotFound:
        lexer = TextLexer()
    return Markup(highlight(content.decode("utf-8", "replace"), lexer, HtmlFormatter(noclasses=True, nobackground=True)))


@cache
def plotly_source() -> str:
    """plotly.js, minified."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _failures(content: RunContent) -> Section:
    rows = [row for row in next(iter(content.rows.values()), ()) if row.reason is not None]
    measure = content.details.header.protocol.measures
    parameters = parameters_of_run(content.details, measure[0], BEST) if measure else {}
    return table_section("Not verified", shape_table(rows, NoLinks(), parameters).only(["shape", "status", "reason"]))


def _text(name: str) -> str:
    return resources.files("leaderboard").joinpath("templates", name).read_text(encoding="utf-8")


@cache
def _templates() -> Environment:
    folder = str(resources.files("leaderboard").joinpath("templates"))
    return Environment(loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
