"""Reward: what a record is worth to whoever searches or learns. Bounded, monotone in speed, never paid for the unverified."""

from __future__ import annotations

import math

from harness.model import DataError
from harness.record import L2State, Measure, Mode, Record, Status

FLOOR = -1.0
"""Reward of every record that is not verified."""

MEASURE = Measure(mode=Mode.OFFLINE, l2_state=L2State.COLD)
"""What is rewarded: the measure that ranks."""


def reward(record: Record) -> float:
    """What a record is worth, from -1 to 1.

    For a verified record: x / (1 + |x|) with x = log2 of the lower end of the 95 % interval of (anchor's time / submission's
    time), offline on cold data. So 0 is as fast as the anchor, 1/2 twice as fast, -1/2 half as fast; both ends are only
    approached, so that every correct kernel is paid more than a wrong one, and a faster one more than a slower one. The
    anchor is the last baseline that the record declares: the autotuned one on CUDA devices, the product through fp32 on a
    CPU. The lower end is used so that a noisy measurement is paid less than a precise one of the same kernel.

    For any other record (rejected, unsupported, infra_error, not_attempted): -1. An infra_error says nothing about the
    submission, so a learner drops such a record rather than learn from it.

    Raises:
        DataError: the record is verified and was not timed, as with purpose `check`: there is no speed to reward.
    """
    if record.status is not Status.VERIFIED:
        return FLOOR
    timing = next((timing for timing in record.timings if timing.measure == MEASURE), None)
    if timing is None or not record.baselines:
        raise DataError(f"{record.problem} was verified and not timed; evaluate with purpose screen or full to have a reward.")
    x = math.log2(timing.speedups[record.baselines[-1]].low)
    return x / (1 + abs(x))
