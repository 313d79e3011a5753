"""Precision classes: which errors an honest kernel of a track may have, as pure functions of K and of a count of outputs.

The model has two parts. Rounding the exact result to fp16 gives an error spread evenly over one unit in the last place (ulp),
so its mean square is ulp²/12. Accumulation adds noise in proportion to ‖a_i‖·‖b_j‖, the norms of a row of A and a column of
B. An output's *excess* is err² / (ulp²/12 + noise²): its mean is at most 1 for an honest kernel, whatever the inputs, the
shape or the scale, and no count of outputs makes it drift. On N(0,1) inputs at K = 64 to 16,384 fp16 accumulators in steps
of 16 reach 90 to 1,700; they show most on the outputs near zero, where rounding alone would be tiny.

The constants are calibrated on cuBLAS on an H200 and on emulated accumulators, and are to be recalibrated with `hgemm doctor`
(data in docs/protocol.md).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from harness.problem import Track

if TYPE_CHECKING:
    import torch

Number = TypeVar("Number", float, "torch.Tensor")

ULP_BOUND = 0.51
"""Largest rounding error of a correctly rounded result in ulp (0.5), plus slack for a sum that ends beside a tie."""

C_BOUND = 32.0
"""c of the element-wise bound 0.51 ulp + c·2⁻²⁴·‖a_i‖·‖b_j‖ on the f32 track. Emulated at K = 16,384, where most is needed:
accumulators rounded to nearest need 1, truncated after every 16 terms 8, after every 8 terms 19 (36,864 outputs each)."""

C_NOISE = 4.0
"""rms accumulation noise allowed on the f32 track, in units of 2⁻²⁴·‖a_i‖·‖b_j‖. Emulated at K = 16,384: rounded to nearest
0.3, truncated after every 16 terms 3.3, after every 8 terms 6.7, which still passes because rounding dominates."""

F16_BOUND_SIGMAS = 16.0
"""The f16 track's element-wise bound in rms accumulation noise. Errors follow the partial sums, so their tails are long: 4,096
outputs of one chain at K = 4,096 reach 7.6."""

F16_NOISE = 0.36
"""rms noise of one chain of fp16 additions over all of K, in units of 2⁻¹¹·‖a_i‖·‖b_j‖: measured 0.30 at every K, plus 20 %."""

F16_RELATIVE_CAP = 1e-2
"""Largest rms relative error that the f16 track accepts. int8 inputs read 1.2e-2 and more where K is large, so above K ≈ 4,096
one single chain of fp16 additions is refused with them; chains of a quarter of K pass, and tensor cores stay below 7e-3."""

ROUNDING_RMS = 2.08e-4
"""rms relative error of rounding N(0,1) results to fp16."""

SMALLEST_CLASS_K = 16
"""Below it a tensor core adds the whole product at once, so the class shows nothing that the element-wise bound does not; and
the rounding errors of a rank-one product are too regular for statistics (a row scaled by 1.5 rounds to halves of an ulp)."""

WRONG_RMS = 5e-2
"""rms relative error above which no arithmetic is that narrow (fp8 inputs read 3.7e-2)."""

GROSS_DEVIATION = 0.25
"""|err| over ‖a_i‖·‖b_j‖/√K, the typical size of an output, above which no narrow arithmetic explains one output."""

RAISED_EXCESS = 9.0
SPREAD_FRACTION = 0.03
"""Narrow arithmetic raises the excess above 9 in at least this share of the outputs (fp16 accumulators on the f32 track: 6 % at
K = 17, 10 % and more from K = 20); errors in fewer of them are a wrong result."""

_SLACK = 1.10
_LOG_FALSE_ALARM = 35.0
"""-ln of the probability that one comparison of an honest kernel fails: e⁻³⁵ = 6e-16, for 1e9 blocks or rows in a run."""


class Tolerance(NamedTuple):
    """What accumulation may add to rounding, as multiples of ‖a_i‖·‖b_j‖."""

    noise: float
    """Root mean square."""
    bound: float
    """Largest."""


def tolerance(track: Track, k: int) -> Tolerance:
    """Accumulation noise allowed on a track for a sum of `k` products."""
    if track is Track.F32:
        return Tolerance(noise=C_NOISE * 2.0**-24, bound=C_BOUND * 2.0**-24)
    noise = min(F16_NOISE * 2.0**-11, F16_RELATIVE_CAP / math.sqrt(k))
    return Tolerance(noise=noise, bound=noise * F16_BOUND_SIGMAS)


def excess_limit(outputs: Number) -> Number:
    """Largest mean excess that an honest kernel shows over this many outputs, or random projections.

    Rounding errors and their random projections are sub-Gaussian with their own variance, so sums of their squares have no
    heavier tail than chi-square; the limit is the bound of Laurent and Massart (2000, lemma 1) at probability e⁻³⁵, plus 10 %.
    It is 1.32 for a block of 64×64 outputs (an rms relative error of 2.4e-4 on N(0,1) inputs) and 9.2 for 16 projections.
    """
    spread = _LOG_FALSE_ALARM / outputs
    limit: Number = _SLACK * (1.0 + 2.0 * spread**0.5 + 2.0 * spread)
    return limit


def has_class(k: int) -> bool:
    """Whether K is long enough for the mean excess to be judged."""
    return k >= SMALLEST_CLASS_K


def classify(rms_relative: float | None, k: int) -> str:
    """Name of the narrowest arithmetic that explains an rms relative error against float64 on N(0,1) inputs.

    The classes overlap where K is large (fp16 accumulators reach the error of bf16 inputs near K = 4,096); the name is then
    that of the accumulator. NaN and None are `wrong`.
    """
    fp16 = 1.25 * ROUNDING_RMS * math.sqrt(1.0 + k / 2.0)
    limits = (
        ("fp32_accumulate", ROUNDING_RMS * math.sqrt(excess_limit(4096.0))),
        ("fp16_accumulate", min(fp16, F16_RELATIVE_CAP)),
        ("bf16_inputs", 3.5e-3),
        ("int8_inputs", 2.2e-2),
        ("fp8_inputs", WRONG_RMS),
    )
    return next((name for name, limit in limits if rms_relative is not None and rms_relative <= limit), "wrong")
