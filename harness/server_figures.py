"""Figures of server mode: traces of one shape turned into a Timing and into samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from harness.messages import Choice, ServeResult
from harness.problem import Problem
from harness.record import SUBMISSION, ContenderTiming, Interval, Measure, Requests, StopReason, Timing
from harness.run import SampleLine
from harness.timing.server import RATE_CUT, percentile_ns, too_disturbed
from harness.timing.statistics import median_ns, median_ratio

MAX_LOWERED = 3
"""How often the rate of arrivals is lowered at most."""


class ServerFigures:
    """The traces of one measure, pooled.

    Args:
        traces: traces at one rate.
        rate_per_s: that rate, over all contenders.
    """

    def __init__(self, traces: Sequence[ServeResult], rate_per_s: float) -> None:
        names = sorted(traces[0].latency_ns)
        self.device_ns = {name: [time for result in traces for time in result.device_ns[name]] for name in names}
        self.latency_ns = {name: [time for result in traces for time in result.latency_ns[name]] for name in names}
        self._traces = traces
        self._rate_per_s = rate_per_s

    def timing(self, measure: Measure, choices: Mapping[str, Choice], best: str) -> Timing:
        """The measure's record. A "window" is one request."""
        return Timing(
            measure=measure,
            rounds=len(self.latency_ns[SUBMISSION]),
            stopped=StopReason.SIZED,
            contenders={name: _contender(times, choices[name]) for name, times in self.device_ns.items()},
            speedups=request_speedups(self.device_ns),
            best_baseline=best,
            conditions=self._traces[-1].conditions,
            requests=Requests(
                rate_per_s=self._rate_per_s,
                disturbed=sum(result.disturbed for result in self._traces),
                poll_resolution_ns=max(result.poll_resolution_ns for result in self._traces),
                device_p90_ns={
                    name: p90 for name, times in self.device_ns.items() if (p90 := percentile_ns(times, 90)) is not None
                },
                latency_p50_ns={name: median_ns(times) for name, times in self.latency_ns.items()},
            ),
        )

    def samples(self, problem: Problem, attempt: int, measure: Measure) -> list[SampleLine]:
        """Every request's times."""
        return [
            SampleLine(
                problem=problem,
                attempt=attempt,
                measure=measure,
                contender=name,
                launches_per_window=1,
                window_ns=tuple(times),
                latency_ns=tuple(self.latency_ns[name]),
            )
            for name, times in self.device_ns.items()
        ]


def gather(answer: Callable[[int, int, float], ServeResult], requests_each: int, rate_per_s: float) -> ServerFigures:
    """Traces until every contender has so many requests whose device time counts.

    When too many arrive during clean-up, the rate is lowered and all traces are taken again.

    Args:
        answer: has a trace answered, of a number that was not used before, so many requests of each contender, and a rate.
        requests_each: requests of each contender that must count.
        rate_per_s: arrivals over all contenders.
    """
    traces: list[ServeResult] = []
    number = lowered = 0
    while (left := requests_each - _fewest(traces)) > 0:
        traces.append(answer(number, left, rate_per_s))
        number += 1
        rate_per_s = traces[-1].rate_per_s
        disturbed = sum(result.disturbed for result in traces)
        requests = sum(len(times) for result in traces for times in result.latency_ns.values())
        if lowered < MAX_LOWERED and too_disturbed(disturbed, requests):
            rate_per_s, lowered, traces = rate_per_s * RATE_CUT, lowered + 1, []
    return ServerFigures(traces, rate_per_s)


def _fewest(traces: Sequence[ServeResult]) -> int:
    """Requests that count, of the contender that has fewest."""
    return min(sum(len(result.device_ns[name]) for result in traces) for name in traces[0].device_ns) if traces else 0


def request_speedups(device_ns: Mapping[str, Sequence[int]]) -> dict[str, Interval]:
    """Ratio of median device times of every baseline to the submission's, with its interval."""
    mine = device_ns[SUBMISSION]
    return {name: median_ratio(times, mine) for name, times in device_ns.items() if name != SUBMISSION}


def _contender(times_ns: Sequence[int], choice: Choice) -> ContenderTiming:
    return ContenderTiming(
        layout=choice.operation.layout,
        description=choice.operation.description,
        workspace_limit_bytes=choice.operation.workspace_limit_bytes,
        launches_per_window=1,
        window_median_ns=median_ns(times_ns),
        window_min_ns=min(times_ns),
        window_max_ns=max(times_ns),
    )
