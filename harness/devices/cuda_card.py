"""A card as the parent of an untrusted worker uses it: memory, the hash of inputs, readings; no contender runs here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.devices.cuda import import_torch
from harness.devices.cuda_kernels import Kernels
from harness.devices.cuda_launch import check
from harness.devices.cuda_memory import OwnedMemory
from harness.devices.cuda_native import LEVELS
from harness.model import InfraError
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
        torch = import_torch()
        if not torch.cuda.is_available() or index >= torch.cuda.device_count():
            raise InfraError(f"PyTorch sees no CUDA device {index}; check the driver and that torch is a CUDA build.")
        torch.cuda.set_device(index)
        torch.cuda.init()
        self.device = f"cuda:{index}"
        stream = torch.cuda.Stream()
        torch.cuda.set_stream(stream)
        self._kernels = Kernels(stream.cuda_stream, torch.cuda.get_device_properties(index).multi_processor_count)

    def allocate(self, size_bytes: int) -> OwnedMemory:
        """Memory that another process can map."""
        return OwnedMemory(size_bytes)

    def wait(self) -> None:
        """Until everything that this process put on the card is done."""
        from cuda.bindings import runtime

        check(runtime.cudaDeviceSynchronize())

    def digest(self, tensors: tuple[torch.Tensor, ...], key: int) -> int:
        """Keyed hash of the bits of some fp16 tensors."""
        return self._kernels.digest([tensor if tensor.stride(2) == 1 else tensor.transpose(1, 2) for tensor in tensors], key)

    def holds(self, words: tuple[torch.Tensor, ...], bits: int) -> bool:
        """Whether all words of these int16 views [rows, columns] have these bits."""
        return self._kernels.holds(words, bits)

    def read(self) -> Conditions:
        """Clock, power, temperature and throttle reasons right now."""
        return self._telemetry.read()
