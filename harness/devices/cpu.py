"""The CPU device: the pipeline for real on a machine without a GPU, one pinned thread for every contender.

Its contenders run in an untrusted worker. The parent keeps this object: it owns the memory (shared with the worker),
fills inputs, checks outputs, and holds every reported time against its own clock.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import platform
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING

from harness.channel import WorkerProcess
from harness.devices import MachineFault, holds
from harness.devices.untrusted import UntrustedDevice
from harness.isolation import NAMESPACES, described
from harness.messages import Open
from harness.profiles import load_profile
from harness.record import Reason
from harness.run import DeviceInfo

if TYPE_CHECKING:
    import torch

ARENA_BYTES = 4 << 30
"""Address space of the shared memory; pages exist only once they are touched."""


class CpuDevice(UntrustedDevice):
    """The parent's side of the CPU device."""

    def __init__(self) -> None:
        import torch

        self.profile = load_profile("cpu")
        # Idle threads of a thread pool spin, and would take the processor from the worker that is being timed.
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        self._descriptor = os.memfd_create("hgemm-arena")
        os.ftruncate(self._descriptor, ARENA_BYTES)
        self._mapping = mmap.mmap(self._descriptor, ARENA_BYTES)
        self.worker = WorkerProcess((str(self._descriptor),), pass_fds=(self._descriptor,), namespaces=NAMESPACES)
        self.deadline = time.monotonic() + 120
        self._salt = secrets.token_bytes(16)
        try:
            info = self._call(Open(device="cpu", native=True), DeviceInfo)
        except BaseException:
            self.kill()
            raise
        self.info = info.model_copy(update={"conditions": {**info.conditions, "isolation": described(NAMESPACES)}})

    def memory(self, size_bytes: int) -> torch.Tensor:
        """The shared memory, zeroed afresh.

        Raises:
            MachineFault: it is not enough.
        """
        import torch

        if size_bytes > ARENA_BYTES:
            detail = f"the shape needs {size_bytes >> 20} MiB of buffers; the CPU device has {ARENA_BYTES >> 20}"
            raise MachineFault(Reason.OUT_OF_MEMORY, detail, fatal=False)
        self._mapping.madvise(mmap.MADV_REMOVE)
        return torch.frombuffer(self._mapping, dtype=torch.uint8)

    def digest(self, tensors: tuple[torch.Tensor, ...]) -> int:
        """Keyed BLAKE2b of the bits."""
        import torch

        state = hashlib.blake2b(digest_size=8, key=self._salt)
        for tensor in tensors:
            state.update(tensor.contiguous().view(torch.int16).numpy().tobytes())
        return int.from_bytes(state.digest(), "little")

    def holds(self, words: tuple[torch.Tensor, ...], bits: int) -> bool:
        """Whether all words have these bits."""
        return holds(words, bits)

    def _release(self) -> None:
        import torch

        os.close(self._descriptor)
        torch.set_num_threads(self._threads)


def host_uuid() -> str:
    """An identifier of this host for locks and segments: a hash of its machine id and processor."""
    try:
        identity = Path("/etc/machine-id").read_text(encoding="utf-8").strip()
    except OSError:
        identity = platform.node()
    return "CPU-" + hashlib.sha256(f"hgemm {identity}".encode()).hexdigest()[:32]
