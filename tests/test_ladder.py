"""The figures of docs/kernels.md: computed right, and those of the shipped table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from factories import make_record

from agents.config import KernelConfig
from agents.journal import Final, Heat, read_journal
from agents.ladder import figures, main
from harness.problem import Problem

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "agents" / "data" / "h200-20261130.jsonl.gz"
LATER = ROOT / "agents" / "data" / "h200-20261130-65-shapes.jsonl.gz"
PROBLEMS = (Problem.parse("64x64x64"), Problem.parse("128x64x64"))
PLAIN = KernelConfig.model_validate({"family": "ws_persistent", "layout": "TN", "bm": 64, "bn": 64, "stages": 4})
PAIR = PLAIN.model_copy(update={"cluster_p": 2})
STANDING = re.compile(r"speedup, (\w+): ([\d.]+) over (\d+) shapes, wins ([\d.]+)%, worst ([\d.]+)")
BOTH = re.compile(r"both, (\w+): ([\d.]+), then ([\d.]+) over (\d+) shapes")
ROWS = re.compile(r"^rows over .*: ([\d.]+) \(", re.MULTILINE)
WORTH = re.compile(r"without family ws_persistent: compute ([\d.]+) .*latency ([\d.]+) .*bound ([\d.]+) .*skinny ([\d.]+)")


@pytest.fixture(scope="module")
def shipped() -> str:
    """What the shipped table says."""
    return "\n".join(figures(list(read_journal(TABLE))))


def test_each_figure_is_what_it_is_called() -> None:
    times = {PROBLEMS[0]: (2_000.0, 1_000.0), PROBLEMS[1]: (1_000.0, 2_000.0)}
    lines: list[Heat | Final] = []
    for problem, (plain, pair) in times.items():
        lines += [Heat(problem=problem, config=PLAIN, launch_ns=plain), Heat(problem=problem, config=PAIR, launch_ns=pair)]
    for speedup in (0.8, 1.25):
        record = make_record(PROBLEMS[0], speedups={"cublaslt_autotuned": speedup})
        lines.append(Final(problem=PROBLEMS[0], config=PLAIN, record=record))
    found = list(figures(lines))
    assert found[0] == "4 timed over 2 shapes, 2 verified"
    assert "speedup, all: 1.250 over 1 shapes, wins 100.0%, worst 1.250" in found
    assert "without clusters that share loads: latency 1.4142 (2)" in found
    assert "no cluster over a pair: 1.000 (2 pairs)" in found


def test_the_docs_quote_the_shipped_table(shipped: str) -> None:
    text = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    rows = STANDING.findall(shipped)
    assert len(rows) == 5
    for name, geomean, count, wins, worst in rows:
        what = f"| {name.replace('_', '-')} | {count} | {geomean} | {round(float(wins))} % | {worst} |"
        assert what in text
    (pieces,) = WORTH.findall(shipped)
    compute, latency, output, skinny = ((float(each) - 1) * 100 for each in pieces)
    assert f"| family `ws_persistent` | {latency:.1f} % | {skinny:.1f} % | {compute:.1f} % | {output:.1f} % |" in text


def test_the_docs_quote_the_later_table_and_its_comparison_with_the_first() -> None:
    text = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    found = "\n".join(main([str(TABLE), str(LATER)]))
    rows = STANDING.findall(found)
    assert [name for name, *_ in rows] == ["compute", "latency", "output_bound", "skinny", "all"]
    both = {name: f"{count}: {then}, {now}" for name, then, now, count in BOTH.findall(found)}
    for name, geomean, count, wins, worst in rows[:-1]:
        row = f"| {name.replace('_', '-')} | {count} | {geomean} | {round(float(wins))} % | {worst} | {both[name]} |"
        assert row in text
    tma, registers, together, in_turn = (abs(float(ratio) - 1) * 100 for ratio in ROWS.findall(found))
    assert f"{tma:.1f} % quicker than TMA, {registers:.1f} % quicker than from registers" in text
    assert f"{together:.1f} % slower where warpgroups share a tile and {in_turn:.1f} % where they take turns" in " ".join(
        text.split()
    )
