"""Hodges-Lehmann ratios and intervals, the stopping rule, and the simulation that calibrated their level."""

from __future__ import annotations

import itertools
import math
import random
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.record import Interval, StopReason
from harness.timing import statistics
from harness.timing.statistics import LOOKS, agreement, decide, geomean, geomean_interval, hodges_lehmann, median_ns, speedup

BAD = [math.nan, math.inf, -math.inf, 0.0, -1.0]
logs = st.lists(st.floats(-5, 5), min_size=6, max_size=40)


class World(NamedTuple):
    """What rounds are like. The first is the one that the level was calibrated on."""

    baselines: int = 4
    own_share: float = 0.25
    own_phi: float = 0.3
    drift: float = 1.0
    slow: float = 0.02


def simulate(world: World, shapes: int, seed: int) -> np.ndarray:
    """Log-ratios (shapes, baselines, rounds) whose truth is 0."""
    rng = np.random.default_rng(seed)
    contenders, rounds = world.baselines + 1, LOOKS[-1]
    spread = np.exp(math.log(0.012) + 1.15 * rng.standard_normal(shapes))
    drift = ar1(rng, (shapes, rounds * contenders), 0.95).reshape(shapes, rounds, contenders)
    order = np.argsort(rng.random(drift.shape), axis=-1)
    own = np.swapaxes(ar1(rng, (shapes, contenders, rounds), world.own_phi), 1, 2)
    noise = math.sqrt(world.own_share) * own + math.sqrt(1 - world.own_share) * rng.standard_normal(drift.shape)
    log_time = spread[:, None, None] * (world.drift * np.take_along_axis(drift, order, axis=-1) + noise)
    log_time += np.where(rng.random(drift.shape) < world.slow, np.log(rng.uniform(1.1, 1.3, drift.shape)), 0)
    return np.swapaxes(log_time[..., 1:] - log_time[..., :1], 1, 2)


def ar1(rng: np.random.Generator, shape: tuple[int, ...], phi: float) -> np.ndarray:
    """Unit-variance AR(1) along the last axis."""
    values = rng.standard_normal(shape)
    for step in range(1, shape[-1]):
        values[..., step] = phi * values[..., step - 1] + math.sqrt(1 - phi**2) * values[..., step]
    return values


class Reported(NamedTuple):
    """The bounds that the stopping rule leaves standing, (shapes, baselines), and the look of each shape."""

    bounds: statistics.Bounds
    rounds: np.ndarray

    @property
    def covers(self) -> np.ndarray:
        return (self.bounds.low <= 0) & (self.bounds.high >= 0)


def stop(looks: dict[int, statistics.Bounds], target: float) -> Reported:
    """`decide` for every shape at once; `test_simulation_follows_decide` compares the two."""
    rounds = np.full(len(looks[LOOKS[-1]].value), LOOKS[-1])
    for look in reversed(LOOKS[:-1]):
        narrow = ((looks[look].high - looks[look].low) / 2 <= target).all(axis=1)
        rounds[narrow] = look
    chosen = [np.select([rounds[:, None] == n for n in LOOKS], [looks[n][part] for n in LOOKS]) for part in range(3)]
    return Reported(statistics.Bounds(*chosen), rounds)


def all_looks(log_ratios: np.ndarray) -> dict[int, statistics.Bounds]:
    return {n: statistics.signed_rank_bounds(log_ratios[..., :n]) for n in LOOKS}


@pytest.fixture(scope="module")
def calibrated() -> dict[int, dict[int, statistics.Bounds]]:
    """By count of baselines: bounds at every look."""
    return {1: all_looks(simulate(World(baselines=1), 12_000, 1)), 4: all_looks(simulate(World(), 8_000, 2))}


@pytest.mark.parametrize("baselines", [1, 4])
@pytest.mark.parametrize("target", [0.005, 0.01, 0.02])
def test_reported_interval_covers_95_percent_at_every_look(calibrated, baselines: int, target: float) -> None:
    reported = stop(calibrated[baselines], target)
    assert 0.93 <= reported.covers.mean() <= 0.97
    for look in LOOKS:
        here = reported.rounds == look
        assert here.sum() >= 300, "too few shapes stop here to say anything"
        assert 0.93 <= reported.covers[here].mean() <= 0.97, look


@pytest.mark.parametrize(
    "world",
    [
        World(own_share=0),
        World(own_share=1, own_phi=0.1),
        World(own_share=1, own_phi=0.2),
        World(drift=0),
        World(drift=3),
        World(slow=0),
        World(slow=0.05),
    ],
)
def test_coverage_holds_away_from_the_calibration(world: World) -> None:
    reported = stop(all_looks(simulate(world, 3_000, 3)), 0.01)
    assert 0.93 <= reported.covers.mean() <= 0.975


def test_textbook_level_would_cover_too_little(calibrated, monkeypatch: pytest.MonkeyPatch) -> None:
    cuts = {n: statistics._walsh_cut(n, 0.95) for n in LOOKS}
    monkeypatch.setattr(statistics, "_walsh_cut", cuts.__getitem__)
    assert stop(all_looks(simulate(World(baselines=1), 6_000, 4)), 0.01).covers.mean() < 0.94


def test_strong_autocorrelation_is_seen_by_the_simulation() -> None:
    assert stop(all_looks(simulate(World(own_share=1, own_phi=0.5), 2_000, 5)), 0.01).covers.mean() < 0.90


def test_simulation_follows_decide() -> None:
    log_ratios = simulate(World(), 60, 6)
    reported = stop(all_looks(log_ratios), 0.01)
    assert set(reported.rounds) == set(LOOKS)
    for shape in range(len(log_ratios)):
        for look in LOOKS:
            intervals = [hodges_lehmann(row[:look]) for row in log_ratios[shape]]
            if decide(look, intervals, 0.01) is not None:
                break
        assert look == reported.rounds[shape]
        for baseline, interval in enumerate(intervals):
            expected = [math.exp(part[shape, baseline]) for part in reported.bounds]
            assert [interval.value, interval.low, interval.high] == pytest.approx(expected, rel=1e-12)


def test_geomean_interval_covers_95_percent_or_a_little_more(calibrated) -> None:
    reported = stop(calibrated[1], 0.01)
    value, low, high = (part[:, 0].reshape(240, 50) for part in reported.bounds)
    covered = 0
    for run in range(240):
        rows = zip(value[run], low[run], high[run], strict=True)
        interval = geomean_interval([Interval(value=math.exp(v), low=math.exp(a), high=math.exp(b)) for v, a, b in rows])
        covered += interval.low <= 1 <= interval.high
    assert 0.92 <= covered / 240 <= 0.995


def test_cuts_are_those_of_published_tables() -> None:
    # Two-sided 5 % critical values of the signed-rank statistic: 0 for 6, 2 for 7, 8 for 10, 52 for 20, 264 for 40.
    assert [statistics._walsh_cut(n, 0.95) for n in (6, 7, 10, 20, 40)] == [0, 2, 8, 52, 264]
    with pytest.raises(ValueError, match="too few"):
        statistics._walsh_cut(5)


@pytest.mark.parametrize("rounds", [6, 8, 10])
def test_cut_is_the_largest_that_holds_the_level_by_enumeration_of_signs(rounds: int) -> None:
    sums = [sum(r for r, used in enumerate(signs, 1) if used) for signs in itertools.product((0, 1), repeat=rounds)]

    def level(cut: int) -> float:
        return 1 - 2 * sum(total <= cut for total in sums) / 2**rounds

    cut = statistics._walsh_cut(rounds)
    assert level(cut) >= statistics.LEVEL > level(cut + 1)


@given(logs)
def test_hodges_lehmann_is_the_median_of_walsh_averages(values: list[float]) -> None:
    walsh = sorted((a + b) / 2 for a, b in itertools.combinations_with_replacement(values, 2))
    cut = statistics._walsh_cut(len(values))
    interval = hodges_lehmann(values)
    assert math.log(interval.value) == pytest.approx(float(np.median(walsh)), abs=1e-9)
    assert math.log(interval.low) == pytest.approx(walsh[cut], abs=1e-9)
    assert math.log(interval.high) == pytest.approx(walsh[-1 - cut], abs=1e-9)


@given(logs, st.randoms(use_true_random=False))
def test_order_of_rounds_does_not_matter(values: list[float], rng: random.Random) -> None:
    shuffled = rng.sample(values, len(values))
    assert hodges_lehmann(shuffled) == hodges_lehmann(values)


@given(logs)
def test_swapping_sides_inverts_the_ratio(values: list[float]) -> None:
    there, back = hodges_lehmann(values), hodges_lehmann([-value for value in values])
    assert [there.value, there.low, there.high] == pytest.approx([1 / back.value, 1 / back.high, 1 / back.low], rel=1e-9)


def test_one_outlier_hardly_moves_twenty_rounds() -> None:
    rng = np.random.default_rng(7)
    values = 0.003 * rng.standard_normal(20)
    clean = hodges_lehmann(values)
    values[4] += 0.3
    assert hodges_lehmann(values).value == pytest.approx(clean.value, abs=0.001)
    assert hodges_lehmann(values).high == pytest.approx(clean.high, abs=0.002)


@pytest.mark.parametrize("count", [0, 1, 5, 41])
def test_too_few_or_too_many_rounds_raise(count: int) -> None:
    with pytest.raises(ValueError, match="6 to 40 rounds"):
        hodges_lehmann([0.0] * count)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e4, -1e4])
@pytest.mark.parametrize("at", [0, 5, 9])
def test_log_ratio_that_is_not_finite_raises(bad: float, at: int) -> None:
    values = [0.0] * 10
    values[at] = bad
    with pytest.raises(ValueError, match="not finite"):
        hodges_lehmann(values)


def test_speedup_is_per_launch_and_paired() -> None:
    # Rounds differ by a factor of ten, yet every pair has the ratio 2 windows over 100 launches to 1 over 60.
    submission = [1000 * 10 ** (r % 2) for r in range(10)]
    baseline = [2 * window for window in submission]
    interval = speedup(baseline, 100, submission, 60)
    assert [interval.value, interval.low, interval.high] == pytest.approx([1.2, 1.2, 1.2], rel=1e-12)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("side", [0, 1])
def test_window_that_is_no_time_raises(bad: float, side: int) -> None:
    sides = [[1000.0] * 10, [1000.0] * 10]
    sides[side][3] = bad
    with pytest.raises(ValueError, match="positive and finite"):
        speedup(sides[0], 1, sides[1], 1)  # type: ignore[arg-type]


def test_windows_that_do_not_pair_and_no_launches_raise() -> None:
    with pytest.raises(ValueError, match="do not pair"):
        speedup([1000] * 10, 1, [1000] * 11, 1)
    with pytest.raises(ValueError, match="at least one launch"):
        speedup([1000] * 10, 0, [1000] * 10, 1)
    with pytest.raises(ValueError, match="at least one launch"):
        speedup([1000] * 10, 1, [1000] * 10, math.nan)  # type: ignore[arg-type]


def around(value: float, half_width: float) -> Interval:
    return Interval(value=value, low=value * math.exp(-half_width), high=value * math.exp(half_width))


def test_decide_stops_when_every_ratio_is_precise_and_at_the_last_look() -> None:
    narrow, wide = around(2.0, 0.0099), around(0.5, 0.0101)
    for look in LOOKS:
        assert decide(look, [narrow, narrow], 0.01) is StopReason.PRECISE
    assert decide(10, [narrow, wide], 0.01) is None
    assert decide(20, [wide, narrow], 0.01) is None
    assert decide(40, [narrow, wide], 0.01) is StopReason.EXHAUSTED
    assert decide(10, iter([wide]), 0.011) is StopReason.PRECISE


def test_decide_refuses_other_looks_targets_and_emptiness() -> None:
    narrow = around(1.0, 0.001)
    for rounds in (0, 9, 11, 30, 41):
        with pytest.raises(ValueError, match="no look"):
            decide(rounds, [narrow], 0.01)
    for target in BAD:
        with pytest.raises(ValueError, match="positive and finite"):
            decide(10, [narrow], target)
    with pytest.raises(ValueError, match="no interval"):
        decide(10, [], 0.01)
    for bad in BAD:
        with pytest.raises(ValueError, match="positive and finite"):
            decide(40, [Interval.model_construct(value=1.0, low=bad, high=1.1)], 0.01)


def test_median_is_whole_nanoseconds() -> None:
    assert median_ns([5]) == 5
    assert median_ns([9, 1, 5]) == 5
    assert median_ns([9, 1, 5, 6]) == 5
    assert median_ns([10**18 + 1, 10**18 + 1]) == 10**18 + 1
    for bad in ([], [1, 0], [1, -1], [1, math.nan], [1.5]):
        with pytest.raises(ValueError, match="positive integers"):
            median_ns(bad)


def test_geomean_of_a_thousand_small_or_large_numbers_neither_under_nor_overflows() -> None:
    for value in (20e-6, 20_000.0, 1e-300, 1e300):
        assert geomean([value] * 1000) == pytest.approx(value, rel=1e-12)
    assert geomean([1.0, 4.0]) == pytest.approx(2.0)
    assert geomean([0.5, 2.0]) == pytest.approx(1.0)


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=50), st.randoms(use_true_random=False))
def test_geomean_does_not_depend_on_order_and_lies_within(values: list[float], rng: random.Random) -> None:
    mean = geomean(values)
    assert geomean(rng.sample(values, len(values))) == mean
    assert min(values) * (1 - 1e-12) <= mean <= max(values) * (1 + 1e-12)
    assert geomean([1 / value for value in values]) == pytest.approx(1 / mean)


@pytest.mark.parametrize("bad", BAD)
def test_geomean_raises_on_what_is_no_ratio(bad: float) -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        geomean([1.0, bad])
    with pytest.raises(ValueError, match="at least one"):
        geomean([])
    for field in ("value", "low", "high"):
        broken = Interval.model_construct(**{"value": 1.0, "low": 0.9, "high": 1.1, field: bad})
        for function in (geomean_interval, agreement):
            with pytest.raises(ValueError, match="positive and finite"):
                function([around(1.0, 0.1), broken])


def test_geomean_interval_shrinks_with_the_root_of_the_count() -> None:
    one = around(1.25, 0.04)
    hundred = geomean_interval([one] * 100)
    assert hundred.value == pytest.approx(1.25)
    assert statistics.log_half_width(hundred) == pytest.approx(0.004)
    mixed = geomean_interval([around(1.0, 0.03), around(4.0, 0.04)])
    assert (mixed.value, statistics.log_half_width(mixed)) == (pytest.approx(2.0), pytest.approx(0.025))


def test_agreement_counts_intervals_that_hold_one() -> None:
    intervals = [around(1.0, 0.01), around(1.02, 0.01), around(1 / 1.02, 0.03), around(1.0, 0.02)]
    found = agreement(intervals)
    assert (found.intervals, found.coverage) == (4, 0.75)
    assert found.geomean == pytest.approx(1.0)
    assert found.median_half_width == pytest.approx(0.015)
    with pytest.raises(ValueError, match="at least one"):
        agreement([])


def test_import_does_not_load_numpy() -> None:
    code = "import sys, harness.timing.statistics, harness.scores; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
