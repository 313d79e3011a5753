"""How the harness's own kernels are compiled by CuPy, once per machine, and launched on a stream of PyTorch's."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple


class _Handle(NamedTuple):
    handle: int

    def __cuda_stream__(self) -> tuple[int, int]:
        """Version 0 of the protocol by which libraries pass streams to one another."""
        return 0, self.handle


def stream_of(handle: int) -> Any:
    """A cudaStream_t of somebody else as a stream of CuPy, a context manager that makes it current."""
    import cupy

    return cupy.cuda.Stream.from_external(_Handle(handle))


def launch(source: str, name: str, grid: tuple[int, int], block: int, arguments: tuple[Any, ...]) -> None:
    """Put a kernel of this source on PyTorch's current stream."""
    import torch

    with stream_of(torch.cuda.current_stream().cuda_stream):
        _kernel(source, name)(grid, (block,), arguments)


@cache
def _kernel(source: str, name: str) -> Any:
    import cupy

    return cupy.RawModule(code=source).get_function(name)
