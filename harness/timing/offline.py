"""Offline timing: which candidates stand for the baselines, and rounds until every ratio is known well enough.

Both functions only decide what is timed next; a caller passes in how a window is timed. So the same selection, rounds,
intervals and stopping rule serve a GPU, a CPU and a simulation.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from harness.devices import OperationInfo, WindowTime
from harness.record import SUBMISSION, Interval, StopReason
from harness.timing.statistics import LOOKS, decide, median_ns, speedup

HEAT_LAUNCHES = 16
"""Launches at most in a heat: enough to tell who may win, few enough that building a window is cheap."""
FINALISTS = 3
"""Candidates of one baseline that enter the selection rounds."""
FINALIST_MARGIN = 1.25
"""A candidate slower than the fastest of its baseline by this factor in the heats does not enter them."""
CLOCK_TOLERANCE = 0.03
"""Clocks of a round's contenders may differ by this share, beyond what they differ by as a rule, before it is repeated."""
MAX_REPEATED_ROUNDS = 3
"""Rounds repeated for their clocks at most."""

TimeWindow = Callable[[str, int], WindowTime]
"""Times one window of an operation (by key) with a number of launches."""


class Effort(NamedTuple):
    """Windows that a candidate gets in a selection."""

    heats: int
    rounds: int


FULL_EFFORT = Effort(heats=2, rounds=5)
LONG_EFFORT = Effort(heats=1, rounds=3)
"""For operations that take long: their windows differ little, and are what a run's time goes into."""


class Chosen(NamedTuple):
    """An operation that was chosen, with its windows of the selection rounds."""

    operation: OperationInfo
    launch_ns: float
    window_ns: tuple[int, ...]
    launches: int


class Selection(NamedTuple):
    """What a selection came to."""

    chosen: dict[str, Chosen]
    """The winner of every contender."""
    finalists: tuple[OperationInfo, ...]
    """Everybody who reached the selection rounds."""


def select(
    operations: Sequence[OperationInfo],
    window: TimeWindow,
    launches_for: Callable[[float], int],
    seed: int,
    effort: Effort = FULL_EFFORT,
) -> Selection:
    """The fastest candidate of every contender.

    Heats: windows of each candidate, the shortest counts. Then selection rounds over the finalists of all contenders, in
    random order, and the smallest median wins. Where all are finalists anyway, one heat sizes their windows.

    Args:
        operations: candidates of all contenders; a contender with one candidate is measured too.
        window: times a window.
        launches_for: launches that make a selection window, from an estimate of the time per launch in nanoseconds
            (0 where there is none).
        seed: seed of the order.
        effort: how many windows a candidate gets.
    """
    rng = random.Random(seed)
    estimates: dict[str, float] = {}
    launches = min(HEAT_LAUNCHES, launches_for(0))
    heats = effort.heats if any(len(group) > FINALISTS for group in _by_contender(operations).values()) else 1
    for _ in range(heats):
        for operation in rng.sample(list(operations), len(operations)):
            time_ns = window(operation.key, launches).window_ns / launches
            estimates[operation.key] = min(time_ns, estimates.get(operation.key, time_ns))
    finalists = [operation for group in _by_contender(operations).values() for operation in _finalists(group, estimates)]
    launches_of = {operation.key: launches_for(estimates[operation.key]) for operation in finalists}
    windows: dict[str, list[int]] = {operation.key: [] for operation in finalists}
    for _ in range(effort.rounds):
        for operation in rng.sample(finalists, len(finalists)):
            windows[operation.key].append(window(operation.key, launches_of[operation.key]).window_ns)
    chosen = {}
    for contender, group in _by_contender(finalists).items():
        rates = {operation.key: median_ns(windows[operation.key]) / launches_of[operation.key] for operation in group}
        best = min(group, key=lambda operation: rates[operation.key])
        chosen[contender] = Chosen(best, rates[best.key], tuple(windows[best.key]), launches_of[best.key])
    return Selection(chosen, tuple(finalists))


class Rounds(NamedTuple):
    """Scoring rounds of one measure."""

    windows: dict[str, list[WindowTime]]
    """By contender, in order of the rounds."""
    stopped: StopReason
    """What ended them."""
    repeated: int
    """Rounds thrown away because clocks differed."""


def score_rounds(
    launches: Mapping[str, int],
    time_round: Callable[[tuple[str, ...], int], Mapping[str, WindowTime]],
    target_half_width: float,
    seed: int,
    most_rounds: int = LOOKS[-1],
) -> Rounds:
    """Rounds until every baseline's ratio to the submission is known to the target, looking only at 10, 20 and 40.

    One round goes before them that does not count: first windows seem to read up to a half longer. Its clocks
    are what the contenders run at as a rule (a power limit binds them differently); a round in which they stand otherwise
    to one another was disturbed, and is repeated.

    Args:
        launches: launches per window by contender, the submission among them.
        time_round: times one round in the given order; the second argument counts rounds, those included that do not count.
        target_half_width: half-width of the log-ratios at which rounds end.
        seed: seed of the orders.
        most_rounds: the look at which rounds end in any case.
    """
    rng = random.Random(seed)
    windows: dict[str, list[WindowTime]] = {name: [] for name in launches}
    repeated = number = 0

    def one_round() -> Mapping[str, WindowTime]:
        return time_round(tuple(rng.sample(sorted(launches), len(launches))), number)

    usual = one_round()
    while True:
        number += 1
        result = one_round()
        if repeated < MAX_REPEATED_ROUNDS and _disturbed(result, usual):
            repeated += 1
            continue
        for name in launches:
            windows[name].append(result[name])
        rounds = len(windows[SUBMISSION])
        if rounds in LOOKS:
            stopped = decide(rounds, speedups(windows, launches).values(), target_half_width)
            if stopped is None and rounds >= most_rounds:
                stopped = StopReason.EXHAUSTED
            if stopped is not None:
                return Rounds(windows, stopped, repeated)


def speedups(windows: Mapping[str, Sequence[WindowTime]], launches: Mapping[str, int]) -> dict[str, Interval]:
    """Ratio with interval of every baseline to the submission."""
    mine = [time.window_ns for time in windows[SUBMISSION]]
    return {
        name: speedup([time.window_ns for time in times], launches[name], mine, launches[SUBMISSION])
        for name, times in windows.items()
        if name != SUBMISSION
    }


def _disturbed(result: Mapping[str, WindowTime], usual: Mapping[str, WindowTime]) -> bool:
    """Whether the contenders' clocks differ by more than the tolerance once each is taken relative to its usual one."""
    ratios = [
        time.sm_clock_mhz / before.sm_clock_mhz
        for time, before in ((result[name], usual[name]) for name in result)
        if time.sm_clock_mhz is not None and before.sm_clock_mhz is not None
    ]
    return bool(ratios) and not max(ratios) <= min(ratios) * (1 + CLOCK_TOLERANCE)


def _by_contender(operations: Iterable[OperationInfo]) -> dict[str, list[OperationInfo]]:
    groups: dict[str, list[OperationInfo]] = {}
    for operation in operations:
        groups.setdefault(operation.contender, []).append(operation)
    return groups


def _finalists(group: list[OperationInfo], estimates: Mapping[str, float]) -> list[OperationInfo]:
    ranked = sorted(group, key=lambda operation: estimates[operation.key])
    limit = estimates[ranked[0].key] * FINALIST_MARGIN
    return [operation for operation in ranked[:FINALISTS] if estimates[operation.key] <= limit]
