"""Selection and scoring rounds on a simulated device: who is timed, when, in what order, and what comes of it."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.devices import OperationInfo, WindowTime
from harness.plan import Layout
from harness.record import SUBMISSION, StopReason
from harness.timing.offline import (
    CLOCK_TOLERANCE,
    FINALISTS,
    FULL_EFFORT,
    HEAT_LAUNCHES,
    MAX_REPEATED_ROUNDS,
    Selection,
    score_rounds,
    select,
    speedups,
)
from harness.timing.statistics import LOOKS, log_half_width

WINDOW_NS = 200_000
UNCOUNTED = 1
"""Rounds at most that come before those that count."""


class Simulation:
    """A device whose operations take a given time per launch, with log-normal noise, and a log of all its windows."""

    def __init__(self, launch_ns: Mapping[str, float], noise: float = 0.0, seed: int = 0) -> None:
        self.launch_ns = dict(launch_ns)
        self.noise = noise
        self.log: list[tuple[str, int]] = []
        self._rng = random.Random(seed)

    def window(self, key: str, launches: int) -> WindowTime:
        self.log.append((key, launches))
        return WindowTime(window_ns=round(self.launch_ns[key] * launches * math.exp(self._rng.gauss(0, self.noise))))

    def select(self, seed: int = 0) -> Selection:
        operations = [
            OperationInfo(key=key, contender=key.split("/")[0], layout=Layout.NN, description=key) for key in self.launch_ns
        ]
        return select(operations, self.window, lambda ns: min(64, int(WINDOW_NS / max(ns, 1000)) + 1), seed)


def candidates(**groups: list[float]) -> dict[str, float]:
    return {f"{name}/{number}": time for name, times in groups.items() for number, time in enumerate(times)}


times = st.floats(min_value=500, max_value=100_000)


@settings(max_examples=50)
@given(
    st.dictionaries(st.sampled_from(["cublas", "cublaslt", SUBMISSION]), st.lists(times, min_size=1, max_size=9), min_size=1),
    st.integers(0, 99),
)
def test_the_fastest_candidate_of_every_contender_is_chosen(groups: dict[str, list[float]], seed: int) -> None:
    simulation = Simulation(candidates(**groups))
    selection = simulation.select(seed)
    assert set(selection.chosen) == set(groups)
    for name, pick in selection.chosen.items():
        fastest = min(groups[name])
        assert simulation.launch_ns[pick.operation.key] == pytest.approx(fastest, rel=2e-3)
        assert pick.launch_ns == pytest.approx(fastest, rel=2e-3)
        assert len(pick.window_ns) == FULL_EFFORT.rounds


def test_noise_smaller_than_the_margin_does_not_change_the_winner() -> None:
    groups = candidates(cublas=[10_000.0 + 800 * i for i in range(30)], cublaslt=[20_000.0, 18_000.0])
    for seed in range(20):
        chosen = Simulation(groups, noise=0.01, seed=seed).select(seed).chosen
        assert {name: pick.operation.key for name, pick in chosen.items()} == {"cublas": "cublas/0", "cublaslt": "cublaslt/1"}


def test_losers_are_dropped_after_two_short_heats() -> None:
    simulation = Simulation(candidates(cublas=[1_000.0 * (i + 1) for i in range(50)], cublaslt=[5_000.0, 5_100.0]))
    finalists = {operation.key for operation in simulation.select().finalists}
    assert finalists == {"cublas/0", "cublaslt/0", "cublaslt/1"}
    heats, rounds = simulation.log[:104], simulation.log[104:]
    assert Counter(key for key, _ in heats) == dict.fromkeys(simulation.launch_ns, 2)
    assert {launches for _, launches in heats} == {HEAT_LAUNCHES}
    assert Counter(key for key, _ in rounds) == dict.fromkeys(finalists, FULL_EFFORT.rounds)
    assert dict(rounds) == {"cublas/0": 64, "cublaslt/0": 41, "cublaslt/1": 40}


def test_no_more_than_the_best_few_are_finalists_however_close_they_are() -> None:
    simulation = Simulation(candidates(cublas=[1_000.0 + i for i in range(20)]))
    assert {operation.key for operation in simulation.select().finalists} == {f"cublas/{i}" for i in range(FINALISTS)}


def test_one_slow_heat_does_not_lose_the_race() -> None:
    simulation = Simulation(candidates(cublas=[1_000.0, *[1_200.0] * 9]))
    plain, seen = simulation.window, Counter[str]()

    def interrupted(key: str, launches: int) -> WindowTime:
        seen[key] += 1
        time = plain(key, launches)
        return WindowTime(window_ns=time.window_ns * (10 if key == "cublas/0" and seen[key] == 1 else 1))

    simulation.window = interrupted  # type: ignore[method-assign]
    assert simulation.select().chosen["cublas"].operation.key == "cublas/0"


def test_the_order_of_a_selection_is_random_and_follows_from_the_seed() -> None:
    groups = candidates(cublas=[1_000.0] * FINALISTS, cublaslt=[1_000.0] * FINALISTS)
    logs = []
    for seed in (1, 1, 2):
        simulation = Simulation(groups)
        simulation.select(seed)
        logs.append(simulation.log)
    assert logs[0] == logs[1] != logs[2]
    count = len(groups)
    rounds = [tuple(key for key, _ in logs[0][start : start + count]) for start in range(count, len(logs[0]), count)]
    assert len(rounds) == FULL_EFFORT.rounds
    assert all(sorted(each) == sorted(groups) for each in rounds)
    assert len(set(rounds)) == len(rounds)


class Rounds:
    """Rounds of contenders with a given time, noise per look, and clocks; it keeps the orders that it was given."""

    def __init__(self, clocks: Callable[[int, str], int | None] = lambda number, name: None, noise: float = 0.0) -> None:
        self.orders: list[tuple[str, ...]] = []
        self.numbers: list[int] = []
        self._clocks, self._noise, self._rng = clocks, noise, random.Random(7)

    def __call__(self, order: tuple[str, ...], number: int) -> dict[str, WindowTime]:
        self.orders.append(order)
        self.numbers.append(number)
        return {
            name: WindowTime(
                window_ns=round((1_000_000 if name == SUBMISSION else 1_500_000) * math.exp(self._rng.gauss(0, self._noise))),
                sm_clock_mhz=self._clocks(number, name),
            )
            for name in order
        }


LAUNCHES = {SUBMISSION: 10, "cublas": 10, "cublaslt": 30}


def test_rounds_end_at_the_first_look_that_is_precise() -> None:
    rounds = Rounds()
    got = score_rounds(LAUNCHES, rounds, 0.01, seed=1)
    assert (got.stopped, got.repeated) == (StopReason.PRECISE, 0)
    assert {name: len(windows) for name, windows in got.windows.items()} == dict.fromkeys(LAUNCHES, LOOKS[0])


@pytest.mark.parametrize("noise", [0.005, 0.02, 0.03, 0.05, 0.3])
def test_rounds_end_at_looks_only_and_say_why(noise: float) -> None:
    rounds = Rounds(noise=noise)
    got = score_rounds(LAUNCHES, rounds, 0.02, seed=1)
    count = len(got.windows[SUBMISSION])
    assert count in LOOKS
    assert rounds.numbers == list(range(len(rounds.numbers)))
    assert len(rounds.numbers) - count <= UNCOUNTED
    for look in (look for look in LOOKS if look <= count):
        ratios = speedups({name: windows[:look] for name, windows in got.windows.items()}, LAUNCHES)
        precise = all(log_half_width(ratio) <= 0.02 for ratio in ratios.values())
        assert precise == (look == count and got.stopped is StopReason.PRECISE)
    assert got.stopped is StopReason.PRECISE or count == LOOKS[-1]
    assert ratios["cublaslt"].value == pytest.approx(ratios["cublas"].value / 3, rel=5 * noise)


def test_the_last_look_can_be_an_earlier_one() -> None:
    for most in LOOKS:
        got = score_rounds(LAUNCHES, Rounds(noise=0.5), 0.001, seed=1, most_rounds=most)
        assert len(got.windows["cublas"]) == most
        assert got.stopped is StopReason.EXHAUSTED


def test_every_round_has_everybody_once_in_a_random_order_that_follows_from_the_seed() -> None:
    orders = []
    for seed in (1, 1, 2):
        rounds = Rounds(noise=0.5)
        score_rounds(LAUNCHES, rounds, 0.001, seed)
        orders.append(rounds.orders)
    assert orders[0] == orders[1] != orders[2]
    assert all(sorted(order) == sorted(LAUNCHES) for order in orders[0])
    assert len(set(orders[0])) == math.factorial(len(LAUNCHES))


def test_a_round_whose_clocks_are_disturbed_is_thrown_away_and_repeated() -> None:
    rounds = Rounds(clocks=lambda number, name: 1900 if number == 3 and name == "cublas" else 1800)
    got = score_rounds(LAUNCHES, rounds, 0.01, seed=1)
    assert got.repeated == 1
    assert LOOKS[0] + 1 <= len(rounds.numbers) <= LOOKS[0] + 1 + UNCOUNTED
    assert all(window.sm_clock_mhz == 1800 for windows in got.windows.values() for window in windows)


def test_clocks_that_differ_as_a_rule_repeat_nothing() -> None:
    rounds = Rounds(clocks=lambda number, name: 1500 if name == SUBMISSION else 2000)
    got = score_rounds(LAUNCHES, rounds, 0.01, seed=1)
    assert got.repeated == 0
    assert len(rounds.orders) == LOOKS[0] + 1


@pytest.mark.parametrize("differs", [lambda number: number > 0, lambda number: number % 2 == 0, lambda number: number % 3 < 2])
def test_repeats_are_bounded(differs: Callable[[int], bool]) -> None:
    rounds = Rounds(clocks=lambda number, name: 1000 if differs(number) and name == SUBMISSION else 2000)
    got = score_rounds(LAUNCHES, rounds, 0.01, seed=1)
    assert 1 <= got.repeated <= MAX_REPEATED_ROUNDS
    assert 0 <= len(rounds.orders) - LOOKS[0] - got.repeated <= UNCOUNTED
    assert {len(windows) for windows in got.windows.values()} == {LOOKS[0]}


def test_clocks_within_the_tolerance_or_unknown_repeat_nothing() -> None:
    inside = round(2000 * (1 + CLOCK_TOLERANCE))
    for clock in (inside, None):
        rounds = Rounds(clocks=lambda number, name, clock=clock: clock if name == SUBMISSION else 2000)  # type: ignore[misc]
        assert score_rounds(LAUNCHES, rounds, 0.01, seed=1).repeated == 0


def test_a_time_that_is_no_positive_integer_never_enters() -> None:
    for bad in (0, -1, math.nan, math.inf, 1.5):
        with pytest.raises(ValueError, match="window_ns"):
            WindowTime.model_validate({"window_ns": bad})
