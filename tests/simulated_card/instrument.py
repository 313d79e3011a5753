"""In place of harness.devices.cuda_instrument: a card without fault."""

from __future__ import annotations

from typing import Any

from harness.model import Model, Name, Positive
from harness.record import Interval


class Reading(Model):
    what: str
    expected: float
    read: Interval


class Examination(Model):
    launch_ns: float
    copy_bytes_per_s: float
    matrix_flops_per_s: float
    readings: tuple[Reading, ...]
    baseline: Name
    clock_mhz: Positive | None


def examine(device: Any) -> Examination:
    reading = Reading(what="R against 2R", expected=1.0, read=Interval(value=1.0, low=0.999, high=1.001))
    return Examination(
        launch_ns=1_000.0,
        copy_bytes_per_s=4.0e12,
        matrix_flops_per_s=7.0e14,
        readings=(reading,),
        baseline="cublas",
        clock_mhz=1_900,
    )
