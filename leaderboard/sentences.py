"""Sentences: what a page is about, for the app and the export."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from harness.compare import MeasureComparison
from harness.problem import Problem
from harness.profiles import DeviceProfile
from harness.protocol import PROTOCOL_VERSION
from harness.record import Status
from harness.scores import BEST, regime
from leaderboard.examine import protocol_label
from leaderboard.queries import ListSummary, RunDetails, ScoreLine
from leaderboard.ranking import Origin
from leaderboard.shape_queries import VerificationRow

NOT_MEASURED = (
    "Reported by others, not measured here, so never ranked beside what was. Their method differs from "
    "ours: an arithmetic mean of ratios, other clocks, other inputs, no check of the timed outputs."
)

HOW_TO_READ = (
    "A speedup is the baseline's time over the submission's: above 1 the submission is faster. geomean is the geometric mean "
    "over all shapes of the set with its 95\u00a0% interval, and rank the places that the intervals allow; best is the fastest "
    "baseline of each shape. What is not verified at every shape does not rank."
)
NAMED = 5
"""Submissions named in a sentence, at most."""
ORIGINS = {Origin.OPERATOR: "measured here", Origin.REPORTED: "reported by others, not measured here"}


def describe_list(summary: ListSummary) -> str:
    """What a list holds, in a sentence."""
    key = summary.key
    libraries = f"cuBLAS {key.cublas}, driver {key.driver}" if key.cublas else f"kernel {key.driver}"
    earlier = "" if key.protocol.split()[0] == PROTOCOL_VERSION else f" (Method describes {PROTOCOL_VERSION})"
    return (
        f"{summary.device_name}, track {key.track}, kind {key.kind}, {key.mode}/{key.l2_state}, against {key.baseline}; "
        f"{summary.shapes} shapes ({summary.shape_set}), protocol {key.protocol}{earlier}, {libraries}, {ORIGINS[key.origin]}, "
        f"{summary.runs} run{'s' if summary.runs > 1 else ''}."
    )


def describe_unmeasured(names: Sequence[str]) -> str:
    """Who is not on a list for want of a run, in a sentence."""
    named = ", ".join([*names[:NAMED], *([f"{len(names) - NAMED} more"] if len(names) > NAMED else [])])
    return f"{len(names)} submission{'s have' if len(names) > 1 else ' has'} no run in this measure: {named}."


def describe_run(details: RunDetails, scores: Iterable[ScoreLine]) -> str:
    """What came out of a run, in a sentence."""
    summary = details.summary
    if summary.verified < summary.shapes:
        return f"{summary.verified} of {summary.shapes} shapes are verified, so there is no score."
    parts = [
        f"{line.mode}/{line.l2_state} {line.geomean.value:.4f} ({line.geomean.low:.4f}-{line.geomean.high:.4f})"
        for line in scores
        if line.baseline == BEST and line.regime is None and line.geomean is not None
    ]
    return f"Geometric mean speedup over the best baseline of each shape, with its 95\u00a0% interval: {', '.join(parts)}."


def run_badges(details: RunDetails) -> list[str]:
    """What to know of a run before its figures."""
    summary, header = details.summary, details.header
    words = [] if summary.verdict is None else [summary.verdict.value]
    words += [header.submission.kind.value, *details.badges, f"{summary.verified}/{summary.shapes} verified"]
    words += [header.device.name, f"track {header.submission.track}", f"protocol {protocol_label(header.protocol)}"]
    words += ["reported, not measured here"] if summary.origin is Origin.REPORTED else []
    return list(dict.fromkeys(words + (["does not rank"] if details.because else [])))


def command_line(command: Sequence[str]) -> str:
    """The command that measured a run, as it is typed; early runs recorded the path of the program."""
    program, *arguments = command or ("",)
    return shlex.join(["hgemm" if program.endswith("__main__.py") else program, *arguments])


def describe_verification(rows: Sequence[VerificationRow]) -> str:
    """What verification compared in a run, in a sentence."""
    found = [row.verification for row in rows]
    draws = [draw for each in found for draw in each.draws]
    ratios = [draw.bound_ratio for draw in draws if draw.bound_ratio is not None]
    return (
        f"{sum(row.status is Status.VERIFIED for row in rows)} of {len(rows)} shapes that were computed are verified. "
        f"{sum(draw.outputs for draw in draws):,} outputs were compared with float64 before timing; of the timed ones "
        f"{sum(each.timed_outputs_checked for each in found):,} were compared and "
        f"{sum(each.timed_outputs_projected for each in found):,} checked by projection. The largest error is "
        f"{max(ratios, default=0.0):.3f} of its bound; inexact on exact inputs: {sum(draw.inexact for draw in draws)} outputs."
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
