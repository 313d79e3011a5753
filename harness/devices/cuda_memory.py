"""Memory of a card that two processes share: the parent owns it, the untrusted worker maps it."""

from __future__ import annotations

import ctypes
from typing import Any

from harness.devices import MachineFault
from harness.devices.cuda_launch import check
from harness.record import Reason

HANDLE_BYTES = 64
"""Size of CUDA's handle of memory between processes."""


class OwnedMemory:
    """Device memory of this process that another one may map. It is no memory of PyTorch's allocator, which shares blocks."""

    def __init__(self, size_bytes: int) -> None:
        from cuda.bindings import runtime

        self._runtime = runtime
        code, address = runtime.cudaMalloc(size_bytes)
        if code == runtime.cudaError_t.cudaErrorMemoryAllocation:
            detail = f"{size_bytes >> 20} MiB of device memory are not free"
            raise MachineFault(Reason.OUT_OF_MEMORY, detail, fatal=False)
        check((code, address))
        self._address = int(address)
        self.size_bytes = size_bytes
        self.tensor = _tensor(self._address, size_bytes)
        handle = check(runtime.cudaIpcGetMemHandle(self._address))
        self.handle = ctypes.string_at(int(handle.getPtr()), HANDLE_BYTES)

    def free(self) -> None:
        """Free it, once; nobody may have it mapped."""
        if self.size_bytes:
            self.size_bytes = 0
            check(self._runtime.cudaFree(self._address))


class MappedMemory:
    """Memory of another process, a piece at a time."""

    def __init__(self) -> None:
        self._address = 0

    def replace(self, handle: bytes, size_bytes: int) -> Any:
        """Let go of the piece that is mapped and map another; the empty handle maps none.

        Returns:
            uint8, one dimension.

        Raises:
            MachineFault: the driver does not allow it.
        """
        from cuda.bindings import runtime

        if self._address:
            check(runtime.cudaIpcCloseMemHandle(self._address))
            self._address = 0
        if not handle:
            return _tensor(0, 0)
        opened = runtime.cudaIpcMemHandle_t()
        ctypes.memmove(int(opened.getPtr()), handle, HANDLE_BYTES)
        code, address = runtime.cudaIpcOpenMemHandle(opened, runtime.cudaIpcMemLazyEnablePeerAccess)
        if int(code) != 0:
            detail = f"the worker cannot map memory of its parent: {code.name}"
            raise MachineFault(Reason.DEVICE_ERROR, detail, fatal=True)
        self._address = int(address)
        return _tensor(self._address, size_bytes)


class _Piece:
    """What PyTorch needs to look at memory that is not its own."""

    def __init__(self, address: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


def _tensor(address: int, size_bytes: int) -> Any:
    import torch

    if size_bytes == 0:
        return torch.empty(0, dtype=torch.uint8, device="cuda")
    return torch.as_tensor(_Piece(address, size_bytes), device="cuda")
