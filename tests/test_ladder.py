"""The figures of docs/kernels.md: computed right, and those of the shipped table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from factories import make_record

from agents.config import KernelConfig
from agents.journal import Final, Heat, Segment, read_journal
from agents.ladder import figures, geomean
from agents.search import winners
from harness.plan import Plan
from harness.planner import make_plans
from harness.problem import Problem
from harness.profiles import load_profile
from harness.record import L2State, Mode
from harness.run import Run
from harness.run_report import report_of
from harness.scores import Regime, regime
from harness.submission import Submission

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "agents" / "data" / "h200-20261201.jsonl.gz"
BEST = ROOT / "leaderboard" / "data" / "hopper-best-h200-20261201T095511Z-171c1d4c"
H200 = load_profile("h200")
PROBLEMS = (Problem.parse("64x64x64"), Problem.parse("128x64x64"))
PLAIN = KernelConfig.model_validate({"family": "ws_persistent", "layout": "TN", "bm": 64, "bn": 64, "stages": 4})
PAIR = PLAIN.model_copy(update={"cluster_p": 2})
COUNTS = re.compile(r"([\d]+) timed over (\d+) shapes, (\d+) verified")
WORTH = re.compile(r"without (.+): latency ([\d.]+) .*skinny ([\d.]+) .*bound ([\d.]+) .*compute ([\d.]+)")
AT_LAUNCH = ("group", "splits", "buffers")
"""What a kernel's text may not depend on."""
SKINNY = {
    "20 µs": "{} shapes whose bytes alone take 20 µs or more stand at {:.3f}",
    "10 µs": "{} whose bytes take less than 10 µs at {:.3f}",
    "between": "{} between these at {:.3f}",
    "products": "{} that products bound at {:.3f}",
}
"""What the docs say of skinny products, at 4.3 TB/s and 800 TFLOP/s."""
LEAST_WINS, LEAST_SPEEDUP = 0.75, 0.90
GOALS = {"latency": 1.15, "skinny": 1.05, "compute": 0.99, "output_bound": 1.08, "all": 1.08}


@pytest.fixture(scope="module")
def table() -> list[Segment | Heat | Final]:
    """The shipped table."""
    return list(read_journal(TABLE))


@pytest.fixture(scope="module")
def shipped(table: list[Segment | Heat | Final]) -> str:
    """What it says."""
    return "\n".join(figures(table))


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


def quoted() -> str:
    return " ".join((ROOT / "docs" / "kernels.md").read_text(encoding="utf-8").split())


def test_the_docs_quote_what_the_table_says_of_each_piece(shipped: str) -> None:
    (timed, shapes, verified) = (f"{int(each):,}" for each in COUNTS.findall(shipped)[0])
    assert f"{timed} configurations timed briefly with cold data, {verified} verified" in quoted()
    assert shapes == "1,000"
    assert len(WORTH.findall(shipped)) >= 10
    shown = 0
    for name, *ratios in WORTH.findall(shipped):
        latency, skinny, output, compute = (f"{(float(each) - 1) * 100:.1f} %".replace("0.0 %", "0") for each in ratios)
        piece = re.sub(r"(family|but) (\w+)", r"\1 `\2`", name)
        shown += f"| {piece} | {latency} | {skinny} | {compute} | {output} |" in quoted()
    assert shown == 11


def test_hopper_best_is_the_tables_export_and_the_docs_quote_its_run(table: list[Segment | Heat | Final]) -> None:
    chosen = winners(table)
    submission = Submission.read(ROOT / "submissions" / "hopper-best")
    for problem, plan in make_plans(submission, list(chosen), H200).items():
        assert isinstance(plan, Plan)
        text = submission.file(next(iter(plan.kernels.values())).source)
        assert text is not None
        rendered = KernelConfig.model_validate_json(text.splitlines()[1].removeprefix(b"// "))
        assert rendered == chosen[problem].model_copy(update={name: getattr(rendered, name) for name in AT_LAUNCH})
    run = Run.read(BEST)
    assert run.header.submission.tree_sha256 == submission.tree_sha256
    report = report_of(run)
    speedups = {record.problem: record.timings[0].speedups["cublaslt_autotuned"].value for record in run.records}
    anchored = report.scores[Mode.OFFLINE][L2State.COLD]["cublaslt_autotuned"]
    by_regime = report.regimes[Mode.OFFLINE][L2State.COLD]["cublaslt_autotuned"]
    for name, goal in GOALS.items():
        score = anchored if name == "all" else by_regime[Regime(name)]
        worst = min(value for problem, value in speedups.items() if name in ("all", regime(problem, H200)))
        figures_of = f"{score.shapes} | {score.geomean.value:.3f} | {score.win_rate:.0%} | {worst:.3f} | {goal}".replace(
            "%", " %"
        )
        assert f"| {name.replace('_', '-')} | {figures_of} |" in quoted()
        assert score.geomean.value >= goal
    assert anchored.win_rate >= LEAST_WINS
    assert min(speedups.values()) >= LEAST_SPEEDUP


def test_the_docs_say_by_what_skinny_products_are_bound() -> None:
    found: dict[str, list[float]] = {"products": [], "20 µs": [], "between": [], "10 µs": []}
    for record in Run.read(BEST).records:
        if regime(record.problem, H200) is Regime.SKINNY:
            memory_us, products_us = record.problem.bytes_total / 4.3e6, record.problem.flops / 8e8
            bytes_alone = "20 µs" if memory_us >= 20 else "10 µs" if memory_us < 10 else "between"
            bound = "products" if products_us > memory_us else bytes_alone
            found[bound].append(record.timings[0].speedups["cublaslt_autotuned"].value)
    for bound, said in SKINNY.items():
        assert said.format(len(found[bound]), geomean(found[bound])) in quoted()
