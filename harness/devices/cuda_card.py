"""A card as the parent of an untrusted worker uses it: memory, the hash of inputs, readings; no contender runs here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.devices.cuda import open_context
from harness.devices.cuda_kernels import Kernels
from harness.devices.cuda_launch import check
from harness.devices.cuda_memory import OwnedMemory
from harness.devices.cuda_native import LEVELS
from harness.telemetry import Conditions, Telemetry

if TYPE_CHECKING:
    import torch


class CudaCard:
    """One card; everything goes onto PyTorch's current stream."""

    def __init__(self, index: int) -> None:
        # Before this process has a context, so that it does not take itself for a stranger.
        self._telemetry = Telemetry(index)
        self.conditions = self._telemetry.settings()
        self.levels = LEVELS
        cuda = open_context(index, self._telemetry).cuda
        self.device = f"cuda:{index}"
        self._kernels = Kernels(cuda.current_stream().cuda_stream, cuda.get_device_properties(index).multi_processor_count)

    def allocate(self, size_bytes: int) -> OwnedMemory:
        """Memory that another process can map."""
        return OwnedMemory(size_bytes)

    def wait(self) -> None:
        """Until everything that this process put on the card is done."""
        from cuda.bindings import runtime

        check(runtime.cudaDeviceSynchronize())

    def digest(self, tensors: tuple[torch.Tensor, ...], key: int) -> int:
        """Keyed hash of the bits of some fp16 tensors."""
        return self._kernels.digest(tensors, key)

    def holds(self, words: tuple[torch.Tensor, ...], bits: int) -> bool:
        """Whether all words of these int16 views [rows, columns] have these bits."""
        return self._kernels.holds(words, bits)

    def read(self) -> Conditions:
        """Clock, power, temperature and throttle reasons right now."""
        return self._telemetry.read()
