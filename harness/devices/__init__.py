"""Devices: one implementation per kind of hardware behind one protocol, and the memory that contenders work in."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from harness.model import Count, HgemmError, InfraError, Model, Positive
from harness.plan import Layout
from harness.problem import HALF_BYTES, Problem
from harness.profiles import DeviceProfile
from harness.record import L2State, Reason
from harness.run import DeviceInfo
from harness.telemetry import Conditions

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from harness.plan import Plan
    from harness.timing.server import Arrival, Port

GUARD_BYTES = 4096
GUARD_BITS = 0x7F5A
"""fp16 NaN that fills every gap between buffers: reading it shows in the result, writing it shows in the gap."""
ALIGNMENT_BYTES = 256
UNSCORED_OPERATIONS = 2
"""Operations at the head of a window, on other sets, before its first event."""


class SubmissionFault(HgemmError):
    """Running the submission failed in a way that is its own fault."""

    exit_code = 1

    def __init__(self, reason: Reason, detail: str, fatal: bool = False) -> None:
        super().__init__(detail)
        self.reason = reason
        self.fatal = fatal


class MachineFault(InfraError):
    """The machine failed while a shape was measured."""

    def __init__(self, reason: Reason, detail: str, fatal: bool) -> None:
        super().__init__(detail)
        self.reason = reason
        self.fatal = fatal


class OperationInfo(Model):
    """A bound Operation, as seen from the other side of a pipe."""

    key: str
    """Names it among the operations of this problem; equal in every process that binds the same choice."""
    contender: str
    """`submission`, or the baseline that it is a candidate for."""
    layout: Layout
    """Layout of B that it reads."""
    description: str
    """What it is, for people."""
    workspace_limit_bytes: Count | None = None
    """Largest workspace that a library was allowed while it chose; null for what takes none."""


class WindowTime(Model):
    """One timed window."""

    window_ns: Positive
    """Length, in nanoseconds of the device's timer."""
    sm_clock_mhz: Positive | None = None
    """Clock of the multiprocessors over the window, or null where it cannot be read."""


class BufferSet(NamedTuple):
    """The buffers of one operation. Tensors are views: a [m, k], b [k, n] (its storage follows the layout), c [m, n]."""

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    workspace: torch.Tensor


class Sets(NamedTuple):
    """All buffer sets at once: a [sets, m, k], b [sets, k, n], c [sets, m, n], fp16 views."""

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor


class ArenaLayout(Model):
    """Where the buffer sets of a problem lie in one piece of memory.

    A slot is `guard A guard B guard C guard`; slots are spread over the span, and the workspace with its guards follows
    them. All contenders use the same addresses: where in the cache a buffer lies moves a time by up to a percent.
    """

    problem: Problem
    """The problem."""
    slots: Positive
    """Buffer sets."""
    stride_bytes: Positive
    """Distance of two slots."""
    workspace_bytes: Count
    """Workspace of the submission."""

    @classmethod
    def plan(cls, problem: Problem, slots: int, span_bytes: int, workspace_bytes: int) -> Self:
        """Spread `slots` sets over at least `span_bytes`."""
        slot_bytes = _slot_offsets(problem).end
        stride = max(slot_bytes, _aligned(span_bytes // slots))
        return cls(problem=problem, slots=slots, stride_bytes=stride, workspace_bytes=workspace_bytes)

    @property
    def workspace_offset(self) -> int:
        """Start of the workspace."""
        return self.slots * self.stride_bytes + GUARD_BYTES

    @property
    def total_bytes(self) -> int:
        """Bytes of memory that the arena needs."""
        return self.workspace_offset + _aligned(self.workspace_bytes) + GUARD_BYTES

    def addresses(self, start: int, slot: int) -> tuple[int, int, int, int]:
        """Of A, B, C and the workspace (0 where there is none) of one slot, in memory that starts at an address."""
        at, begin = _slot_offsets(self.problem), start + slot * self.stride_bytes
        workspace = start + self.workspace_offset if self.workspace_bytes else 0
        return begin + at.a, begin + at.b, begin + at.c, workspace

    def sets(self, memory: torch.Tensor, layout: Layout) -> Sets:
        """Views of all sets in `memory` (uint8, one dimension)."""
        problem, at = self.problem, _slot_offsets(self.problem)
        b_rows, b_columns = (problem.k, problem.n) if layout is Layout.NN else (problem.n, problem.k)
        b = self._view(memory, at.b, b_rows, b_columns)
        return Sets(
            self._view(memory, at.a, problem.m, problem.k),
            b if layout is Layout.NN else b.transpose(1, 2),
            self._view(memory, at.c, problem.m, problem.n),
        )

    def buffers(self, memory: torch.Tensor, slot: int, layout: Layout) -> BufferSet:
        """The buffers of one slot."""
        sets = self.sets(memory, layout)
        return BufferSet(sets.a[slot], sets.b[slot], sets.c[slot], self.workspace(memory))

    def workspace(self, memory: torch.Tensor) -> torch.Tensor:
        """The workspace, uint8."""
        return memory[self.workspace_offset : self.workspace_offset + self.workspace_bytes]

    def guards(self, memory: torch.Tensor, whole: bool = False) -> tuple[torch.Tensor, ...]:
        """Every guard of the slots and around the workspace, as int16 views [sets, length].

        With `whole` the last one of a slot reaches to the next slot, so that nothing can be kept in between.
        """
        p, at = self.problem, _slot_offsets(self.problem)
        gaps = (
            (0, at.a),
            (at.a + p.a_bytes, at.b),
            (at.b + p.b_bytes, at.c),
            (at.c + p.c_bytes, self.stride_bytes if whole else at.end),
        )
        import torch

        words = memory[: self.slots * self.stride_bytes].view(torch.int16)
        step = self.stride_bytes // HALF_BYTES
        views = [
            words.as_strided((self.slots, (end - start) // HALF_BYTES), (step, 1), start // HALF_BYTES) for start, end in gaps
        ]
        for start, end in (
            (self.workspace_offset - GUARD_BYTES, self.workspace_offset),
            (self.workspace_offset + self.workspace_bytes, self.total_bytes),
        ):
            views.append(memory[start + start % HALF_BYTES : end].view(torch.int16).unsqueeze(0))
        return tuple(views)

    def _view(self, memory: torch.Tensor, offset_bytes: int, rows: int, columns: int) -> torch.Tensor:
        import torch

        halves = memory[: self.slots * self.stride_bytes].view(torch.float16)
        step = self.stride_bytes // HALF_BYTES
        return halves.as_strided((self.slots, rows, columns), (step, columns, 1), offset_bytes // HALF_BYTES)


class _SlotOffsets(NamedTuple):
    a: int
    b: int
    c: int
    end: int


class Device(Protocol):
    """Runs and times operations; knows nothing of right and wrong."""

    info: DeviceInfo
    profile: DeviceProfile

    def memory(self, size_bytes: int) -> torch.Tensor:
        """At least that much memory that contenders can reach: uint8, one dimension, 256-byte aligned."""
        ...

    def open_problem(self, layout: ArenaLayout) -> None:
        """Forget the last problem's operations and work on this arena."""
        ...

    def bind_submission(self, plan: Plan, artifacts: dict[str, str]) -> OperationInfo:
        """Load and bind a plan; `artifacts` maps each kernel's name to its built file.

        Raises:
            SubmissionFault: the driver or loader refuses it.
        """
        ...

    def bind_baselines(self, names: tuple[str, ...], keys: tuple[str, ...] | None) -> tuple[OperationInfo, ...]:
        """Every candidate of the named baselines, or only those of the given keys."""
        ...

    def drop(self, keys: tuple[str, ...]) -> None:
        """Forget operations that lost."""
        ...

    def run(self, key: str, slots: tuple[int, ...]) -> None:
        """Run one operation on each slot and wait.

        Raises:
            SubmissionFault: a launch failed or faulted.
        """
        ...

    def window(self, key: str, slots: tuple[int, ...], l2_state: L2State, unscored: int) -> WindowTime:
        """Time one window: operations on the first `unscored` slots, then one on each of the others, timed as one."""
        ...

    def examine(self, slots: tuple[int, ...], unscored: int) -> None:
        """See to it that each operation of a window of the submission does its own work, where `window` has not done so.

        Raises:
            SubmissionFault: one does not.
        """
        ...

    def port(self, keys: dict[str, str], sets: int, between: Callable[[Arrival | None], None] | None) -> Port:
        """Requests on this device, for the server loop.

        Args:
            keys: operation of each contender.
            sets: so many of the first slots are worked on.
            between: called after every request with the one that follows, to refresh what that one needs; with None
                nothing happens between requests.

        Raises:
            MachineFault: the device has no server mode.
        """
        ...

    def bind_stand_in(self, original: OperationInfo, delay_ns: int) -> OperationInfo:
        """Let a baseline's operation stand in the submission's place, slowed by a delay."""
        ...

    def conditions(self) -> Conditions | None:
        """Clocks, power and temperature right now, where there are such readings."""
        ...

    def digest(self, tensors: tuple[torch.Tensor, ...]) -> int:
        """A hash of the bits of some tensors; equal for equal bits, and unpredictable to a submission."""
        ...

    def holds(self, words: tuple[torch.Tensor, ...], bits: int) -> bool:
        """Whether all words of these int16 views [rows, columns] have these bits."""
        ...


def poison(rng_value: int) -> int:
    """Bits of a quiet fp16 NaN that depends on a random value and is never the guards' pattern."""
    bits = 0x7E00 | (rng_value & 0x80FF) | 1
    return bits if bits != GUARD_BITS else bits ^ 2


def signed(bits: int) -> int:
    """Bits of a word as the int16 that torch shows it as."""
    return bits - (1 << 16) if bits >= 1 << 15 else bits


def holds(words: tuple[torch.Tensor, ...], bits: int) -> bool:
    """Whether all words of these int16 views of host memory have these bits; numpy says so several times sooner than torch."""
    return all(bool((view.numpy() == signed(bits)).all()) for view in words)


def _slot_offsets(problem: Problem) -> _SlotOffsets:
    a = GUARD_BYTES
    b = _aligned(a + problem.a_bytes) + GUARD_BYTES
    c = _aligned(b + problem.b_bytes) + GUARD_BYTES
    return _SlotOffsets(a, b, c, _aligned(c + problem.c_bytes) + GUARD_BYTES)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
