"""`harness.reward` and the public API that it is part of."""

from __future__ import annotations

import math

import pytest
from factories import make_record, ratio
from hypothesis import given
from hypothesis import strategies as st

import harness
from harness.model import DataError
from harness.problem import Problem
from harness.record import Interval, L2State, Measure, Record, Status

PROBLEM = Problem(m=64, n=64, k=64)
COLD, WARM = Measure(l2_state=L2State.COLD), Measure(l2_state=L2State.WARM)
ANCHOR = "cublaslt_autotuned"
positive = st.floats(min_value=1e-6, max_value=1e6)


def rewarded(low: float, value: float, high: float) -> float:
    interval = Interval(value=value, low=low, high=high)
    return harness.reward(make_record(PROBLEM, speedups={"torch_matmul": 9.0, ANCHOR: interval}))


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.VERIFIED])
def test_whatever_is_not_verified_is_paid_the_floor(status: Status) -> None:
    assert harness.reward(make_record(PROBLEM, status)) == -1.0


@pytest.mark.parametrize(
    ("low", "expected"),
    [(1.0, 0.0), (2.0, 1 / 2), (8.0, 3 / 4), (0.5, -1 / 2), (2**-9, -9 / 10), (2**0.5, 1 / 3), (2**-0.25, -1 / 5)],
)
def test_it_is_log2_of_the_lower_end_bent_to_stay_bounded(low: float, expected: float) -> None:
    assert rewarded(low, 1.5 * low + 0.1, 2 * low + 0.2) == pytest.approx(expected)


@given(positive, positive)
def test_it_is_bounded_and_monotone(one: float, other: float) -> None:
    slower, faster = sorted((one, other))
    low, high = rewarded(slower, slower, slower), rewarded(faster, faster, faster)
    assert -1.0 < low <= high < 1.0
    assert low < high or slower == pytest.approx(faster)


@given(
    st.floats(min_value=0.6, max_value=1.8), st.floats(min_value=0.0, max_value=0.3), st.floats(min_value=0.0, max_value=0.3)
)
def test_noise_does_not_pay(value: float, one: float, other: float) -> None:
    precise, noisy = sorted((one, other))
    exact = [harness.reward(make_record(PROBLEM, speedups={ANCHOR: ratio(value, width)})) for width in (precise, noisy)]
    x = math.log2(value)
    assert exact[1] <= exact[0] <= x / (1 + abs(x)) + 1e-12


def test_only_the_anchor_and_cold_data_count() -> None:
    record = make_record(PROBLEM, speedups={"torch_matmul": 4.0, ANCHOR: ratio(1.0, 0.0)}, measures=(WARM, COLD))
    assert harness.reward(record) == 0.0
    timings = {timing.measure: timing for timing in record.timings}
    fast = timings[WARM].model_copy(update={"speedups": {"torch_matmul": ratio(4.0), ANCHOR: ratio(4.0)}})
    assert harness.reward(record.model_copy(update={"timings": (fast, timings[COLD])})) == 0.0


def test_a_record_without_times_has_no_reward() -> None:
    checked: Record = make_record(PROBLEM, speedups={}, measures=())
    with pytest.raises(DataError, match="screen or full"):
        harness.reward(checked)


def test_the_public_api_is_lazy_and_complete() -> None:
    assert set(harness.__all__) <= set(dir(harness))
    assert all(getattr(harness, name).__name__ == name for name in harness.__all__)
    assert callable(harness.reward)
    with pytest.raises(AttributeError, match="no attribute 'Kernel'"):
        harness.Kernel  # noqa: B018
