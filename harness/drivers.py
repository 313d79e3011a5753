"""Drivers: how the parent reaches a Bench, beside it (kind `native`, untrusted worker) or inside the worker (kind `device`)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol, TypeVar

from harness.channel import WorkerProcess
from harness.devices.untrusted import ask
from harness.messages import (
    Draw,
    Examine,
    Inspection,
    Open,
    Prepare,
    Prepared,
    Round,
    RoundResult,
    Select,
    Selected,
    Serve,
    ServeResult,
)
from harness.model import DataError, Model
from harness.profiles import DeviceProfile, load_profile
from harness.run import DeviceInfo

OPEN_TIMEOUT_S = 180.0
EXAMINE_TIMEOUT_S = 120.0
if TYPE_CHECKING:
    from harness.devices.cpu import CpuDevice
    from harness.devices.cuda_instrument import Examination
    from harness.devices.cuda_native import NativeCudaDevice

    NativeDevice = CpuDevice | NativeCudaDevice

_Reply = TypeVar("_Reply", bound=Model)


class Driver(Protocol):
    """A worker with a device, from the parent's side.

    Every request may raise SubmissionFault (the submission's fault), MachineFault, WorkerTimeout or WorkerDied.
    """

    info: DeviceInfo
    profile: DeviceProfile
    deadline: float
    """Until when (time.monotonic) requests must be answered."""

    def prepare(self, request: Prepare) -> Prepared: ...  # noqa: D102
    def draw(self, request: Draw) -> Inspection: ...  # noqa: D102
    def select(self, request: Select) -> Selected: ...  # noqa: D102
    def round(self, request: Round) -> RoundResult: ...  # noqa: D102
    def serve(self, request: Serve) -> ServeResult: ...  # noqa: D102

    @property
    def alive(self) -> bool:
        """Whether the worker's process still runs."""
        ...

    def close(self) -> None:
        """Let the worker end."""
        ...

    def kill(self) -> None:
        """End the worker at once."""
        ...


class RemoteDriver:
    """A trusted worker that holds the whole Bench: CUDA devices, kind `device`."""

    def __init__(self, device: str) -> None:
        self.worker = WorkerProcess(())
        self.deadline = time.monotonic() + OPEN_TIMEOUT_S
        try:
            self.info = self._call(Open(device=device), DeviceInfo)
        except BaseException:
            self.worker.kill()
            raise
        self.profile = load_profile(self.info.profile)

    def prepare(self, request: Prepare) -> Prepared:
        """See Bench.prepare."""
        return self._call(request, Prepared)

    def draw(self, request: Draw) -> Inspection:
        """See Bench.draw."""
        return self._call(request, Inspection)

    def select(self, request: Select) -> Selected:
        """See Bench.select."""
        return self._call(request, Selected)

    def round(self, request: Round) -> RoundResult:
        """See Bench.round."""
        return self._call(request, RoundResult)

    def serve(self, request: Serve) -> ServeResult:
        """See Bench.serve."""
        return self._call(request, ServeResult)

    def examine(self) -> Examination:
        """Have the instrument itself measured."""
        from harness.devices.cuda_instrument import Examination

        self.deadline = time.monotonic() + EXAMINE_TIMEOUT_S
        return self._call(Examine(), Examination)

    @property
    def alive(self) -> bool:
        """Whether the worker's process still runs."""
        return self.worker.alive

    def close(self) -> None:
        """Let the worker end."""
        self.worker.close()

    def kill(self) -> None:
        """End the worker at once."""
        self.worker.kill()

    def _call(self, request: Model, reply: type[_Reply]) -> _Reply:
        return ask(self.worker, request, reply, self.deadline)


class LocalDriver:
    """A Bench in this process over an untrusted worker: kind `native`, and so the CPU."""

    def __init__(self, device: NativeDevice) -> None:
        from harness.bench import Bench

        self._device = device
        self._bench = Bench(device)
        self.worker = self._device.worker
        self.info = self._device.info
        self.profile = self._device.profile
        self.prepare = self._bench.prepare
        self.draw = self._bench.draw
        self.select = self._bench.select
        self.round = self._bench.round
        self.serve = self._bench.serve

    @property
    def deadline(self) -> float:
        """Until when requests must be answered."""
        return self._device.deadline

    @deadline.setter
    def deadline(self, value: float) -> None:
        self._device.deadline = value

    @property
    def alive(self) -> bool:
        """Whether the worker's process still runs."""
        return self.worker.alive

    def close(self) -> None:
        """Let the worker end."""
        self._device.close()

    def kill(self) -> None:
        """End the worker at once."""
        self._device.kill()


def open_driver(device: str, native: bool = False) -> Driver:
    """Start a worker on `cpu` or `cuda:N`.

    Args:
        device: which.
        native: whether it is to run host code of submissions; on the CPU all of them are.

    Raises:
        DataError: no such kind of device.
        InfraError: the device cannot be opened.
    """
    if device == "cpu":
        from harness.devices.cpu import CpuDevice

        return LocalDriver(CpuDevice())
    if device.startswith("cuda:") and device.removeprefix("cuda:").isdigit():
        if not native:
            return RemoteDriver(device)
        from harness.devices.cuda_native import NativeCudaDevice, open_card

        return LocalDriver(NativeCudaDevice(open_card(int(device.removeprefix("cuda:")))))
    raise DataError(f"{device!r} is not a device; write cpu, cuda:0, cuda:1 and so on.")
