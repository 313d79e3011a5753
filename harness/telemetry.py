"""Telemetry: what NVML says of a card before, while and after it measures. It changes no setting."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from harness.model import Count, MissingDependencyError, Model


class Conditions(Model):
    """Readings of one moment."""

    sm_clock_mhz: Count
    """Clock of the multiprocessors."""
    memory_clock_mhz: Count
    """Clock of the memory."""
    power_mw: Count
    """Power draw in milliwatts."""
    temperature_c: Count
    """Temperature of the GPU in degrees Celsius."""
    throttle_reasons: str
    """NVML's bit mask of what holds the clock down, in hex; 0x0 for nothing, 0x4 for the power limit."""


class Telemetry:
    """One card, by NVML."""

    def __init__(self, index: int) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise MissingDependencyError("nvidia-ml-py", "gpu", "measuring on a CUDA device") from error
        self._nvml: Any = pynvml
        pynvml.nvmlInit()
        self._handle = visible_cards(pynvml)[index]
        self.uuid = str(pynvml.nvmlDeviceGetUUID(self._handle))
        self.driver = str(pynvml.nvmlSystemGetDriverVersion())
        # Read before this process has a context of its own, so that whoever is seen here is a stranger.
        self._strangers = len(pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle))

    def read(self) -> Conditions:
        """Read now."""
        nvml, handle = self._nvml, self._handle
        return Conditions(
            sm_clock_mhz=int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            memory_clock_mhz=int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            power_mw=int(nvml.nvmlDeviceGetPowerUsage(handle)),
            temperature_c=int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            throttle_reasons=hex(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        )

    def settings(self) -> dict[str, str]:
        """Limits and modes at worker start, and why this card cannot rank (`not_rankable`) where that is so."""
        nvml, handle = self._nvml, self._handle
        queries: dict[str, Callable[[], Any]] = {
            "max_sm_clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
            "max_memory_clock_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "power_limit_mw": lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle),
            "persistence_mode": lambda: nvml.nvmlDeviceGetPersistenceMode(handle),
            "compute_mode": lambda: nvml.nvmlDeviceGetComputeMode(handle),
            "ecc": lambda: nvml.nvmlDeviceGetEccMode(handle)[0],
            "mig": lambda: nvml.nvmlDeviceGetMigMode(handle)[0],
            "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        }
        found = {"foreign_processes": str(self._strangers)}
        for name, query in queries.items():
            try:
                found[name] = str(query())
            except nvml.NVMLError as error:
                found[name] = f"not available ({error})"
        reasons = []
        if self._strangers:
            reasons.append(f"{self._strangers} other processes use the card")
        if found["mig"] == "1":
            reasons.append("the card is partitioned (MIG)")
        if reasons:
            found["not_rankable"] = "; ".join(reasons)
        return found


def visible_cards(nvml: Any) -> list[Any]:
    """NVML's handles in CUDA's order, so that the n-th is `cuda:n`: NVML itself knows nothing of CUDA_VISIBLE_DEVICES.

    Numbers count in the order of the bus, as they do for CUDA once a context is opened (harness/devices/cuda.py). As for CUDA,
    what follows a name that fits no card is not visible.
    """
    cards = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return cards
    found: list[Any] = []
    for name in map(str.strip, wanted.split(",")):
        fitting = [
            card
            for index, card in enumerate(cards)
            if name == str(index) or (name.startswith("GPU-") and str(nvml.nvmlDeviceGetUUID(card)).startswith(name))
        ]
        if len(fitting) != 1:
            break
        found += fitting
    return found
