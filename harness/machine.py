"""The machine: which device to use, who else uses it, whether what it measures can be ranked."""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from pathlib import Path
from typing import IO, NamedTuple

from harness.devices.cpu import host_uuid
from harness.model import DataError, InfraError
from harness.profiles import DeviceProfile, load_profile, match_profile
from harness.run import DeviceInfo
from harness.telemetry import visible_cards


class DeviceChoice(NamedTuple):
    """A device by the name that `--device` takes."""

    name: str
    """`cpu` or `cuda:N`."""
    uuid: str
    """Identity of the card or host."""
    profile: DeviceProfile
    """Its profile."""


def choose_device(name: str) -> DeviceChoice:
    """Resolve `auto`, `cpu` or `cuda:N`, without touching a device: NVML only.

    Raises:
        InfraError: this machine lacks that device.
        DataError: that is no device's name.
    """
    if name == "cpu":
        return DeviceChoice("cpu", host_uuid(), load_profile("cpu"))
    cards = cuda_cards()
    if name == "auto":
        return cards[0] if cards else choose_device("cpu")
    for card in cards:
        if card.name == name:
            return card
    there = ", ".join(["cpu", *(card.name for card in cards)])
    kind = InfraError if re.fullmatch(r"cuda:[0-9]+", name) else DataError
    raise kind(f"there is no device {name!r} here; there are: {there}.")


def cuda_cards() -> list[DeviceChoice]:
    """CUDA devices that are visible (CUDA_VISIBLE_DEVICES) and have a profile; empty without a driver."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    cards = []
    for index, handle in enumerate(visible_cards(pynvml)):
        try:
            profile = match_profile(str(pynvml.nvmlDeviceGetName(handle)))
        except DataError:
            continue
        cards.append(DeviceChoice(f"cuda:{index}", str(pynvml.nvmlDeviceGetUUID(handle)), profile))
    return cards


class DeviceLock:
    """One holder per device across processes. The kernel drops it when the holder ends, however it ends."""

    def __init__(self, uuid: str) -> None:
        folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
        self._path = folder / f"hgemm-{uuid}.lock"
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Take it.

        Raises:
            InfraError: another process holds it, or the lock file cannot be opened.
        """
        try:
            file = os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666), "r+", encoding="utf-8")
        except OSError as error:
            raise InfraError(
                f"{self._path} cannot be opened ({error.strerror}); set XDG_RUNTIME_DIR to a writable place."
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = file.read().strip() or "unknown"
            file.close()
            raise InfraError(
                f"the device is in use by process {holder}; wait for it to end, or choose another --device."
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        self._file = file

    def release(self) -> None:
        """Give it back."""
        if self._file is not None:
            self._file.close()
            self._file = None


def why_not_rankable(info: DeviceInfo) -> str:
    """Why results of this device cannot be ranked; empty when they can."""
    if info.profile == "cpu":
        return "a CPU only exercises the pipeline"
    return info.conditions.get("not_rankable", "")
