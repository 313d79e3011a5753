"""Protocol: everything that decides how a run measures, written into the run so that results are comparable or are not."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from harness.model import DataError, Hash, InfraError, Line, Model, Name, Positive
from harness.profiles import DeviceProfile
from harness.record import L2State, Measure, Mode

PROTOCOL_VERSION = "3"

CUDA_BASELINES = ("torch_matmul", "cublas", "cublaslt_heuristic", "cublaslt_autotuned")
CPU_BASELINES = ("torch_matmul", "torch_matmul_fp32")


_MEASURES = {
    Mode.OFFLINE: tuple(Measure(mode=Mode.OFFLINE, l2_state=state) for state in (L2State.COLD, L2State.WARM)),
    # A request finds memory as the flush after the last one left it.
    Mode.SERVER: (Measure(mode=Mode.SERVER, l2_state=L2State.COLD),),
}


class Purpose(StrEnum):
    """What a protocol is for."""

    FULL = "full"
    """Verify everything and time against every baseline: the only one that ranks."""
    SCREEN = "screen"
    """Verify everything, time against one anchor: for searches and rewards."""
    CHECK = "check"
    """Verify only."""


class Protocol(Model):
    """How a run measures. Two runs compare only when these are equal."""

    version: Line = PROTOCOL_VERSION
    """Version of the measurement protocol (docs/protocol.md)."""
    purpose: Purpose = Purpose.FULL
    """What it is for."""
    measures: tuple[Measure, ...]
    """What is timed."""
    baselines: tuple[Name, ...]
    """Baselines in every round."""
    anchor: Name
    """The baseline that a reward is relative to."""
    window_ns: Positive
    """A window holds enough operations to last this long, or one."""
    target_half_width: Annotated[float, Field(gt=0, lt=1)] = 0.01
    """Rounds end at the first look at which every ratio is known to this half-width."""
    server_requests: Positive = 8
    """Requests of each contender in server mode; a third of them where an operation takes long."""
    sustained: bool = False
    """Longer windows on compute-bound shapes, which let the power limit act."""
    deadline_s: Annotated[float, Field(gt=0)] = 60.0
    """Seconds that one shape may take before it is rejected."""

    @model_validator(mode="after")
    def _measures_have_baselines(self) -> Self:
        if self.measures and not self.baselines:
            raise ValueError("a protocol that times something has a baseline to compare with")
        return self

    @property
    def identity(self) -> Hash:
        """Hash that two comparable runs share."""
        return self.sha256()


def protocol_for(
    profile: DeviceProfile,
    purpose: Purpose = Purpose.FULL,
    sustained: bool = False,
    measures: tuple[Measure, ...] = _MEASURES[Mode.OFFLINE],
) -> Protocol:
    """The protocol of that purpose on a device.

    Raises:
        InfraError: the device has no such mode.
    """
    if profile.is_cpu and any(measure.mode is Mode.SERVER for measure in measures):
        raise InfraError("server mode, random arrivals, needs a CUDA device, and this is the CPU.")
    names: tuple[str, ...] = CPU_BASELINES if profile.is_cpu else CUDA_BASELINES
    if purpose is Purpose.CHECK:
        names, measures = (), ()
    elif purpose is Purpose.SCREEN:
        names, measures = names[-1:], measures[:1]
    return Protocol(
        purpose=purpose,
        measures=measures,
        baselines=names,
        anchor=(CPU_BASELINES if profile.is_cpu else CUDA_BASELINES)[-1],
        window_ns=2_000_000 if profile.is_cpu else 1_000_000,
        target_half_width=0.05 if profile.is_cpu else 0.01,
        sustained=sustained,
        deadline_s=60.0,
    )


def parse_modes(text: str) -> tuple[Measure, ...]:
    """Measures from a comma list of modes, `offline` or `server`, or of a mode with one state of the cache: `offline/cold`.

    Raises:
        DataError: one is unknown, or none is named.
    """
    known = {mode.value: measures for mode, measures in _MEASURES.items()}
    known |= {str(measure): (measure,) for measures in _MEASURES.values() for measure in measures}
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or set(names) - set(known):
        raise DataError(f"--modes takes {', '.join(known)}, joined by commas; not {text!r}.")
    return tuple(dict.fromkeys(measure for name in names for measure in known[name]))
