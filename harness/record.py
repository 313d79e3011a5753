"""Record: what happened to one Problem. A validator makes illegal records unbuildable."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from harness.model import Count, Document, Hash, Line, Model, Name, Positive, Text
from harness.plan import Layout
from harness.problem import Problem
from harness.telemetry import Conditions

SUBMISSION = "submission"
"""Name of the submission among the contenders of a record."""


class Status(StrEnum):
    """Outcome of one Problem."""

    VERIFIED = "verified"
    """Correct by every check, and timed."""
    REJECTED = "rejected"
    """The submission is at fault; it has no times."""
    UNSUPPORTED = "unsupported"
    """The submission declares that it does not handle this shape."""
    INFRA_ERROR = "infra_error"
    """The machine is at fault; retried, never blamed on the submission."""
    NOT_ATTEMPTED = "not_attempted"
    """The run gave up on the submission before this shape."""


class Reason(StrEnum):
    """Why a record is not verified. A member's docstring is its documentation."""

    def __new__(cls, value: str, doc: str) -> Self:
        """A member is its value; the sentence is its docstring."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.__doc__ = doc
        return member

    PLAN_ERROR = "plan_error", "The plan failed, or is not valid for this shape."
    PLAN_LIMIT = "plan_limit", "plan.py exceeded its limit of time, memory or output."
    BUILD_ERROR = "build_error", "The compiler refused a kernel."
    BUILD_LIMIT = "build_limit", "A build exceeded its limit of time, memory or output size."
    LAUNCH_ERROR = "launch_error", "The driver refused a launch of the plan."
    ILLEGAL_ACCESS = "illegal_access", "A kernel accessed memory that it may not, or trapped."
    CRASH = "crash", "The process that ran the submission died while running it."
    DEADLINE = "deadline", "The submission did not finish within the shape's deadline."
    UNWRITTEN = "unwritten", "Part of C still held the poison after an operation."
    NOT_FINITE = "not_finite", "C holds NaN or infinity where the exact result is finite."
    WRONG_RESULT = "wrong_result", "An output exceeds the element-wise error bound."
    PRECISION_CLASS = "precision_class", "The error is that of a narrower accumulator than the track's, or of narrower inputs."
    INEXACT = "inexact", "Inputs whose product is exact in the track's arithmetic did not give exact outputs."
    NONDETERMINISTIC = "nondeterministic", "Equal inputs gave different bits though the plan says deterministic."
    OUT_OF_BOUNDS = "out_of_bounds", "A guard band around C or the workspace was overwritten."
    INPUT_MODIFIED = "input_modified", "A or B was changed by an operation."
    WORKSPACE_NOT_RESTORED = "workspace_not_restored", "The zeroed part of the workspace was not zero after an operation."
    TOO_FAST = "too_fast", "A time lies below what the device's arithmetic or memory allows."
    CLOCK_MISMATCH = "clock_mismatch", "Times reported by an untrusted worker disagree with the parent's own clock."
    FORBIDDEN = "forbidden", "The submission uses something that the rules forbid."
    DECLARED = "declared", "The submission declares that it does not handle this shape or device."
    GAVE_UP = "gave_up", "The submission killed its worker too often; the rest of the run was not attempted."
    DEVICE_ERROR = "device_error", "The device or its driver failed outside the submission's work."
    OUT_OF_MEMORY = "out_of_memory", "The machine had too little memory for this shape's buffers."
    WORKER_LOST = "worker_lost", "The worker process vanished for a reason outside the submission, such as a signal."
    BASELINE_ERROR = "baseline_error", "A baseline failed, was wrong, or left its precision class."


MACHINE_REASONS = frozenset({Reason.DEVICE_ERROR, Reason.OUT_OF_MEMORY, Reason.WORKER_LOST, Reason.BASELINE_ERROR})
"""Reasons that are never the submission's fault."""

REASONS: dict[Status, frozenset[Reason | None]] = {
    Status.VERIFIED: frozenset({None}),
    Status.REJECTED: frozenset(Reason) - MACHINE_REASONS - {Reason.DECLARED, Reason.GAVE_UP},
    Status.UNSUPPORTED: frozenset({Reason.DECLARED}),
    Status.INFRA_ERROR: MACHINE_REASONS,
    Status.NOT_ATTEMPTED: frozenset({Reason.GAVE_UP}),
}
"""The reasons that a record of each status may have."""


class Mode(StrEnum):
    """How requests arrive."""

    OFFLINE = "offline"
    """Back to back."""
    SERVER = "server"
    """Random arrivals."""


class L2State(StrEnum):
    """State of the data in the last-level cache when an operation starts."""

    COLD = "cold"
    """Data come from memory; this state ranks."""
    WARM = "warm"
    """Data lie in the cache; not applicable where one set does not fit."""


class StopReason(StrEnum):
    """What ended the scoring rounds of a measure."""

    PRECISE = "precise"
    """The interval was narrow enough at a look."""
    EXHAUSTED = "exhausted"
    """The last look was reached."""
    SIZED = "sized"
    """Server mode: the number of requests was fixed in advance."""


class Interval(Model):
    """A value with its 95 % confidence interval."""

    value: float
    """Estimate."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""

    @model_validator(mode="after")
    def _is_ordered(self) -> Self:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"{self.low} <= {self.value} <= {self.high} does not hold")
        return self


class Measure(Model):
    """What is timed: a mode in an L2 state."""

    mode: Mode = Mode.OFFLINE
    """Mode."""
    l2_state: L2State = L2State.COLD
    """L2 state."""

    def __str__(self) -> str:
        return f"{self.mode}/{self.l2_state}"


class ContenderTiming(Model):
    """What one contender chose for a measure, and its times. A view divides `window_median_ns` by `launches_per_window`."""

    layout: Layout
    """Layout of B that it was measured with."""
    description: Line
    """What it chose: kernels, algorithm, workspace; free text for people."""
    workspace_limit_bytes: Count | None = None
    """Largest workspace that a library was allowed while it chose; null for what takes none."""
    launches_per_window: Positive
    """Operations timed by one window (R)."""
    window_median_ns: Positive
    """Median over the scoring rounds of a window's length, in nanoseconds."""
    window_min_ns: Positive
    """Shortest window, in nanoseconds."""
    window_max_ns: Positive
    """Longest window, in nanoseconds."""
    sm_clock_median_mhz: Positive | None = None
    """Median clock during the windows, measured on the device; null where the device cannot."""

    @model_validator(mode="after")
    def _windows_are_ordered(self) -> Self:
        if not self.window_min_ns <= self.window_median_ns <= self.window_max_ns:
            raise ValueError(f"{self.window_min_ns} <= {self.window_median_ns} <= {self.window_max_ns} ns does not hold")
        return self

    @property
    def launch_ns(self) -> float:
        """Median time per launch in nanoseconds."""
        return self.window_median_ns / self.launches_per_window


class Requests(Model):
    """How requests arrived in server mode, and what their latencies were."""

    rate_per_s: Annotated[float, Field(gt=0)]
    """Arrivals per second, over all contenders."""
    disturbed: Count
    """Requests that arrived during the clean-up after another one; their device times do not count."""
    poll_resolution_ns: Positive
    """Longest time between two looks at whether a request was complete."""
    device_p90_ns: dict[Name, Positive]
    """90th percentile of the device time by contender, where 64 samples or more stand behind it."""
    latency_p50_ns: dict[Name, Positive]
    """Median by contender of the time from the scheduled arrival to completion."""


class Timing(Model):
    """One measure of one Problem, all contenders in the same rounds."""

    measure: Measure
    """What was timed."""
    rounds: Positive
    """Scoring rounds; every contender has one window in each."""
    repeated_rounds: Count = 0
    """Rounds thrown away because clocks differed between contenders."""
    stopped: StopReason
    """What ended the rounds."""
    contenders: dict[Name, ContenderTiming]
    """Times by contender."""
    speedups: dict[Name, Interval]
    """Per baseline: its time over the submission's, Hodges-Lehmann on paired log-ratios. Above 1 the submission wins."""
    requests: Requests | None = None
    """Server mode: how requests arrived. A "window" is then one request, and rounds are requests of each contender."""
    conditions: Conditions | None = None
    """Clocks, power and temperature right after the last round; null where the device has no such readings."""
    best_baseline: Name
    """The fastest baseline, chosen on selection rounds that share no sample with these."""
    seconds: Annotated[float, Field(ge=0)] | None = None
    """What this measure took, selection included and verification on other inputs not; null in records of protocol 1."""

    @model_validator(mode="after")
    def _mode_has_its_figures(self) -> Self:
        if (self.requests is None) == (self.measure.mode is Mode.SERVER):
            raise ValueError("server timings, and no others, say how requests arrived")
        return self

    @model_validator(mode="after")
    def _baselines_are_compared(self) -> Self:
        if set(self.speedups) != set(self.contenders) - {SUBMISSION} or SUBMISSION not in self.contenders:
            raise ValueError("speedups must name every baseline that was timed beside the submission")
        if self.best_baseline not in self.speedups:
            raise ValueError(f"best_baseline {self.best_baseline} was not timed")
        if not all(speedup.low > 0 for speedup in self.speedups.values()):
            raise ValueError("a speedup is a ratio of times, so its interval lies above 0")
        return self


class DrawStats(Model):
    """Errors of the outputs of one kind of input, pooled over its draws, against float64."""

    inputs: Name
    """Kind of input."""
    draws: Positive
    """Fresh draws pooled."""
    outputs: Positive
    """Outputs compared."""
    rms_relative: float | None
    """Root mean square error over root mean square reference; null when not finite."""
    block_rms_relative: float | None
    """Largest of the same over 64×64 blocks; null when not finite."""
    bound_ratio: float | None
    """Largest |error| over its element-wise bound; null when not finite."""
    inexact: Count
    """Outputs that differ from the exact result rounded to fp16."""
    accumulation_units: float | None = None
    """Largest |error| beyond 0.51 ulp, in units u·‖a_i‖·‖b_j‖ with the track's unit roundoff u: the c that the bound needs."""


class Verification(Model):
    """What verification measured. Stored for every verified record, and up to the first failure for a rejected one."""

    draws: tuple[DrawStats, ...]
    """Per kind of input."""
    baselines: dict[Name, DrawStats] = Field(default_factory=dict)
    """Errors of the baselines on normal inputs of their own."""
    timed_outputs_checked: Count = 0
    """Outputs of timed windows that were compared with float64 in full."""
    timed_outputs_projected: Count = 0
    """Outputs of timed windows that were checked by random projections (Freivalds)."""
    precision_class: Name | None = None
    """The class that the measured errors fall in."""
    bitwise_repeatable: bool | None = None
    """Whether equal inputs gave equal bits; null when not tested."""


class Record(Document):
    """What happened to one Problem in one attempt."""

    problem: Problem
    """The problem."""
    attempt: Count = 0
    """0, or one more than the attempt that an infrastructure error ended."""
    segment: Count
    """Index of the worker start within which the shape was measured whole."""
    status: Status
    """Outcome."""
    reason: Reason | None = None
    """Why it is not verified."""
    detail: Text = ""
    """One sentence for a person."""
    measures: tuple[Measure, ...]
    """The measures that the run declares."""
    baselines: tuple[Name, ...]
    """The baselines that the run declares."""
    not_applicable: tuple[Measure, ...] = ()
    """Declared measures that this shape cannot have, such as warm where one set exceeds the cache."""
    verification: Verification | None = None
    """What verification measured."""
    timings: tuple[Timing, ...] = ()
    """One per declared and applicable measure."""
    rankable: bool = True
    """False for screening, for machines that cannot rank, and where other processes used the device."""
    plan_sha256: Hash | None = None
    """Hash of the plan that ran."""
    seed: Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")] = ""
    """Seed of this shape in hex, revealed once it is measured; derives from the segment's committed secret."""
    samples_end_bytes: Count = 0
    """Length of the samples file once this record's samples were in it."""
    seconds: Annotated[float, Field(ge=0)] = 0.0
    """Wall time that the shape took, for planning runs; not a measurement of anything else."""

    @model_validator(mode="after")
    def _status_decides_payload(self) -> Self:
        if self.reason not in REASONS[self.status]:
            raise ValueError(f"a record that is {self.status} has not the reason {self.reason}")
        if len(set(map(str, self.measures))) != len(self.measures) or len(set(self.baselines)) != len(self.baselines):
            raise ValueError("a measure or a baseline is declared twice")
        if any(m not in self.measures or m.l2_state is not L2State.WARM for m in self.not_applicable):
            raise ValueError("only a declared measure on warm data can be not applicable")
        if self.status is not Status.VERIFIED:
            if self.timings:
                raise ValueError(f"a record that is {self.status} has no times")
            return self
        if self.verification is None:
            raise ValueError("a verified record holds what verification measured")
        expected = {str(m) for m in self.measures} - {str(m) for m in self.not_applicable}
        timed = [str(timing.measure) for timing in self.timings]
        if set(timed) != expected or len(timed) != len(expected):
            raise ValueError(f"times for {sorted(timed)} but the run declares {sorted(expected)}")
        for timing in self.timings:
            if set(timing.speedups) != set(self.baselines):
                raise ValueError(f"{timing.measure} has baselines {sorted(timing.speedups)}, declared {sorted(self.baselines)}")
        return self
