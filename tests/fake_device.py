"""A device in this process: operations are Python functions on the buffers, and time is simulated."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from harness.bench import Bench
from harness.devices import ArenaLayout, BufferSet, Device, OperationInfo, WindowTime, holds
from harness.plan import Call, Kernel, Language, Layout, Plan
from harness.profiles import load_profile
from harness.record import SUBMISSION, L2State
from harness.run import DeviceInfo

if TYPE_CHECKING:
    import torch

    from harness.timing.server import Arrival

Run = Callable[[BufferSet], object]

PROFILE = load_profile("cpu").model_copy(update={"l2_bytes": 1 << 20, "memory_bytes": 1 << 28, "max_clock_mhz": 100_000})
INFO = DeviceInfo(profile="cpu", name="simulated", uuid="CPU-0", driver="0", libraries={}, timer="simulated")
KERNEL = Kernel(language=Language.C, source="kernels/k.c", entry="k")


def plan(**fields: object) -> Plan:
    return Plan.model_validate({"layout": "NN", "kernels": {"k": KERNEL}, "steps": (Call(kernel="k"),), **fields})


def honest(buffers: BufferSet) -> None:
    buffers.c.copy_((buffers.a.float() @ buffers.b.float()).half())


class Contender(NamedTuple):
    """What runs, and how long a launch takes by the simulated clock."""

    run: Run = honest
    launch_ns: int = 5_000
    layout: Layout = Layout.NN


BASELINES: Mapping[str, Mapping[str, Contender]] = {
    "torch_matmul": {"slow": Contender(launch_ns=20_000), "fast": Contender(launch_ns=10_000, layout=Layout.TN)},
    "torch_matmul_fp32": {"only": Contender(launch_ns=15_000)},
}


class FakeDevice:
    """Implements `harness.devices.Device`. `submission` runs as the submission whatever its plan says."""

    def __init__(
        self, submission: Contender | Run = honest, baselines: Mapping[str, Mapping[str, Contender]] = BASELINES
    ) -> None:
        self.info, self.profile = INFO, PROFILE
        self.windows: list[tuple[str, tuple[int, ...], L2State, int]] = []
        self.dropped: list[str] = []
        self.examined: list[tuple[tuple[int, ...], int]] = []
        self.ports: list[FakePort] = []
        self._submission = submission if isinstance(submission, Contender) else Contender(submission)
        self._baselines = baselines

    def memory(self, size_bytes: int) -> torch.Tensor:
        import torch

        # Memory that was used before, so that nothing relies on zeros.
        self._memory = torch.full((size_bytes,), 0xA5, dtype=torch.uint8)
        return self._memory

    def open_problem(self, layout: ArenaLayout) -> None:
        self.layout = layout
        self._operations: dict[str, Contender] = {}

    def bind_submission(self, plan: Plan, artifacts: dict[str, str]) -> OperationInfo:
        self._submission = self._submission._replace(layout=plan.layout)
        self._operations[SUBMISSION] = self._submission
        return OperationInfo(key=SUBMISSION, contender=SUBMISSION, layout=plan.layout, description="under test")

    def bind_baselines(self, names: tuple[str, ...], keys: tuple[str, ...] | None) -> tuple[OperationInfo, ...]:
        found = []
        for name in names:
            for variant, contender in self._baselines[name].items():
                key = f"{name}/{variant}"
                if keys is None or key in keys:
                    self._operations[key] = contender
                    found.append(OperationInfo(key=key, contender=name, layout=contender.layout, description=key))
        return tuple(found)

    def bind_stand_in(self, original: OperationInfo, delay_ns: int) -> OperationInfo:
        contender = self._operations[original.key]
        self._operations[SUBMISSION] = contender._replace(launch_ns=contender.launch_ns + delay_ns)
        return original.model_copy(update={"key": SUBMISSION, "contender": SUBMISSION})

    def port(self, keys: dict[str, str], sets: int, between: Callable[[Arrival | None], None] | None) -> FakePort:
        self.ports.append(FakePort(self, keys, between))
        return self.ports[-1]

    def launch(self, key: str, slot: int) -> int:
        self.run(key, (slot,))
        return self._operations[key].launch_ns

    def conditions(self) -> None:
        """There are none."""

    def drop(self, keys: tuple[str, ...]) -> None:
        self.dropped += keys
        for key in keys:
            self._operations.pop(key, None)

    def run(self, key: str, slots: tuple[int, ...]) -> None:
        contender = self._operations[key]
        for slot in slots:
            contender.run(self.layout.buffers(self._memory, slot, contender.layout))

    def window(self, key: str, slots: tuple[int, ...], l2_state: L2State, unscored: int) -> WindowTime:
        self.windows.append((key, slots, l2_state, unscored))
        self.run(key, slots)
        return WindowTime(window_ns=self._operations[key].launch_ns * (len(slots) - unscored))

    def examine(self, slots: tuple[int, ...], unscored: int) -> None:
        self.examined.append((slots, unscored))

    def digest(self, tensors: tuple[torch.Tensor, ...]) -> int:
        return hash(tuple(tensor.contiguous().numpy().tobytes() for tensor in tensors))

    def holds(self, words: tuple[torch.Tensor, ...], bits: int) -> bool:
        return holds(words, bits)


class FakePort:
    """Requests one after another on a clock that exists only as a number; a clean-up takes `clean_ns`."""

    clean_ns = 0

    def __init__(self, device: FakeDevice, keys: dict[str, str], between: Callable[[Arrival | None], None] | None) -> None:
        self._device, self._keys, self._between = device, keys, between
        self._now = self._clean_at = 0
        self.poll_resolution_ns = 1

    def now_ns(self) -> int:
        return self._now

    def wait_until(self, time_ns: int) -> None:
        self._now = max(self._now, time_ns)

    def launch(self, arrival: Arrival) -> None:
        self._took = self._device.launch(self._keys[arrival.contender], arrival.set_index)

    def finish(self) -> int:
        self._now += self._took
        return self._took

    def clean_up(self, following: Arrival | None) -> None:
        if self._between is not None:
            self._between(following)
            self._clean_at = self._now + self.clean_ns

    def is_clean(self) -> bool:
        self._now += 1_000 if self._now < self._clean_at else 0
        return self._now >= self._clean_at


class FakeDriver:
    """A Bench in this process, behind the interface of `harness.drivers.Driver`."""

    def __init__(self, device: Device) -> None:
        bench = Bench(device)
        self.device = device
        self.info, self.profile = device.info, device.profile
        self.deadline = time.monotonic()
        self.closed = 0
        self.alive = True
        self.prepare, self.draw, self.select, self.round = bench.prepare, bench.draw, bench.select, bench.round
        self.serve = bench.serve

    def close(self) -> None:
        self.closed += 1

    kill = close
