"""Server timing: requests that arrive at random times, whether or not the device is free.

The loop is open: arrival times are drawn before anything runs (Poisson, seeded), and a request that finds the device busy
waits in line while its latency, counted from the scheduled arrival, goes on. A closed loop, which sends the next request
when the last one is answered, hides exactly the delays that users see (coordinated omission).

The loop below knows devices only as a `Port`, so it serves a GPU and a simulation alike.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import NamedTuple, Protocol

MAX_RATE_PER_S = 1_000.0
"""Arrivals per second over all contenders, at most."""
UTILISATION = 0.5
"""Share of its time that a device would be busy if every request took as long as the autotuned baseline's does offline."""
MAX_DISTURBED_SHARE = 0.05
"""If more requests than this arrive while the last one is being cleaned up after, the rate is lowered."""
CHANCE_DEVIATIONS = 2.0
"""So many standard deviations beyond that share are chance."""
CLEAN_SHARE = 0.04
"""Share of the requests that are expected to arrive during clean-up, at most: the rate never exceeds what this allows."""
RATE_CUT = 0.5
"""By how much the rate is lowered when more did."""
MIN_SAMPLES = {50: 1, 90: 64, 99: 662}
"""Samples without which a percentile is not given: those of MLPerf's early stopping (662 for p99, 64 for p90)."""


class Arrival(NamedTuple):
    """A request that will arrive."""

    number: int
    contender: str
    at_ns: int
    """Scheduled arrival, from the start of the trace."""
    set_index: int
    """The buffer set that it works on: that of the owner's next request."""


class Served(NamedTuple):
    """A request that was answered."""

    arrival: Arrival
    started_ns: int
    """When it was handed to the device, from the start of the trace."""
    completed_ns: int
    """When its completion was seen."""
    device_ns: int
    """Time on the device, by its own events."""
    disturbed: bool
    """Whether it arrived while the device was cleaning up after the last one: then its device time does not count. One that
    arrived while the last one was answered is not disturbed; it stands in line, as it would without us."""

    @property
    def latency_ns(self) -> int:
        """From the scheduled arrival to completion."""
        return self.completed_ns - self.arrival.at_ns


class Port(Protocol):
    """A device as the loop sees it."""

    poll_resolution_ns: int
    """Longest time so far between two looks at whether a request was complete."""

    def now_ns(self) -> int:
        """The host's clock."""
        ...

    def wait_until(self, time_ns: int) -> None:
        """Return at that time of the host's clock, or at once if it has passed."""
        ...

    def launch(self, arrival: Arrival) -> None:
        """Hand a request to the device."""
        ...

    def finish(self) -> int:
        """Poll until the request is complete; its time on the device in nanoseconds."""
        ...

    def clean_up(self, following: Arrival | None) -> None:
        """Start to bring the device into the state in which the following request must find it; do not wait."""
        ...

    def is_clean(self) -> bool:
        """Whether that is done."""
        ...


def trace(contenders: Sequence[str], requests_each: int, rate_per_s: float, seed: int, owner: str) -> tuple[Arrival, ...]:
    """Poisson arrivals: independent exponential gaps; the contenders share them in random order, equally often.

    Args:
        contenders: who answers.
        requests_each: requests of each contender.
        rate_per_s: arrivals per second, over all contenders.
        seed: decides everything.
        owner: contender whose n-th request works on set n.

    Raises:
        ValueError: nothing to serve, or a rate that is not positive and finite.
    """
    if not contenders or requests_each < 1 or not 0 < rate_per_s < math.inf:
        raise ValueError("a trace needs contenders, requests and a positive, finite rate.")
    rng = random.Random(seed)
    order = [name for _ in range(requests_each) for name in rng.sample(list(contenders), len(contenders))]
    arrivals, at_ns, set_index = [], 0.0, 0
    for index, name in enumerate(order):
        at_ns += rng.expovariate(rate_per_s) * 1e9
        arrivals.append(Arrival(index, name, round(at_ns), set_index))
        set_index += name == owner
    return tuple(arrivals)


def serve(arrivals: Sequence[Arrival], port: Port) -> tuple[Served, ...]:
    """Answer every arrival in order, each at its time or as soon after as the device is free."""
    served = []
    port.clean_up(arrivals[0])
    while not port.is_clean():
        pass
    origin_ns = port.now_ns()
    completed_ns = 0
    for index, arrival in enumerate(arrivals):
        port.wait_until(origin_ns + arrival.at_ns)
        # Who came while another was answered would have had to wait anyway.
        disturbed = arrival.at_ns >= completed_ns and not port.is_clean()
        while not port.is_clean():
            pass
        started_ns = port.now_ns() - origin_ns
        port.launch(arrival)
        device_ns = port.finish()
        completed_ns = port.now_ns() - origin_ns
        port.clean_up(arrivals[index + 1] if index + 1 < len(arrivals) else None)
        served.append(Served(arrival, started_ns, completed_ns, device_ns, disturbed))
    return tuple(served)


def rate_for(autotuned_ns: float) -> float:
    """Arrivals per second over all contenders, which depend on the baselines only: min(1,000, 0.5 / autotuned time).

    Args:
        autotuned_ns: the autotuned baseline's time per launch offline, in nanoseconds.
    """
    return min(MAX_RATE_PER_S, UTILISATION / (autotuned_ns * 1e-9))


def clean_up_ns(arrivals: Sequence[Arrival], port: Port) -> float:
    """Mean time that it takes to clean up before these requests, in nanoseconds of the host's clock; none of them is answered.

    They are gone through twice, and the first time does not count.
    """
    for _ in range(2):
        started_ns = port.now_ns()
        for arrival in arrivals:
            port.clean_up(arrival)
            while not port.is_clean():
                pass
        elapsed_ns = port.now_ns() - started_ns
    return max(1.0, elapsed_ns / len(arrivals))


def too_disturbed(disturbed: int, requests: int) -> bool:
    """Whether so many of the requests arrived during clean-up that the rate must be lowered: more than chance explains."""
    usual = MAX_DISTURBED_SHARE * requests
    return disturbed > usual + CHANCE_DEVIATIONS * math.sqrt(usual)


def percentile_ns(values_ns: Sequence[int], percent: int) -> int | None:
    """The nearest-rank percentile, or None where too few samples stand behind it (`MIN_SAMPLES`)."""
    if len(values_ns) < MIN_SAMPLES[percent]:
        return None
    ordered = sorted(values_ns)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]
