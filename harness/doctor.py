"""The instrument test of a CUDA device."""

from __future__ import annotations

from harness.diagnosis import Check, Outcome


def gpu_checks(device: str) -> list[Check]:
    """What `hgemm doctor` measures on a CUDA device.

    Args:
        device: `cuda:N`.
    """
    return [Check(name="instrument", outcome=Outcome.WARN, detail=f"the instrument of {device} was not tested")]
