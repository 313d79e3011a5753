"""What a parent and a worker say to each other: validated JSON, never pickles, since a worker may be untrusted."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from harness.devices import ArenaLayout, OperationInfo, WindowTime
from harness.model import Count, Model, Name, Positive
from harness.plan import Plan
from harness.problem import Problem
from harness.record import REASONS, L2State, Measure, Reason, Status
from harness.telemetry import Conditions
from harness.verify.checks import Errors
from harness.verify.inputs import InputKind
from harness.verify.reference import Projection


class Open(Model):
    """First request: open the device. Answered by DeviceInfo."""

    type: Literal["open"] = "open"
    device: str
    """`cpu` or `cuda:N`."""
    native: bool = False
    """Whether host code of a submission will run in the worker, which is then not trusted and holds no Bench."""


class StandIn(Model):
    """A baseline's own choice in the submission's place, to measure the instrument: it must score 1."""

    baseline: Name
    """The baseline."""
    delay_ns: Count = 0
    """Nanoseconds of delay after every operation, which must show in the score."""


class Prepare(Model):
    """Lay out the buffers of a problem and bind the submission. Answered by Prepared."""

    type: Literal["prepare"] = "prepare"
    problem: Problem
    """The problem."""
    plan: Plan | StandIn
    """How the submission computes it."""
    artifacts: dict[Name, str]
    """Built file of each kernel of the plan."""
    window_ns: Positive
    """Length that a window should have."""
    sets: Positive | None = None
    """Buffer sets that are needed; null leaves their number to the bench."""


class Prepared(Model):
    """A problem is laid out."""

    warm_applies: bool
    """Whether one set fits in the last-level cache."""


class Draw(Model):
    """Run the submission on fresh inputs of one kind and compare every output with float64. Answered by Inspection."""

    type: Literal["draw"] = "draw"
    kind: InputKind
    """Kind of input."""
    draws: Positive
    """Buffer sets, each with inputs of its own."""
    seed: Count
    """Seed of inputs and poison."""
    repeat: bool
    """Run a second time, with other poison, and compare bits."""


class Integrity(Model):
    """What an operation did beside writing C."""

    guards_changed: bool
    """A gap around a buffer was written."""
    inputs_changed: bool
    """A or B was written."""
    workspace_dirty: bool
    """The zeroed part of the workspace was not zero afterwards."""

    def merge(self, other: Self) -> Self:
        """What happened in either."""
        return type(self)(
            guards_changed=self.guards_changed or other.guards_changed,
            inputs_changed=self.inputs_changed or other.inputs_changed,
            workspace_dirty=self.workspace_dirty or other.workspace_dirty,
        )


class Inspection(Model):
    """What the outputs looked like. Facts; the parent judges."""

    integrity: Integrity
    """Memory around the outputs."""
    errors: Errors | None = None
    """Comparison with float64 of every output."""
    projection: Projection | None = None
    """Freivalds projection: of a timed window in place of the comparison; of a draw, of a run over old outputs."""
    repeatable: bool | None = None
    """Whether a second run gave the same bits; null when not tried."""


class Select(Model):
    """Choose layout and algorithm of contenders for one measure, and size their windows. Answered by Selected.

    Baselines and the submission are asked for separately, so that it is clear whose work hangs or dies.
    """

    type: Literal["select"] = "select"
    measure: Measure
    """What will be timed."""
    contenders: tuple[Name, ...]
    """Baselines, or the submission."""
    keys: dict[Name, str] = Field(default_factory=dict)
    """Choices of baselines known from before, which do not race again."""
    seed: Count
    """Seed of inputs and of the order of windows."""


class Choice(Model):
    """What one contender settled on for a measure."""

    operation: OperationInfo
    """The operation."""
    launches_per_window: Positive
    """Operations in each of its scoring windows."""
    selection_window_ns: tuple[Positive, ...] = ()
    """Its windows in the selection rounds, of `selection_launches` operations each."""
    selection_launches: Positive = 1
    """Operations in a selection window."""
    errors: Errors | None = None
    """A baseline's errors on fresh normal inputs."""


class Selected(Model):
    """The choices of the contenders that were asked for."""

    choices: dict[Name, Choice]
    """By contender."""
    best: Name
    """The fastest of them in the selection rounds."""


class Round(Model):
    """Time every contender once and verify the submission's outputs. Answered by RoundResult."""

    type: Literal["round"] = "round"
    measure: Measure
    """What is timed."""
    order: Annotated[tuple[Name, ...], Field(min_length=1)]
    """Contenders in the order of their windows."""
    seed: Count
    """Seed of the submission's inputs, and of its projection."""
    full: bool
    """Compare every output with float64 rather than project."""
    readings: bool = False
    """Read the card's conditions when the windows are done, which takes as long as some windows do."""


class RoundResult(Model):
    """One round."""

    conditions: Conditions | None = None
    """Readings right after it, where they were asked for and the device has any."""
    times: dict[Name, WindowTime]
    """By contender."""
    inspection: Inspection | None = None
    """The submission's outputs; null where it was not in the order."""


class Serve(Model):
    """Answer random arrivals, as many of each contender as there are buffer sets at most. Answered by ServeResult."""

    type: Literal["serve"] = "serve"
    contenders: Annotated[tuple[Name, ...], Field(min_length=1)]
    """Who answers; each was chosen for the cold offline measure."""
    requests_each: Positive
    """Requests of each contender."""
    rate_per_s: Annotated[float, Field(gt=0)]
    """Arrivals per second over all contenders; fewer where cleaning up between requests takes too long for so many."""
    seed: Count
    """Seed of the trace and of the inputs."""
    full: bool
    """Compare every output with float64 rather than project."""
    refreshed: bool = True
    """Flush the cache and draw inputs between requests. False is for saturation: inputs are drawn before the trace, and
    requests follow one another as they come."""


class ServeResult(Model):
    """One trace."""

    rate_per_s: Annotated[float, Field(gt=0)]
    """Arrivals per second over all contenders."""
    device_ns: dict[Name, tuple[Positive, ...]]
    """By contender the device times of requests that were not disturbed."""
    latency_ns: dict[Name, tuple[Positive, ...]]
    """By contender the time from scheduled arrival to completion of every request."""
    disturbed: Count
    """Requests that arrived during clean-up."""
    poll_resolution_ns: Positive
    """Longest time between two looks at whether a request was complete."""
    conditions: Conditions | None
    """Readings right after the trace."""
    inspection: Inspection | None
    """The submission's outputs; null where it did not answer."""


class Examine(Model):
    """Measure the instrument itself. Answered by an Examination (harness.devices.cuda_instrument)."""

    type: Literal["examine"] = "examine"


class OpenProblem(Model):
    """To an untrusted worker: use this arena. Answered by Done."""

    type: Literal["open_problem"] = "open_problem"
    layout: ArenaLayout
    """The arena in the shared memory."""


class BindSubmission(Model):
    """To an untrusted worker: load the library. Answered by Done."""

    type: Literal["bind_submission"] = "bind_submission"
    plan: Plan
    """The plan."""
    artifacts: dict[Name, str]
    """Built file of each kernel."""


class BindStandIn(Model):
    """To an untrusted worker: run a baseline in the submission's place. Answered by Done."""

    type: Literal["bind_stand_in"] = "bind_stand_in"
    key: str
    """The baseline's operation."""
    delay_ns: Count
    """Nanoseconds of delay after every operation."""


class BindBaselines(Model):
    """To an untrusted worker: have candidates ready. Answered by Bound."""

    type: Literal["bind_baselines"] = "bind_baselines"
    names: tuple[Name, ...]
    """Which baselines."""
    keys: tuple[str, ...] | None = None
    """Which of their candidates; null for all."""


class Bound(Model):
    """Operations that are ready."""

    operations: tuple[OperationInfo, ...]
    """Every one."""


class Drop(Model):
    """To an untrusted worker of a CUDA device: forget operations that lost. Answered by Done."""

    type: Literal["drop"] = "drop"
    keys: tuple[str, ...]
    """Which."""


class MapMemory(Model):
    """To an untrusted worker of a CUDA device: work on memory of the parent. Answered by Done."""

    type: Literal["map_memory"] = "map_memory"
    handle: Annotated[str, Field(pattern=r"^([0-9a-f]{128})?$")]
    """CUDA's handle of the memory between processes, in hex; empty to let go of what was mapped before."""
    size_bytes: Count
    """Its size."""


class CaptureWindow(Model):
    """To an untrusted worker of a CUDA device: call the library for each slot, under capture. Answered by Done.

    The parent keeps the true inputs away meanwhile, so that nothing can be computed before it is timed.
    """

    type: Literal["capture_window"] = "capture_window"
    slots: tuple[Count, ...]
    """Slots of all operations."""
    unscored: Count
    """How many of them are not timed."""
    marks: tuple[Count, ...] = ()
    """Where there are any, the window is captured a second time, with 16 bits written right before each operation: at these
    offsets in the arena. The library cannot tell the two apart."""
    mark_bits: Annotated[int, Field(ge=0, lt=1 << 16)] = 0
    """What is written."""


class RunMarked(Model):
    """To an untrusted worker of a CUDA device: run the window with marks that was captured last. Answered by Done."""

    type: Literal["run_marked"] = "run_marked"


class RunOnce(Model):
    """To an untrusted worker: run an operation on each slot. Answered by Done."""

    type: Literal["run_once"] = "run_once"
    key: str
    """The operation."""
    slots: tuple[Count, ...]
    """Slots."""


class ArmWindow(Model):
    """To an untrusted worker: bring the caches into a state and run the unscored operations. Answered by Done."""

    type: Literal["arm_window"] = "arm_window"
    key: str
    """The operation."""
    slots: tuple[Count, ...]
    """Slots of all operations."""
    unscored: Count
    """How many of them are not timed."""
    l2_state: L2State
    """State of the data."""


class TimeWindow(Model):
    """To an untrusted worker: time the window that was armed. Answered by WindowTime."""

    type: Literal["time_window"] = "time_window"


class Done(Model):
    """It worked and there is nothing to say."""


class Failure(Model):
    """It did not work."""

    type: Literal["failure"] = "failure"
    reason: Reason
    """Why: the machine's fault, or one for which a submission can be rejected."""
    detail: str
    """One sentence."""
    fatal: bool
    """Whether the device's context is lost, so that the worker must be replaced."""

    @model_validator(mode="after")
    def _is_a_fault(self) -> Self:
        if self.reason not in REASONS[Status.INFRA_ERROR] | REASONS[Status.REJECTED]:
            raise ValueError(f"{self.reason} is no fault that a worker can find")
        return self


Request = Annotated[
    Open
    | Prepare
    | Draw
    | Select
    | Round
    | Serve
    | Examine
    | OpenProblem
    | BindSubmission
    | BindStandIn
    | BindBaselines
    | Drop
    | MapMemory
    | CaptureWindow
    | RunMarked
    | RunOnce
    | ArmWindow
    | TimeWindow,
    Field(discriminator="type"),
]
