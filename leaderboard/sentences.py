"""Sentences: what a page is about, for the app and the export."""

from __future__ import annotations

from harness.compare import MeasureComparison
from harness.problem import Problem
from harness.profiles import DeviceProfile
from harness.scores import regime
from leaderboard.queries import ListSummary

NOT_MEASURED = (
    "Reported by others, not measured here, so never ranked beside what was. Their method differs from "
    "ours: an arithmetic mean of ratios, other clocks, other inputs, no check of the timed outputs."
)


def describe_list(summary: ListSummary) -> str:
    """What a list holds, in a sentence."""
    key = summary.key
    libraries = f"cuBLAS {key.cublas}, driver {key.driver}" if key.cublas else f"kernel {key.driver}"
    return (
        f"{summary.device_name}, track {key.track}, kind {key.kind}, {key.mode}/{key.l2_state}, against {key.baseline}; "
        f"{summary.shapes} shapes ({summary.shape_set}), protocol {key.protocol}, {libraries}, measured by {key.origin}, "
        f"{summary.runs} run{'s' if summary.runs > 1 else ''}."
    )


def describe_shape(problem: Problem, profile: DeviceProfile) -> str:
    """What a shape costs on a device, in a sentence."""
    which = regime(problem, profile).value.replace("_", " ")
    return (
        f"{problem}: {problem.flops / 1e9:,.4g} GFLOP, {problem.bytes_total / 1e6:,.4g} MB, regime {which}, "
        f"speed of light {profile.roof_ns(problem) / 1e3:,.4g} µs; no time is accepted below 0.98 × "
        f"{profile.limit_ns(problem, cold=True) / 1e3:,.4g} µs (cold)."
    )


def describe_measure(measure: MeasureComparison, rate: float) -> str:
    """What a comparison found in one measure, in a sentence."""
    geomean, over = measure.geomean, len(measure.shapes)
    same = over - measure.faster - measure.slower
    return (
        f"Time A / time B {geomean.value:.4f} ({geomean.low:.4f}-{geomean.high:.4f}) over {over} shapes. B is faster at "
        f"{measure.faster}, slower at {measure.slower}, not told apart at {same}; "
        f"of those told apart at most {rate:.0%} are chance."
    )
