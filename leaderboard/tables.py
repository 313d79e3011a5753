"""Table: rows of values with a heading, shown as HTML and downloaded as CSV or JSON. The app and the export share it.

What is downloaded is what is shown: the same rows and columns in the same order, figures unrounded.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

Value = str | int | float | None
Row = Mapping[str, Value]

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""How text starts that a spreadsheet may execute (OWASP, CSV injection)."""


TALL = 40
"""Rows from which on a table scrolls in a box of its own."""


class Column(NamedTuple):
    """One column."""

    name: str
    """Key of the row's value, and heading of downloads."""
    title: str
    """Heading on the page; empty hides the column there and in downloads."""
    show: Callable[[Value], str] = lambda value: "" if value is None else str(value)
    """The value as text."""
    help: str = ""
    """What it is, on hover."""
    link: Callable[[Row], str] | None = None
    """Address that the cell leads to; empty for none."""
    badge: bool = False
    """Whether words of the cell are drawn as badges."""
    prose: bool = False
    """Whether the cell holds long text, which is wrapped and not cut."""
    order: tuple[str, ...] = ()
    """Its values in the order in which they sort; empty for that of numbers and letters."""


class Table(NamedTuple):
    """Rows under columns."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def only(self, titles: Iterable[str]) -> Table:
        """The table with these columns alone, in the order that it has; all of them if none is named."""
        kept = tuple(column for column in self.columns if column.title in set(titles))
        return self._replace(columns=kept or self.columns)

    def matching(self, text: str) -> Table:
        """Rows that show the text somewhere, in whatever case."""
        wanted = text.strip().casefold()
        shown = (row for row in self.rows if any(wanted in each.show(row[each.name]).casefold() for each in self.columns))
        return self._replace(rows=tuple(shown)) if wanted else self

    def sorted_by(self, title: str, descending: bool = True) -> Table:
        """Rows by a column; those without a value last, either way; equal ones keep their order."""
        column = next((column for column in self.columns if column.title == title), None)
        if column is None:
            return self
        name, order = column.name, column.order
        known = [row for row in self.rows if row[name] is not None]
        known.sort(key=lambda row: _sort_key(order.index(str(row[name])) if order else row[name]), reverse=descending)
        return self._replace(rows=(*known, *(row for row in self.rows if row[name] is None)))

    def csv(self) -> str:
        """RFC 4180, with text that a spreadsheet would execute behind an apostrophe."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\r\n")
        writer.writerow([column.name for column in self.columns])
        for row in self.rows:
            writer.writerow([harmless(row[column.name]) for column in self.columns])
        return text.getvalue()

    def json(self) -> str:
        """A list of objects; `<` is escaped, so that nothing in it is read as HTML."""
        rows = [{column.name: row[column.name] for column in self.columns} for row in self.rows]
        return json.dumps(rows, indent=1, ensure_ascii=False).replace("<", "\\u003c")

    def html(self, label: str) -> Markup:
        """A `<table>` in a box that scrolls sideways on narrow screens. Nothing in a cell is read as HTML.

        Args:
            label: names the table to those who hear the page.
        """
        under = [(column, _is_numeric(self.rows, column.name)) for column in self.columns]
        heads = "".join(_head(column, right) for column, right in under)
        lines = "".join(f"<tr>{''.join(_cell(row, column, right) for column, right in under)}</tr>" for row in self.rows)
        box = "hg-scroll hg-tall" if len(self.rows) > TALL else "hg-scroll"
        return Markup(
            f'<div class="{box}" tabindex="0"><table class="hg" aria-label="{escape(label)}">'
            f"<thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>"
        )


def harmless(value: Value) -> Value:
    """A value as a cell of a CSV file: numbers stay, text is never a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def badges(words: Iterable[str]) -> Markup:
    """Words, each in a frame."""
    return Markup(" ".join(map(_badge, words)))


def figure(places: int, unit: str = "") -> Callable[[Value], str]:
    """Shows a number with that many decimals."""
    return lambda value: "" if value is None else f"{float(value):,.{places}f}{unit}"


def percent(value: Value) -> str:
    """Shows a share."""
    return "" if value is None else f"{float(value):.1%}"


def microseconds(value: Value) -> str:
    """Shows nanoseconds as microseconds with four digits, trailing zeros too."""
    if value is None:
        return ""
    return f"{float(value) / 1e3:#,.4g}".rstrip(".") if float(value) < 9_999_500 else f"{float(value) / 1e3:,.0f}"


def _sort_key(value: Value) -> tuple[int, float, str]:
    return (1, 0.0, value.casefold()) if isinstance(value, str) else (0, float(value or 0), "")


def _is_numeric(rows: Sequence[Row], name: str) -> bool:
    return any(isinstance(row[name], int | float) for row in rows)


# Plain text put together, for speed: whatever is not written here goes through `escape`.
def _head(column: Column, right: bool) -> str:
    return f'<th scope="col" title="{escape(column.help)}"{_class(column, right)}>{escape(column.title)}</th>'


def _cell(row: Row, column: Column, right: bool) -> str:
    text = column.show(row[column.name])
    shown = " ".join(map(_badge, text.split())) if column.badge else escape(text)
    link = column.link(row) if column.link else ""
    inner = f'<a href="{escape(link)}">{shown}</a>' if link else shown
    return f"<td{_class(column, right)}>{inner}</td>"


def _class(column: Column, right: bool) -> str:
    return ' class="hg-n"' if right else ' class="hg-prose"' if column.prose else ""


def _badge(word: str) -> str:
    return f'<span class="hg-badge">{escape(word)}</span>'
