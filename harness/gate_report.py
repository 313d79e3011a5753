"""A verdict for people: lines for a terminal, Markdown for a job's summary, JUnit XML for what reads test results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from harness.gate import Limits, Outcome, Row, Verdict
from harness.model import InfraError

SHOWN = 10
"""Shapes listed at most, the gravest first."""
SHOWN_FAULTS = 20

MEANINGS = {
    Outcome.PASS: "nothing is slower than it may be",
    Outcome.FAIL: "slower than it may be, beyond chance",
    Outcome.AMBIGUOUS: "it cannot be told from noise whether something is slower than it may be",
    Outcome.INVALID: "nothing can be said",
}
HEADS = ("submission", "measure", "unit", "shapes", "time now / before", "95 % interval", "limit", "verdict")


def lines(verdict: Verdict) -> Iterator[str]:
    """The verdict as text, the outcome first."""
    yield headline(verdict)
    for fault in verdict.faults[:SHOWN_FAULTS]:
        yield f"  invalid: {fault}"
    if len(verdict.faults) > SHOWN_FAULTS:
        yield f"  and {len(verdict.faults) - SHOWN_FAULTS} more"
    cells = [HEADS, *(_cells(row) for row in shown(verdict))]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEADS))]
    if len(cells) > 1:
        yield from ("  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)
    yield from (f"  {note}" for note in notes(verdict))


def markdown(verdict: Verdict) -> str:
    """The verdict as a section of Markdown."""
    found = [f"### hgemm gate: {verdict.outcome}", "", headline(verdict).partition(": ")[2].capitalize() + ".", ""]
    found += [f"- {fault}" for fault in verdict.faults[:SHOWN_FAULTS]]
    rows = shown(verdict)
    if rows:
        found += [f"| {' | '.join(HEADS)} |", "|" + " --- |" * len(HEADS)]
        found += [f"| {' | '.join(_bold(row))} |" for row in rows]
    found += ["", *(f"{note}  " for note in notes(verdict))]
    return "\n".join(found) + "\n"


def junit(verdict: Verdict) -> str:
    """The verdict as a JUnit test suite: one case for the comparison as a whole, and one per unit."""
    counts = {outcome: sum(row.outcome is outcome for row in verdict.rows) for outcome in Outcome}
    suite = ElementTree.Element(
        "testsuite",
        name="hgemm gate",
        tests=str(len(verdict.rows) + 1),
        failures=str(counts[Outcome.FAIL] + counts[Outcome.AMBIGUOUS]),
        errors=str(int(verdict.outcome is Outcome.INVALID)),
    )
    whole = ElementTree.SubElement(suite, "testcase", classname="hgemm gate", name="comparable")
    if verdict.outcome is Outcome.INVALID:
        ElementTree.SubElement(whole, "error", message=headline(verdict)).text = "\n".join(verdict.faults)
    for row in verdict.rows:
        case = ElementTree.SubElement(suite, "testcase", classname=f"{row.submission} {row.measure}", name=row.unit)
        if row.outcome is not Outcome.PASS:
            message = f"{row.slowdown.value - 1:+.1%} where {row.limit:.1%} is allowed"
            ElementTree.SubElement(case, "failure", type=row.outcome.value, message=message)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def headline(verdict: Verdict) -> str:
    """The outcome in a sentence."""
    text = f"hgemm gate: {verdict.outcome}: {MEANINGS[verdict.outcome]}"
    if verdict.outcome in {Outcome.FAIL, Outcome.AMBIGUOUS}:
        worst = shown(verdict)[0]
        by = worst.slowdown.value - 1
        change = f"{abs(by):.1%} {'more' if by > 0 else 'less'} time"
        text += f"; {worst.submission} takes {change} over {worst.unit} ({worst.measure})"
    return text


def shown(verdict: Verdict) -> list[Row]:
    """The groups, and the shapes that did not pass, the gravest first."""
    order = (Outcome.FAIL, Outcome.AMBIGUOUS, Outcome.PASS)
    groups = sorted(verdict.groups, key=lambda row: order.index(row.outcome))
    shapes = [row for row in verdict.shapes if row.outcome is not Outcome.PASS]
    shapes.sort(key=lambda row: (order.index(row.outcome), -row.slowdown.value))
    return sorted([*groups, *shapes[:SHOWN]], key=lambda row: order.index(row.outcome))


def notes(verdict: Verdict) -> Iterator[str]:
    """What a reviewer needs to know beside the table."""
    if verdict.rows:
        what = f"relative to {verdict.relative_to}" if verdict.relative_to else "per launch"
        yield f"times {what}, {len(verdict.shapes)} shapes and measures; limit {_limits(verdict.limits)}"
    if any(row.machine for row in verdict.rows if row.outcome is Outcome.AMBIGUOUS):
        yield "the baselines of the same rounds slowed as well, so the machine may have"
    if verdict.again:
        yield f"measured again because it was ambiguous: {verdict.again} times"
    if verdict.baseline is not None:
        yield f"baseline of {verdict.baseline.accepted_utc}: {verdict.baseline.reason}"
    if verdict.drift is not None:
        yield f"since the anchor of {verdict.anchor_utc}: {verdict.drift - 1:+.1%} in all"


def write(verdict: Verdict, markdown_path: Path | None, junit_path: Path | None) -> None:
    """Write the files that were asked for.

    Raises:
        InfraError: one cannot be written.
    """
    for path, make in ((markdown_path, markdown), (junit_path, junit)):
        if path is None:
            continue
        try:
            path.write_text(make(verdict), encoding="utf-8")
        except OSError as error:
            raise InfraError(f"{path} cannot be written ({error.strerror}); name another file.") from error


def _cells(row: Row) -> tuple[str, ...]:
    ratio = row.slowdown
    return (
        row.submission,
        str(row.measure),
        row.unit,
        str(row.shapes),
        f"{ratio.value:.3f}",
        f"{ratio.low:.3f}-{ratio.high:.3f}",
        f"{row.limit:+.1%}",
        row.outcome.value,
    )


def _bold(row: Row) -> tuple[str, ...]:
    cells = _cells(row)
    return cells if row.outcome is Outcome.PASS else (*cells[:-1], f"**{cells[-1]}**")


def _limits(limits: Limits) -> str:
    return ", ".join([f"{limits.default:.1%}", *(f"{regime} {limit:.1%}" for regime, limit in limits.regimes.items())])
