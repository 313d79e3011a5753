"""Figures of server mode: traces of one shape turned into a Timing and into samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.messages import Choice, ServeResult
from harness.problem import Problem
from harness.record import SUBMISSION, ContenderTiming, Interval, Measure, Requests, StopReason, Timing
from harness.run import SampleLine
from harness.timing.server import percentile_ns
from harness.timing.statistics import median_ns, median_ratio


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
