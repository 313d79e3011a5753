"""Records for tests: legal by construction, with the figures that a test gives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from harness.plan import Layout
from harness.problem import Problem
from harness.record import (
    SUBMISSION,
    ContenderTiming,
    DrawStats,
    Interval,
    Measure,
    Mode,
    Reason,
    Record,
    Requests,
    Status,
    StopReason,
    Timing,
    Verification,
)

SPEEDUPS = {"torch_matmul": 1.2, "cublaslt_autotuned": 1.1}

REASONS = {
    Status.VERIFIED: None,
    Status.REJECTED: Reason.WRONG_RESULT,
    Status.UNSUPPORTED: Reason.DECLARED,
    Status.INFRA_ERROR: Reason.DEVICE_ERROR,
    Status.NOT_ATTEMPTED: Reason.GAVE_UP,
}


REQUESTS = Requests(rate_per_s=1_000.0, disturbed=0, poll_resolution_ns=2_000, device_p90_ns={}, latency_p50_ns={})


def ratio(value: float, half_width: float = 0.005) -> Interval:
    """A ratio with an interval of that half-width in the log domain."""
    return Interval(value=value, low=value * math.exp(-half_width), high=value * math.exp(half_width))


def make_timing(
    measure: Measure,
    speedups: Mapping[str, float | Interval] = SPEEDUPS,
    *,
    submission_ns: int = 10_000,
    launches: int = 100,
    best_baseline: str | None = None,
) -> Timing:
    """One measure. A baseline's windows follow from its speedup; the best baseline is the one with the lowest, unless given."""
    ratios = {name: value if isinstance(value, Interval) else ratio(value) for name, value in speedups.items()}
    windows = {name: round(submission_ns * launches * interval.value) for name, interval in ratios.items()}
    windows[SUBMISSION] = submission_ns * launches
    return Timing(
        measure=measure,
        rounds=10,
        stopped=StopReason.PRECISE,
        contenders={
            name: ContenderTiming(
                layout=Layout.NN,
                description="made by a test",
                launches_per_window=launches,
                window_median_ns=window,
                window_min_ns=window,
                window_max_ns=window,
            )
            for name, window in windows.items()
        },
        speedups=ratios,
        requests=REQUESTS if measure.mode is Mode.SERVER else None,
        best_baseline=best_baseline or min(ratios, key=lambda name: ratios[name].value),
    )


def make_record(
    problem: Problem,
    status: Status = Status.VERIFIED,
    speedups: Mapping[str, float | Interval] = SPEEDUPS,
    measures: Sequence[Measure] = (Measure(),),
    not_applicable: Sequence[Measure] = (),
    **fields: object,
) -> Record:
    """A record of that status; a verified one has `speedups` in every measure.

    `fields` are `make_timing`'s (submission_ns, launches, best_baseline) or the record's own (attempt, rankable, reason, ...).
    """
    timing_fields = {name: fields.pop(name) for name in ("submission_ns", "launches", "best_baseline") if name in fields}
    verified: dict[str, object] = {}
    if status is Status.VERIFIED:
        draws = DrawStats(
            inputs="normal", draws=1, outputs=4096, rms_relative=2.1e-4, block_rms_relative=2.2e-4, bound_ratio=0.6, inexact=0
        )
        verified = {
            "verification": Verification(draws=(draws,), precision_class="f32"),
            "timings": tuple(
                make_timing(measure, speedups, **timing_fields) for measure in measures if measure not in not_applicable
            ),
        }
    return Record(
        **{
            "problem": problem,
            "segment": 0,
            "status": status,
            "reason": REASONS[status],
            "measures": tuple(measures),
            "baselines": tuple(speedups),
            "not_applicable": tuple(not_applicable),
            **verified,
            **fields,
        }
    )
