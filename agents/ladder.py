"""Ladder: what a search's table says of the families, as docs/kernels.md quotes it.

python -m agents.ladder agents/data/h200-20261201.jsonl.gz
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from agents.analytic import estimate_ns
from agents.config import Family, KernelConfig, Split, Store
from agents.journal import Final, Heat, Segment, read_journal
from agents.search import speedup
from harness.problem import Problem
from harness.profiles import load_profile
from harness.rewards import MEASURE
from harness.scores import Regime, regime

H200 = load_profile("h200")
Times = Mapping[Problem, Mapping[KernelConfig, float]]
"""Nanoseconds per operation, cold and timed briefly."""
Choice = Callable[[KernelConfig], bool]


def _of(family: Family) -> Choice:
    return lambda config: config.family is family


PIECES: dict[str, Choice] = {
    **{f"family {family}": _of(family) for family in Family},
    "any way to share a tile but stream": lambda c: c.split not in (Split.NONE, Split.STREAM),
    "stream": lambda c: c.split is Split.STREAM,
    "clusters that share loads": lambda c: c.cluster_ctas > 1,
    "ping-pong": lambda c: c.ping_pong,
    "widths that are no powers of two": lambda c: c.bn & (c.bn - 1) != 0,
    "swapped orientation": lambda c: c.swapped,
}
ALIKE = ("layout", "stages", "buffers", "group")
PAIRS: dict[str, tuple[Choice, Choice, tuple[str, ...]]] = {
    "no cluster over a pair": (
        lambda c: c.family is Family.WS_PERSISTENT and c.split is Split.NONE and c.cluster_ctas == 1,
        lambda c: c.family is Family.WS_PERSISTENT and c.split is Split.NONE and c.cluster_ctas == 2,
        ("cluster_p", "cluster_q"),
    ),
    "whole tiles over stream": (lambda c: c.split is Split.NONE, lambda c: c.split is Split.STREAM, ("split",)),
    "stages of 64 over 128": (lambda c: c.bk == 64, lambda c: c.bk == 128, ("bk",)),
    "rows over tma": (
        lambda c: c.store is Store.ROWS,
        lambda c: c.store is Store.TMA,
        ("store",),
    ),
    "rows over registers": (
        lambda c: c.store is Store.ROWS,
        lambda c: c.store is Store.DIRECT,
        ("store",),
    ),
    "one CTA a multiprocessor over two": (lambda c: c.ctas_per_sm == 1, lambda c: c.ctas_per_sm == 2, ("ctas_per_sm", "bk")),
}
SPLITS = (Split.CLUSTER, Split.ATOMIC, Split.WORKSPACE, Split.KERNEL)
FIRST = (1, 12, 24)


def geomean(ratios: Sequence[float]) -> float:
    """Of positive numbers; NaN where there are none."""
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


def grouped(ratios: Mapping[Problem, float]) -> dict[Regime, list[float]]:
    """By regime, in the order of regimes; those without a shape are left out."""
    found: dict[Regime, list[float]] = {name: [] for name in Regime}
    for problem, ratio in ratios.items():
        found[regime(problem, H200)].append(ratio)
    return {name: values for name, values in found.items() if values}


def by_regime(ratios: Mapping[Problem, float]) -> str:
    """Geometric mean and count in each regime."""
    found = grouped(ratios)
    return ", ".join(f"{name} {geomean(values):.4f} ({len(values)})" for name, values in found.items())


def best_speedups(finals: Sequence[Final]) -> dict[Problem, float]:
    """Of the best verified configuration of each shape over the anchor."""
    best: dict[Problem, float] = {}
    for final in finals:
        if final.record is not None and speedup(final) is not None:
            timing = next(timing for timing in final.record.timings if timing.measure == MEASURE)
            value = timing.speedups[final.record.baselines[-1]].value
            best[final.problem] = max(value, best.get(final.problem, 0.0))
    return best


def standing(finals: Sequence[Final]) -> Iterator[str]:
    """The best verified configuration of each shape against the anchor."""
    best = best_speedups(finals)
    for name, values in grouped(best).items():
        yield _standing(name, values)
    yield _standing("all", list(best.values()))


def _standing(name: str, values: Sequence[float]) -> str:
    wins = sum(value > 1 for value in values) / len(values)
    return f"speedup, {name}: {geomean(values):.3f} over {len(values)} shapes, wins {wins:.1%}, worst {min(values):.3f}"


def worth(times: Times) -> Iterator[str]:
    """By how much the best time of a shape would grow without a piece."""
    for name, is_piece in PIECES.items():
        ratios = {}
        for problem, timed in times.items():
            others = [time for config, time in timed.items() if not is_piece(config)]
            if others:
                ratios[problem] = min(others) / min(timed.values())
        yield f"without {name}: {by_regime(ratios)}"


def pairs(times: Times) -> Iterator[str]:
    """Times of configurations that differ in one thing, the first over the second."""
    for name, (is_first, is_second, differs) in PAIRS.items():
        ratios = []
        for timed in times.values():
            seconds = {_rest(config, differs): time for config, time in timed.items() if is_second(config)}
            firsts = {_rest(config, differs): time for config, time in timed.items() if is_first(config)}
            ratios += [firsts[rest] / seconds[rest] for rest in firsts.keys() & seconds.keys()]
        yield f"{name}: {geomean(ratios):.3f} ({len(ratios)} pairs)"
    for other in SPLITS[1:]:
        ratios = [
            best[SPLITS[0]] / best[other] for best in map(_best_by_split, times.values()) if {SPLITS[0], other} <= set(best)
        ]
        yield f"best {SPLITS[0]} over best {other}: {geomean(ratios):.3f} ({len(ratios)} shapes)"


def _rest(config: KernelConfig, differs: tuple[str, ...]) -> str:
    return config.model_dump_json(exclude={*ALIKE, *differs})


def _best_by_split(timed: Mapping[KernelConfig, float]) -> dict[Split, float]:
    best: dict[Split, float] = {}
    for config, time in timed.items():
        best[config.split] = min(time, best.get(config.split, math.inf))
    return best


def model(times: Times) -> Iterator[str]:
    """How much slower the best of the model's first choices is than the best that was timed."""
    orders = {problem: _order(problem, timed) for problem, timed in times.items()}
    for first in FIRST:
        ratios = [min(times[p][c] for c in order[:first]) / min(times[p].values()) for p, order in orders.items()]
        yield f"model, best of its first {first}: {geomean(ratios):.4f} of the best"


def _order(problem: Problem, timed: Mapping[KernelConfig, float]) -> list[KernelConfig]:
    return sorted(timed, key=lambda config: estimate_ns(config, problem, H200))


def figures(lines: Sequence[Segment | Heat | Final]) -> Iterator[str]:
    """Everything, a line each."""
    times: dict[Problem, dict[KernelConfig, float]] = defaultdict(dict)
    for line in lines:
        if isinstance(line, Heat) and line.launch_ns is not None:
            times[line.problem][line.config] = line.launch_ns
    finals = [line for line in lines if isinstance(line, Final)]
    yield f"{sum(map(len, times.values()))} timed over {len(times)} shapes, {len(finals)} verified"
    if finals:
        yield from standing(finals)
    yield from (*worth(times), *pairs(times), *model(times))


if __name__ == "__main__":
    sys.stdout.write("\n".join(figures(list(read_journal(Path(sys.argv[1]))))) + "\n")
