"""Mann-Whitney, the shift between two samples, Benjamini-Hochberg, and the simulation behind INFLATION."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_statistics import World, all_looks, simulate, stop

from harness.timing.two_sample import INFLATION, benjamini_hochberg, mann_whitney, shift

values = st.lists(st.floats(-5, 5), min_size=1, max_size=20)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 3), (4, 4), (3, 6)])
def test_exact_p_values_are_those_of_enumeration(n: int, m: int) -> None:
    """Every way to deal n + m ranks to two sides is equally likely."""
    deals = list(itertools.combinations(range(n + m), n))

    def above(deal: tuple[int, ...]) -> int:
        return sum(rank > other for rank in deal for other in set(range(n + m)) - set(deal))

    for deal in deals:
        others = sorted(set(range(n + m)) - set(deal))
        extreme = min(above(deal), n * m - above(deal))
        expected = min(1.0, 2 * sum(above(each) <= extreme for each in deals) / len(deals))
        assert mann_whitney([float(r) for r in deal], [float(r) for r in others], 1.0) == pytest.approx(expected)


def test_published_critical_value() -> None:
    # Tables give U = 23 as the two-sided 5 % critical value for 10 against 10: p(23) <= 0.05 < p(24).
    first = np.arange(10.0)
    p_values = {}
    for moved in np.arange(0.5, 12, 1.0):
        second = first + moved
        smaller = min((first[:, None] > second).sum(), (first[:, None] < second).sum())
        p_values[int(smaller)] = mann_whitney(first, second, 1.0)
    assert p_values[21] <= 0.05 < p_values[28]


def test_normal_approximation_agrees_with_the_exact_distribution_and_takes_ties() -> None:
    rng = np.random.default_rng(1)
    for moved in (0.0, 0.2, 0.5):
        first, second = rng.standard_normal(40), rng.standard_normal(40) + moved
        exact = mann_whitney(first, second, 1.0)
        tied = mann_whitney(np.append(first, 9.0), np.append(second, 9.0), 1.0)
        assert tied == pytest.approx(exact, rel=0.25, abs=0.02)
    assert mann_whitney([1.0] * 10, [1.0] * 10) == 1.0


@given(values, values)
def test_p_is_symmetric_a_probability_and_one_for_equal_samples(first: list[float], second: list[float]) -> None:
    p = mann_whitney(first, second)
    assert 0 <= p <= 1
    assert p == pytest.approx(mann_whitney(second, first))
    assert mann_whitney(first, first) > 0.99


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_sample_raises(bad: float) -> None:
    for first, second in (([1.0, bad], [1.0]), ([1.0], [bad]), ([], [1.0])):
        with pytest.raises(ValueError, match="finite"):
            mann_whitney(first, second)


@given(values, values)
def test_shift_is_the_median_difference_and_swapping_inverts_it(first: list[float], second: list[float]) -> None:
    there, back = shift(np.array(first), np.array(second)), shift(np.array(second), np.array(first))
    expected = np.median([a - b for a in first for b in second])
    assert math.log(there.value) == pytest.approx(expected, abs=1e-9)
    assert [there.low, there.high] == pytest.approx([1 / back.high, 1 / back.low], rel=1e-9)


def test_benjamini_hochberg_of_a_known_case() -> None:
    # Worked example of their paper, table of section 4.1: four of fifteen are found at 5 %.
    p_values = [
        0.0001,
        0.0004,
        0.0019,
        0.0095,
        0.0201,
        0.0278,
        0.0298,
        0.0344,
        0.0459,
        0.3240,
        0.4262,
        0.5719,
        0.6528,
        0.7590,
        1,
    ]
    adjusted = benjamini_hochberg(p_values)
    assert sum(p <= 0.05 for p in adjusted) == 4
    assert adjusted == sorted(adjusted)
    assert benjamini_hochberg(p_values[::-1]) == adjusted[::-1]
    assert benjamini_hochberg([]) == []


@pytest.fixture(scope="module")
def null_p_values() -> np.ndarray:
    """Of 4,000 shapes measured twice by the rounds that the intervals are calibrated on, stopping where they stop."""
    runs = [simulate(World(), 4_000, seed) for seed in (21, 22)]
    lengths = [stop(all_looks(run), 0.01).rounds for run in runs]
    logs = [run.mean(axis=1) for run in runs]
    pairs = zip(logs[0], lengths[0], logs[1], lengths[1], strict=True)
    return np.array([mann_whitney(a[:n], b[:m], 1.0) for a, n, b, m in pairs])


def test_inflation_keeps_the_stated_rate(null_p_values: np.ndarray) -> None:
    from harness.timing.two_sample import _inflated

    corrected = np.array([_inflated(p, INFLATION) for p in null_p_values])
    assert (corrected < 0.05).mean() <= 0.055
    assert (corrected < 0.001).mean() <= 0.0015
    false_runs = [any(p <= 0.05 for p in benjamini_hochberg(list(part))) for part in corrected.reshape(20, 200)]
    assert sum(false_runs) <= 3, "with nothing to find, at most one run in twenty flags anything"


def test_without_it_the_rate_is_not_kept(null_p_values: np.ndarray) -> None:
    assert (null_p_values < 0.001).mean() > 0.0015
