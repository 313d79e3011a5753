"""Server timing on a simulated device: open loop, latency from the scheduled arrival, percentiles with enough samples."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable

import pytest

from harness.timing.server import (
    MAX_RATE_PER_S,
    MIN_SAMPLES,
    Arrival,
    clean_up_ns,
    percentile_ns,
    rate_for,
    serve,
    too_disturbed,
    trace,
)


class Simulated:
    """A device and a clock that exist only as numbers. Service and clean-up take what the given functions say."""

    def __init__(self, service_ns: Callable[[Arrival], int], clean_ns: int = 0) -> None:
        self._service_ns, self._clean_ns = service_ns, clean_ns
        self._now = self._clean_at = 0
        self.launched: list[Arrival] = []
        self.poll_resolution_ns = 1

    def now_ns(self) -> int:
        return self._now

    def wait_until(self, time_ns: int) -> None:
        self._now = max(self._now, time_ns)

    def launch(self, arrival: Arrival) -> None:
        self.launched.append(arrival)

    def finish(self) -> int:
        took = self._service_ns(self.launched[-1])
        self._now += took
        return took

    def clean_up(self, following: Arrival | None) -> None:
        self._clean_at = self._now + self._clean_ns

    def is_clean(self) -> bool:
        if self._now < self._clean_at:
            self._now += 1_000
            return False
        return True


def test_a_stall_shows_in_the_latency_of_all_who_wait_behind_it() -> None:
    # 500 requests a second for 5 s, 1 ms each, and the request nearest to 2 s takes 1 s.
    arrivals = trace(("submission",), 2_500, 500.0, seed=1, owner="submission")
    stalled = min(arrivals, key=lambda arrival: abs(arrival.at_ns - 2_000_000_000)).number
    device = Simulated(lambda arrival: 1_000_000_000 if arrival.number == stalled else 1_000_000)
    served = serve(arrivals, device)
    p99 = percentile_ns([one.latency_ns for one in served], 99)
    assert p99 is not None
    assert 0.9e9 < p99 < 1.05e9
    # A closed loop would have said 1 ms: that is what the requests took once they had the device.
    assert percentile_ns([one.device_ns for one in served], 99) == 1_000_000


def test_latency_counts_from_the_scheduled_arrival() -> None:
    arrivals = (Arrival(0, "a", 0, 0), Arrival(1, "a", 10, 1), Arrival(2, "a", 1_000, 2))
    served = serve(arrivals, Simulated(lambda _: 100))
    assert [one.latency_ns for one in served] == [100, 190, 100]
    assert [one.started_ns for one in served] == [0, 100, 1_000]


def test_arrivals_are_poisson_and_contenders_share_them_equally() -> None:
    names = ("submission", "cublas", "torch_matmul")
    arrivals = trace(names, 4_000, 250.0, seed=3, owner="submission")
    gaps = [after.at_ns - before.at_ns for before, after in itertools.pairwise(arrivals)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(4e6, rel=0.03)
    # An exponential's standard deviation is its mean, and a share of 1/e of the gaps is longer than the mean.
    assert math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) == pytest.approx(mean, rel=0.05)
    assert sum(gap > mean for gap in gaps) / len(gaps) == pytest.approx(math.exp(-1), abs=0.015)
    assert Counter(arrival.contender for arrival in arrivals) == dict.fromkeys(names, 4_000)
    assert arrivals == trace(names, 4_000, 250.0, seed=3, owner="submission")
    assert arrivals != trace(names, 4_000, 250.0, seed=4, owner="submission")


def test_an_arrival_during_clean_up_is_marked_and_waits() -> None:
    arrivals = (Arrival(0, "a", 0, 0), Arrival(1, "a", 150_000, 1), Arrival(2, "a", 900_000, 2))
    served = serve(arrivals, Simulated(lambda _: 100_000, clean_ns=200_000))
    assert [one.disturbed for one in served] == [False, True, False]
    assert served[1].started_ns >= 300_000


def test_an_arrival_during_another_ones_answer_waits_and_is_not_marked() -> None:
    arrivals = (Arrival(0, "a", 0, 0), Arrival(1, "a", 50_000, 1), Arrival(2, "a", 900_000, 2))
    served = serve(arrivals, Simulated(lambda _: 100_000, clean_ns=200_000))
    assert [one.disturbed for one in served] == [False, False, False]
    assert served[1].started_ns >= 300_000


def test_a_rate_is_too_high_when_more_than_a_twentieth_is_disturbed_and_more_than_by_chance() -> None:
    # A twentieth of 80 is 4, and two deviations of a Poisson count of 4 are 4; of 10,000 it is 500, and two are 44.7.
    found = [too_disturbed(8, 80), too_disturbed(9, 80), too_disturbed(544, 10_000), too_disturbed(545, 10_000)]
    assert found == [False, True, False, True]


def test_clean_up_is_timed_before_every_arrival_and_answers_none() -> None:
    device = Simulated(lambda _: 100_000, clean_ns=200_000)
    assert clean_up_ns(trace(("a", "b"), 1, 500.0, seed=1, owner="a"), device) == 200_000
    assert device.launched == []


def test_the_rate_depends_on_the_autotuned_baseline_only() -> None:
    assert rate_for(2_000.0) == MAX_RATE_PER_S
    assert rate_for(12.5e6) == pytest.approx(40.0)


@pytest.mark.parametrize("percent", sorted(MIN_SAMPLES))
def test_a_percentile_needs_its_samples(percent: int) -> None:
    values = list(range(1, MIN_SAMPLES[percent] + 1))
    random.Random(0).shuffle(values)
    assert percentile_ns(values, percent) == math.ceil(percent / 100 * len(values))
    assert percentile_ns(values[:-1], percent) is None


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_a_rate_that_is_no_rate_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="rate"):
        trace(("a",), 1, rate, seed=0, owner="a")
