"""Two independent samples: do they differ, by how much, and which of many differences are not chance.

The test is that of Mann and Whitney (Annals of Mathematical Statistics 18, 1947), the shift that of Hodges and Lehmann (34,
1963) with the interval that inverts the test, the adjustment for many tests that of Benjamini and Hochberg (Journal of the
Royal Statistical Society B 57, 1995).

All take the values of a sample for independent, which neighbouring rounds are not quite. `INFLATION` makes up for that.
Under the noise that `harness.timing.statistics` is calibrated on, p < 0.05, 0.001 and 0.0001 come up 1.2, 2.2 and 3 times as
often as they should; with z divided by 1.1 not more often (`tests/test_two_sample.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist
from typing import TYPE_CHECKING

from harness.record import Interval

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

INFLATION = 1.1
"""Divides z."""
EXACT_PAIRS = 1600
"""Pairs of values up to which the null distribution is counted exactly: 40 rounds against 40."""
HALF_WIDTH_Z = 1.96


def mann_whitney(first: Sequence[float] | Floats, second: Sequence[float] | Floats, inflation: float = INFLATION) -> float:
    """Two-sided p-value of the hypothesis that two samples come from one distribution.

    Exact where no two values tie and `EXACT_PAIRS` allows, else by the normal approximation with the corrections for ties
    and continuity.

    Args:
        first: one sample.
        second: the other.
        inflation: 1 for independent values.

    Raises:
        ValueError: an empty sample, or a value that is not finite.
    """
    import numpy as np

    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if not (len(x) and len(y) and np.all(np.isfinite(x)) and np.all(np.isfinite(y))):
        raise ValueError("the test needs two samples of finite values.")
    above = float((x[:, None] > y[None, :]).sum()) + 0.5 * float((x[:, None] == y[None, :]).sum())
    smaller = min(above, x.size * y.size - above)
    counts = np.unique(np.concatenate([x, y]), return_counts=True)[1]
    if counts.max() == 1 and x.size * y.size <= EXACT_PAIRS:
        return _inflated(2 * float(_null_cdf(x.size, y.size)[round(smaller)]), inflation)
    total = x.size + y.size
    ties = float((counts.astype(np.float64) ** 3 - counts).sum()) / (total * (total - 1))
    deviation = math.sqrt(x.size * y.size / 12 * (total + 1 - ties))
    if deviation == 0:
        return 1.0
    return _inflated(2 * NormalDist().cdf(-max(0.0, x.size * y.size / 2 - smaller - 0.5) / deviation), inflation)


def shift(first: Floats, second: Floats) -> Interval:
    """Exp of the first sample's location minus the second's, for samples of logarithms: their ratio with its 95 % interval.

    The estimate is the median of all pairwise differences; the interval cuts them off at both ends where the test would,
    `INFLATION` included, and takes the longer side for both, so that swapping the samples inverts it.
    """
    import numpy as np

    pairwise = np.sort((first[:, None] - second[None, :]).ravel())
    deviation = math.sqrt(pairwise.size * (first.size + second.size + 1) / 12)
    cut = max(0, math.floor(pairwise.size / 2 - HALF_WIDTH_Z * INFLATION * deviation))
    middle = float(np.median(pairwise))
    half_width = max(middle - float(pairwise[cut]), float(pairwise[-1 - cut]) - middle)
    return Interval(value=math.exp(middle), low=math.exp(middle - half_width), high=math.exp(middle + half_width))


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for their number: flagging those at most q keeps the expected share of false ones at most q."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__, reverse=True)
    adjusted, least = [1.0] * len(p_values), 1.0
    for place, index in enumerate(order):
        least = min(least, p_values[index] * len(p_values) / (len(p_values) - place))
        adjusted[index] = least
    return adjusted


def _inflated(p_value: float, inflation: float) -> float:
    """The p-value with its z divided."""
    # A p below 1e-300 has no finite quantile in doubles, and needs none.
    z = NormalDist().inv_cdf(min(0.5, max(p_value / 2, 1e-300))) / inflation
    return min(1.0, 2 * NormalDist().cdf(z))


@cache
def _null_cdf(n: int, m: int) -> Floats:
    """P(U <= u) for u = 0..n·m without ties, from P(n, m) = n/(n+m)·P(n-1, m) shifted by m, plus m/(n+m)·P(n, m-1)."""
    import numpy as np

    row = [np.ones(1) for _ in range(m + 1)]
    for i in range(1, n + 1):
        above, row = row, [np.ones(1)]
        for j in range(1, m + 1):
            mass = np.zeros(i * j + 1)
            mass[j : j + above[j].size] += above[j] * (i / (i + j))
            mass[: row[j - 1].size] += row[j - 1] * (j / (i + j))
            row.append(mass)
    return np.cumsum(row[m])
