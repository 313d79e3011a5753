"""Speedups of interleaved windows with their 95 % confidence intervals, and the rule that ends the rounds.

A round times every contender once, so drift that a round shares drops out of the ratio of two of its windows. Over
rounds the estimate is that of Hodges and Lehmann, the median of the Walsh averages (x_i + x_j) / 2 with i <= j, and two
of those bound the interval, counted from both ends by the exact null distribution of Wilcoxon's signed-rank statistic
(Hodges and Lehmann, Annals of Mathematical Statistics 34, 1963; Hollander, Wolfe and Chicken, Nonparametric Statistical
Methods, chapter 3). A few slow windows hardly move either.

`LEVEL` is nominal: it was calibrated so that the interval finally reported holds the truth in 95 % of cases. With 0.95
it would do so less often, because neighbouring rounds are not quite independent and because stopping when an interval
comes out narrow favours those that are too narrow. The simulated rounds: spread over shapes log-normal (a window's
standard deviation is 1.2 % at the median and 2.6 % at the third quartile, as measured on an H200); AR(1) drift of the
same size from window to window (0.95), which the contenders of a round, in random order, share; a quarter of the rest's
variance AR(1) from round to round (0.3), of each contender alone; 2 % of windows slow by 10-30 %; stopping by `decide`
at ±1 %. One level serves all looks:

    reported at        10 rounds   20 rounds   40 rounds   any
    one baseline          95.1 %      95.2 %      95.3 %   95.2 %
    four baselines        95.7 %      95.1 %      95.0 %   95.1 %

Independent rounds give 97 %; a lag-one autocorrelation of 0.2 in a contender's own noise gives 93.5 %, and with 0.3 the
level is too low (91 %). The columns are over shapes of every spread. Of one spread alone, 95 % holds over all looks
together but not among the few shapes that stop sooner than their like: narrow by luck, they cover less often, and no
level mends that. `tests/test_statistics.py` holds the simulation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from harness.record import Interval, StopReason

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

LOOKS = (10, 20, 40)
"""Counts of scoring rounds at which the intervals are looked at; the last one ends the rounds."""

LEVEL = 0.965
"""Nominal level of the signed-rank interval at every look; the module's docstring says why it is not 0.95."""

MIN_ROUNDS = 6
"""Fewest rounds whose signed-rank interval can have that level: all of n rounds on one side has probability 2 / 2**n."""


def speedup(
    baseline_window_ns: Sequence[int], baseline_launches: int, submission_window_ns: Sequence[int], submission_launches: int
) -> Interval:
    """Baseline's time per launch over the submission's, from windows paired by round; above 1 the submission wins.

    Args:
        baseline_window_ns: one window per round, in nanoseconds.
        baseline_launches: operations in each of those windows.
        submission_window_ns: the submission's windows of the same rounds, in nanoseconds.
        submission_launches: operations in each of those.

    Raises:
        ValueError: windows that do not pair, are not positive and finite, or are too few or too many for `hodges_lehmann`.
    """
    import numpy as np

    if len(baseline_window_ns) != len(submission_window_ns):
        raise ValueError(f"{len(baseline_window_ns)} windows of a baseline do not pair with {len(submission_window_ns)}.")
    if not (baseline_launches >= 1 and submission_launches >= 1):
        raise ValueError(f"windows hold at least one launch, not {baseline_launches} and {submission_launches}.")
    windows = np.array([baseline_window_ns, submission_window_ns], dtype=np.float64)
    if not np.all((windows > 0) & (windows < np.inf)):
        raise ValueError("a window's length must be positive and finite; drop the round and measure it again.")
    logs = np.log(windows / [[baseline_launches], [submission_launches]])
    return hodges_lehmann(logs[0] - logs[1])


def hodges_lehmann(log_ratios: Sequence[float] | Floats) -> Interval:
    """Ratio with its 95 % interval from one log-ratio per round: estimated in the log domain, returned as a ratio (exp).

    Args:
        log_ratios: natural logarithms, shape (rounds,), `MIN_ROUNDS` to 40 rounds.

    Raises:
        ValueError: too few or too many rounds, or a log-ratio that is not finite or has no finite exponential.
    """
    import numpy as np

    values = np.asarray(log_ratios, dtype=np.float64)
    if values.ndim != 1 or not MIN_ROUNDS <= len(values) <= LOOKS[-1]:
        raise ValueError(
            f"an interval needs {MIN_ROUNDS} to {LOOKS[-1]} rounds with one log-ratio each, not shape {values.shape}."
        )
    # 700 is where exp leaves the doubles; comparing this way round refuses NaN.
    if not np.all(np.abs(values) < 700):
        raise ValueError("a log-ratio is not finite, or its exponential is not; times must be positive and finite.")
    bounds = signed_rank_bounds(values)
    return Interval(value=math.exp(bounds.value), low=math.exp(bounds.low), high=math.exp(bounds.high))


def median_ratio(baseline_ns: Sequence[int], submission_ns: Sequence[int]) -> Interval:
    """Ratio of two medians with its 95 % interval; above 1 the submission wins.

    The medians' intervals come from order statistics (the binomial distribution of how many samples lie below a median, in
    its normal approximation), their standard errors in the log domain add in squares.

    Args:
        baseline_ns: times of independent requests, in nanoseconds.
        submission_ns: the submission's, of other requests of the same trace.

    Raises:
        ValueError: fewer than 8 samples, or one that is not a positive integer.
    """
    errors = math.hypot(_log_median_error(baseline_ns), _log_median_error(submission_ns))
    value = median_ns(baseline_ns) / median_ns(submission_ns)
    return Interval(value=value, low=value * math.exp(-1.96 * errors), high=value * math.exp(1.96 * errors))


class Bounds(NamedTuple):
    """Hodges-Lehmann estimates and the ends of their intervals, float64, in the domain of the data."""

    value: Floats
    low: Floats
    high: Floats


def signed_rank_bounds(values: Floats) -> Bounds:
    """The Hodges-Lehmann estimate and interval along the last axis: float64 (..., rounds) gives three arrays (...)."""
    import numpy as np

    rounds = values.shape[-1]
    first, second = _pairs(rounds)
    averages = (values[..., first] + values[..., second]) / 2
    averages.sort(axis=-1)
    count = averages.shape[-1]
    cut = _walsh_cut(rounds)
    middle = (averages[..., (count - 1) // 2] + averages[..., count // 2]) / 2
    return Bounds(value=np.asarray(middle), low=np.asarray(averages[..., cut]), high=np.asarray(averages[..., count - 1 - cut]))


def decide(rounds: int, intervals: Iterable[Interval], target_half_width: float) -> StopReason | None:
    """Whether the scoring rounds of one measure end at this look, and why; None is to go on to the next look.

    Args:
        rounds: scoring rounds done, one of `LOOKS`.
        intervals: the speedup against every baseline, from all rounds done.
        target_half_width: half-width of a log-ratio (0.01 is about 1 %) that all of them must reach.

    Raises:
        ValueError: not at a look, no interval, or a target that is not positive.
    """
    if rounds not in LOOKS:
        raise ValueError(f"{rounds} rounds are no look; intervals hold their level only at {LOOKS} rounds.")
    if not 0 < target_half_width < math.inf:
        raise ValueError(f"the half-width to reach must be positive and finite, not {target_half_width}.")
    half_widths = [log_half_width(interval) for interval in intervals]
    if not half_widths:
        raise ValueError("there is no interval to decide on.")
    if all(half_width <= target_half_width for half_width in half_widths):
        return StopReason.PRECISE
    return StopReason.EXHAUSTED if rounds == LOOKS[-1] else None


def median_ns(window_ns: Sequence[int]) -> int:
    """Median in whole nanoseconds, rounded down where it falls between two windows.

    Raises:
        ValueError: no window, or one that is not a positive integer.
    """
    if not window_ns or not all(isinstance(window, int) and window > 0 for window in window_ns):
        raise ValueError("a median needs windows that are positive integers of nanoseconds.")
    ordered = sorted(window_ns)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2


def log_half_width(interval: Interval) -> float:
    """Half the length of a ratio's interval in the log domain: 0.01 is about ±1 %.

    Raises:
        ValueError: an end that is not positive and finite.
    """
    return (_log(interval.high) - _log(interval.low)) / 2


def geomean(ratios: Iterable[float]) -> float:
    """Geometric mean in the log domain, the same whatever the order.

    Raises:
        ValueError: nothing to average, or a value that is not positive and finite.
    """
    logs = [_log(ratio) for ratio in ratios]
    if not logs:
        raise ValueError("a geometric mean needs at least one value.")
    return math.exp(math.fsum(logs) / len(logs))


def geomean_interval(ratios: Sequence[Interval]) -> Interval:
    """Geometric mean of independent ratios with its 95 % interval, in the log domain.

    A ratio's standard error is its half-width / 1.96, the mean's is the root of the sum of their squares over their
    count, and the interval is 1.96 of those to either side; 1.96 cancels. An error that all shapes of a run share (the
    day, the board) is not in it.

    Raises:
        ValueError: nothing to average, or a value or an end that is not positive and finite.
    """
    value = geomean(ratio.value for ratio in ratios)
    half_width = math.sqrt(math.fsum(log_half_width(ratio) ** 2 for ratio in ratios)) / len(ratios)
    return Interval(value=value, low=value * math.exp(-half_width), high=value * math.exp(half_width))


class Agreement(NamedTuple):
    """How ratios whose truth is 1 came out, as in A/A: the same operation under two names."""

    intervals: int
    """How many there are."""
    coverage: float
    """Share of the intervals that hold 1; 0.95 is right."""
    geomean: float
    """Geometric mean of the ratios; 1 is right."""
    median_half_width: float
    """Median over the intervals of their half-width in the log domain."""


def agreement(intervals: Sequence[Interval]) -> Agreement:
    """What A/A intervals say of the instrument.

    Raises:
        ValueError: no interval, or one with a value or an end that is not positive and finite.
    """
    mean = geomean(interval.value for interval in intervals)
    half_widths = sorted(log_half_width(interval) for interval in intervals)
    count = len(half_widths)
    return Agreement(
        intervals=count,
        coverage=sum(interval.low <= 1 <= interval.high for interval in intervals) / count,
        geomean=mean,
        median_half_width=(half_widths[(count - 1) // 2] + half_widths[count // 2]) / 2,
    )


def _log_median_error(values_ns: Sequence[int]) -> float:
    """Standard error of the logarithm of a median."""
    count = len(values_ns)
    if count < 8:
        raise ValueError(f"a median's interval needs 8 samples, not {count}.")
    ordered = sorted(values_ns)
    below = int(count / 2 - 0.98 * math.sqrt(count))
    return (_log(ordered[count - 1 - below]) - _log(ordered[below])) / (2 * 1.96)


def _log(ratio: float) -> float:
    if not 0 < ratio < math.inf:
        raise ValueError(f"a ratio or a time must be positive and finite, not {ratio}.")
    return math.log(ratio)


@cache
def _pairs(rounds: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    import numpy as np

    return np.triu_indices(rounds)


@cache
def _walsh_cut(rounds: int, level: float = LEVEL) -> int:
    """How many Walsh averages lie outside the interval on each side: the largest k with 1 - 2 P(T <= k) >= level.

    T is the sum of a random subset of 1..rounds; its distribution is counted exactly.
    """
    total = rounds * (rounds + 1) // 2
    subsets = [1] + [0] * total
    for rank in range(1, rounds + 1):
        for value in range(total, rank - 1, -1):
            subsets[value] += subsets[value - rank]
    tail = 0
    for cut, count in enumerate(subsets):
        tail += count
        if not 1 - 2 * tail / 2**rounds >= level:
            if cut == 0:
                raise ValueError(f"{rounds} rounds are too few for an interval of level {level}.")
            return cut - 1
    raise AssertionError("unreachable: the whole distribution lies in no tail")
