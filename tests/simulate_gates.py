"""How often the gate is wrong, by simulation: docs/ci.md quotes `python tests/simulate_gates.py 1000`."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Mapping

from gates import MOST_SPREAD, World, again, benchmarks

from harness.gate import Limits, Outcome, Verdict, judge, settle
from harness.gate_data import Results, collect

QUICK = World()
NOISIEST = World(spread=MOST_SPREAD)
"""Every shape as noisy as the noisiest."""
ONE_SHAPE = {"256x8192x2048": 1.10}
CASES: Mapping[str, World] = {
    "no change": QUICK,
    "10 % slower at every shape": QUICK.but(slower=1.10),
    "10 % slower at one shape": QUICK.but(by_shape=ONE_SHAPE),
    "10 % slower machine": QUICK.but(machine=1.10),
    "7 % spread everywhere, no change": NOISIEST,
    "7 % spread everywhere, 10 % slower at every shape": NOISIEST.but(slower=1.10),
    "7 % spread everywhere, 10 % slower at one shape": NOISIEST.but(by_shape=ONE_SHAPE),
}
RATIOS = ("", "cublaslt_autotuned")


def gates(world: World, count: int, ratio: str = "", first_seed: int = 1) -> tuple[Counter[Outcome], Counter[Outcome]]:
    """Outcomes of that many gates of a limit of 5 %: at the first look, and once ambiguous ones were measured again."""
    first, last = Counter[Outcome](), Counter[Outcome]()
    for seed in range(first_seed, first_seed + count):
        verdicts = list(_looks(world, ratio, seed))
        first[verdicts[0].outcome] += 1
        last[verdicts[-1].outcome] += 1
    return first, last


def _looks(world: World, ratio: str, seed: int) -> list[Verdict]:
    """What one gate says at every look."""
    baseline = collect(benchmarks(world.but(slower=1.0, machine=1.0, by_shape={}), 2 * seed))
    more, said = itertools.count(1), []

    def decide(results: Results) -> Verdict:
        said.append(judge(results, baseline, Limits(), ratio))
        return said[-1]

    settle(collect(benchmarks(world, 2 * seed + 1)), decide, lambda of: again(world, of, 1_000_000 * next(more) + seed))
    return said


def main() -> None:
    """Print a table in Markdown."""
    count, ratios = int(sys.argv[1]), sys.argv[2:] or RATIOS
    out = sys.stdout.write
    out(f"{count} gates each, share in %: at the first look → after measuring again\n\n")
    out(f"| relative to | truth | {' | '.join(outcome for outcome in Outcome if outcome is not Outcome.INVALID)} |\n")
    out("| --- | --- | --- | --- | --- |\n")
    for ratio, (title, world) in itertools.product(ratios, CASES.items()):
        first, last = gates(world, count, ratio)
        shares = [f"{100 * first[each] / count:.1f} → {100 * last[each] / count:.1f}" for each in list(Outcome)[:3]]
        out(f"| {ratio or 'time itself'} | {title} | {' | '.join(shares)} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
