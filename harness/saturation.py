"""Saturation: the highest rate of random arrivals at which a contender still meets a bound on its p99 latency.

One contender answers a trace alone, and nothing comes between its requests: no flush, no drawing of inputs. Request latency
counts from the scheduled arrival, so it holds the time in line. Beside the submission every baseline is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from harness.devices import SubmissionFault
from harness.measurement import Measurement, Rejected
from harness.messages import ServeResult
from harness.model import Document, Model, Name, Positive
from harness.problem import Problem
from harness.timing.server import MIN_SAMPLES, percentile_ns
from harness.timing.statistics import median_ns

MIN_REQUESTS = MIN_SAMPLES[99]
BOUND_OF_SERVICE = 10
"""Default bound on p99: this many times the autotuned baseline's median time on the device."""
FIRST_SHARE = 0.1
"""The first rate keeps the contender busy for this share of its time."""
STEP = 1.5
BISECTIONS = 5
"""Halvings of the last step in the log domain: the rate is then known to 1.3 %."""

Progress = Callable[[str], None]


class RatePoint(Model):
    """One trace."""

    rate_per_s: float
    """Arrivals per second."""
    requests: Positive
    """Requests answered."""
    p50_ns: Positive
    """Median of the request latency."""
    p90_ns: Positive
    """90th percentile."""
    p99_ns: Positive
    """99th percentile."""
    meets_bound: bool
    """Whether p99 stays within the bound."""


class SaturationCurve(Model):
    """What one contender can take."""

    contender: Name
    """Who."""
    description: str
    """What it chose."""
    highest_rate_per_s: float
    """Highest rate found at which p99 stays within the bound; 0 where none does."""
    points: tuple[RatePoint, ...]
    """All traces, by rate."""


class Saturation(Document):
    """What `hgemm saturate --json` prints."""

    submission: Name
    """Name of the submission."""
    problem: Problem
    """The shape."""
    device: str
    """The device."""
    bound_ns: Positive
    """Bound on p99 of the request latency."""
    curves: tuple[SaturationCurve, ...]
    """The submission and every baseline."""


class Saturated(NamedTuple):
    """Curves, and the bound that they were held to."""

    bound_ns: int
    curves: tuple[SaturationCurve, ...]


def saturate(
    measurement: Measurement, contenders: Sequence[str], bound_ns: int | None, requests: int, progress: Progress
) -> Saturated:
    """Find the highest rate of every contender.

    Args:
        measurement: the problem, fresh.
        contenders: who is asked; the submission among them.
        bound_ns: bound on p99, or None for the default.
        requests: requests of a trace, at least 662.
        progress: told of every trace.

    Raises:
        SubmissionFault: the submission is wrong.
    """
    try:
        measurement.begin(sets=requests)
        choices = measurement.choices()
        anchor = choices[measurement.anchor]
        service_ns = {name: median_ns(c.selection_window_ns) / c.selection_launches for name, c in choices.items()}
        bound = bound_ns or round(BOUND_OF_SERVICE * service_ns[anchor.operation.contender])
        curves = []
        for name in contenders:

            def answer(rate_per_s: float, name: str = name) -> RatePoint:
                point = point_of(measurement.saturating_trace(name, rate_per_s, requests), name, rate_per_s, bound)
                progress(f"{name} at {rate_per_s:.0f}/s: p99 {point.p99_ns / 1000:.1f} µs")
                return point

            points = search(answer, 1e9 / service_ns[name])
            highest = max((point.rate_per_s for point in points if point.meets_bound), default=0.0)
            description = choices[name].operation.description
            curves.append(
                SaturationCurve(contender=name, description=description, highest_rate_per_s=highest, points=tuple(points))
            )
    except Rejected as rejection:
        raise SubmissionFault(rejection.reason, str(rejection)) from rejection
    return Saturated(bound, tuple(curves))


def search(answer: Callable[[float], RatePoint], service_rate_per_s: float) -> list[RatePoint]:
    """Traces at rising rates until the bound is missed or requests come twice as fast as they can be served, then halvings.

    Args:
        answer: runs a trace.
        service_rate_per_s: requests per second that could be served back to back.
    """
    points: dict[float, RatePoint] = {}
    rate = FIRST_SHARE * service_rate_per_s
    while rate < 2 * service_rate_per_s:
        points[rate] = answer(rate)
        if not points[rate].meets_bound:
            break
        rate *= STEP
    met = [rate for rate, point in points.items() if point.meets_bound]
    missed = [rate for rate, point in points.items() if not point.meets_bound]
    if met and missed:
        low, high = max(met), min(missed)
        for _ in range(BISECTIONS):
            middle = (low * high) ** 0.5
            points[middle] = answer(middle)
            low, high = (middle, high) if points[middle].meets_bound else (low, middle)
    return [points[rate] for rate in sorted(points)]


def point_of(result: ServeResult, contender: str, rate_per_s: float, bound_ns: int) -> RatePoint:
    """The percentiles of a trace.

    Raises:
        ValueError: too few requests for p99.
    """
    latency_ns = result.latency_ns[contender]
    p50, p90, p99 = (percentile_ns(latency_ns, percent) for percent in (50, 90, 99))
    if p50 is None or p90 is None or p99 is None:
        raise ValueError(f"p99 needs {MIN_REQUESTS} requests, not {len(latency_ns)}.")
    return RatePoint(
        rate_per_s=rate_per_s,
        requests=len(latency_ns),
        p50_ns=p50,
        p90_ns=p90,
        p99_ns=p99,
        meets_bound=p99 <= bound_ns,
    )
