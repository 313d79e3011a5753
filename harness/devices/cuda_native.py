"""The parent's side of kind `native` on a CUDA device.

The parent has a context of its own on the card. It owns the arena, which the untrusted worker maps, fills inputs and
compares outputs there, and holds every reported time against its own clock.

A library sees the buffers of a whole window before the window is timed. While its `hgemm_run` is called, which only records
work, every bit of the arena is inverted: whatever it starts at once works on other data. Marks (harness/devices/marks.py) keep
one operation from doing the work of others.
"""

from __future__ import annotations

import collections
import functools
import secrets
import statistics
import time
from typing import TYPE_CHECKING, Protocol, TypeVar

from harness.channel import WorkerDied, WorkerProcess, WorkerTimeout
from harness.devices import ArenaLayout, MachineFault, OperationInfo, WindowTime
from harness.devices.marks import Marks
from harness.devices.untrusted import CLOCK_SLACK_NS, CLOCK_SLACK_SHARE, Reported, UntrustedDevice
from harness.isolation import NAMESPACES, described
from harness.messages import CaptureWindow, Done, Drop, MapMemory, Open, RunMarked
from harness.model import Model
from harness.plan import Plan
from harness.profiles import load_profile
from harness.record import SUBMISSION, L2State
from harness.run import DeviceInfo

if TYPE_CHECKING:
    import torch

    from harness.devices import Sets
    from harness.telemetry import Conditions

_Reply = TypeVar("_Reply", bound=Model)

OPEN_TIMEOUT_S = 180.0
LEVELS: tuple[tuple[str, ...], ...] = (NAMESPACES, tuple(option for option in NAMESPACES if option != "--ipc"), ())
"""Namespaces of the worker, in the order in which they are tried: memory between processes may need some of the parent's."""
PROBE_BYTES = 2 << 20
UNSCORED_WEIGHT = 1.25
"""How much longer than a timed operation an unscored one may take: it meets a card that rests."""
OVERHEADS = 101
"""Windows of baselines whose overhead is remembered."""
CLOCK_TRIES = 5
"""Windows in a row whose clocks may disagree: only a busy host delays the parent, since nobody else has the card."""


class Memory(Protocol):
    """Memory of the card that the worker can map."""

    handle: bytes
    size_bytes: int
    """0 once it is freed."""
    tensor: torch.Tensor

    def free(self) -> None:
        """Free it, once; nobody may have it mapped."""
        ...


class Card(Protocol):
    """A card as the parent uses it by itself."""

    device: str
    """`cuda:N`."""
    conditions: dict[str, str]
    """Limits and modes."""
    levels: tuple[tuple[str, ...], ...]
    """Namespaces that are still worth trying for a worker, best first; see LEVELS."""

    def allocate(self, size_bytes: int) -> Memory:
        """Memory that another process can map."""
        ...

    def wait(self) -> None:
        """Until everything that this process put on the card is done."""
        ...

    def digest(self, tensors: tuple[torch.Tensor, ...], key: int) -> int:
        """Keyed hash of the bits of some fp16 tensors."""
        ...

    def holds(self, words: tuple[torch.Tensor, ...], bits: int) -> bool:
        """Whether all words of these int16 views [rows, columns] have these bits."""
        ...

    def read(self) -> Conditions:
        """Clock, power, temperature and throttle reasons right now."""
        ...


class NativeCudaDevice(UntrustedDevice):
    """Implements `harness.devices.Device` over an untrusted worker."""

    clock_tries = CLOCK_TRIES

    def __init__(self, card: Card) -> None:
        self._card = card
        self._key = secrets.randbits(64)
        self._captured: set[tuple[tuple[int, ...], int]] = set()
        self._overheads_ns: collections.deque[float] = collections.deque(maxlen=OVERHEADS)
        self._memory: Memory = card.allocate(PROBE_BYTES)
        try:
            info = self._open()
        except BaseException:
            self._memory.free()
            raise
        conditions = {**card.conditions, "isolation": described(card.levels[0])}
        self.info = info.model_copy(update={"conditions": conditions})
        self.profile = load_profile(info.profile)

    def memory(self, size_bytes: int) -> torch.Tensor:
        """At least that much memory that both can reach, the same piece again and again while it suffices.

        Raises:
            MachineFault: the card has not that much.
        """
        if self._memory.size_bytes < size_bytes:
            self._call(MapMemory(handle="", size_bytes=0), Done)
            self._memory.free()
            self._memory = self._card.allocate(size_bytes)
            self._map()
        return self._memory.tensor

    def open_problem(self, layout: ArenaLayout) -> None:
        """Tell the worker where the buffers are."""
        self._layout = layout
        self._captured = set()
        super().open_problem(layout)

    def bind_submission(self, plan: Plan, artifacts: dict[str, str]) -> OperationInfo:
        """Have the library loaded, and its `hgemm_create` called, which counts as the time it takes."""
        self._captured, self._plan_layout = set(), plan.layout
        return super().bind_submission(plan, artifacts)

    def bind_stand_in(self, original: OperationInfo, delay_ns: int) -> OperationInfo:
        """Have a baseline run in the submission's place."""
        self._captured, self._plan_layout = set(), original.layout
        return super().bind_stand_in(original, delay_ns)

    def drop(self, keys: tuple[str, ...]) -> None:
        """Have operations forgotten that lost."""
        self._call(Drop(keys=keys), Done)

    def run(self, key: str, slots: tuple[int, ...]) -> None:
        """Run an operation on each slot."""
        self._capture(key, slots, 0)
        super().run(key, slots)

    def window(self, key: str, slots: tuple[int, ...], l2_state: L2State, unscored: int) -> WindowTime:
        """Time a window in the worker and compare with this side's clock.

        Raises:
            SubmissionFault: the clocks disagree, or an operation does not work on its inputs as they are when it begins.
        """
        marks = Marks.draw(self._sets(), slots) if key == SUBMISSION and (slots, unscored) not in self._captured else None
        self._capture(key, slots, unscored, marks)
        result = super().window(key, slots, l2_state, unscored)
        if marks is not None:
            marks.examine(self._sets(), lambda: self._call(RunMarked(), Done))
        return result

    def conditions(self) -> Conditions:
        """Clock, power, temperature and throttle reasons right now."""
        return self._card.read()

    def digest(self, tensors: tuple[torch.Tensor, ...]) -> int:
        """Keyed hash of the bits of some fp16 tensors."""
        return self._card.digest(tensors, self._key)

    def holds(self, words: tuple[torch.Tensor, ...], bits: int) -> bool:
        """Whether all words of these int16 views [rows, columns] have these bits."""
        return self._card.holds(words, bits)

    def _agrees(self, window: Reported) -> bool:
        """Whether the two clocks agree; the unscored operations are part of what the parent's saw.

        How much passes beside the operations, such as for launching their graph, is seen on windows of the baselines.
        """
        if window.reported_ns > window.elapsed_ns:
            return False
        if window.key != SUBMISSION:
            whole_ns = window.reported_ns * (window.timed + window.unscored) / window.timed
            self._overheads_ns.append(max(0.0, window.elapsed_ns - whole_ns))
            return True
        usual_ns = statistics.median(self._overheads_ns) if self._overheads_ns else 0.0
        share = window.timed / (window.timed + UNSCORED_WEIGHT * window.unscored)
        least_ns = (window.elapsed_ns * (1 - CLOCK_SLACK_SHARE) - CLOCK_SLACK_NS - usual_ns) * share
        return least_ns <= window.reported_ns

    def _capture(self, key: str, slots: tuple[int, ...], unscored: int, marks: Marks | None = None) -> None:
        """Have the library called for a window that it has not seen, while it cannot see the true inputs."""
        if key != SUBMISSION or (slots, unscored) in self._captured:
            return
        arena = self._memory.tensor[: self._layout.total_bytes]
        arena.bitwise_not_()
        offsets, bits = (marks.offsets_bytes, marks.bits) if marks is not None else ((), 0)
        self._call(CaptureWindow(slots=slots, unscored=unscored, marks=offsets, mark_bits=bits), Done)
        arena.bitwise_not_()
        self._captured.add((slots, unscored))

    def _sets(self) -> Sets:
        return self._layout.sets(self._memory.tensor, self._plan_layout)

    def _open(self) -> DeviceInfo:
        """Start a worker that can map the parent's memory, in as many namespaces of its own as that allows."""
        while True:
            level, *others = self._card.levels
            self.deadline = time.monotonic() + OPEN_TIMEOUT_S
            self.worker = WorkerProcess((), namespaces=level)
            try:
                info = self._call(Open(device=self._card.device, native=True), DeviceInfo)
                self._map()
            except (MachineFault, WorkerDied, WorkerTimeout):
                self.worker.kill()
                if not others:
                    raise
                self._card.levels = tuple(others)
            except BaseException:
                self.worker.kill()
                raise
            else:
                return info

    def _map(self) -> None:
        self._call(MapMemory(handle=self._memory.handle.hex(), size_bytes=self._memory.size_bytes), Done)

    def _call(self, request: Model, reply: type[_Reply]) -> _Reply:
        # The worker's work must find what the parent put on the card before, and the other way round.
        self._card.wait()
        return super()._call(request, reply)

    def _release(self) -> None:
        self._memory.free()


@functools.cache
def open_card(index: int) -> Card:
    """The card with the parent's own context on it, which lasts as long as the process."""
    from harness.devices.cuda_card import CudaCard

    return CudaCard(index)
