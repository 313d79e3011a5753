"""torch.matmul: what a PyTorch user gets; on a CPU also the same product computed through fp32."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from harness.devices import BufferSet, OperationInfo
from harness.plan import Layout
from harness.problem import Problem, Track

NAME = "torch_matmul"
NAME_FP32 = "torch_matmul_fp32"


class Candidate(NamedTuple):
    """An operation and the function that enqueues it."""

    info: OperationInfo
    enqueue: Callable[[BufferSet], object]


class TorchMatmul:
    """`torch.matmul` on a CUDA device, told to accumulate as the track says."""

    def candidates(self, problem: Problem) -> tuple[Candidate, ...]:
        """Both layouts of B."""
        import torch

        settings = torch.backends.cuda.matmul
        settings.allow_fp16_reduced_precision_reduction = problem.track is Track.F16
        settings.allow_fp16_accumulation = problem.track is Track.F16
        return matmul_candidates()


def matmul_candidates() -> tuple[Candidate, ...]:
    """`torch.matmul(a, b, out=c)` in fp16, with B in either layout."""
    return tuple(
        Candidate(
            OperationInfo(key=f"{NAME}/{layout}", contender=NAME, layout=layout, description=f"torch.matmul, B {layout}"),
            _matmul,
        )
        for layout in Layout
    )


def cpu_candidates(names: tuple[str, ...]) -> tuple[Candidate, ...]:
    """Candidates of the CPU baselines of those names: fp16, and through fp32 since torch's fp16 path on CPUs is slow."""
    found: list[Candidate] = []
    if NAME in names:
        found += matmul_candidates()
    if NAME_FP32 in names:
        found += [
            Candidate(
                OperationInfo(
                    key=f"{NAME_FP32}/{layout}",
                    contender=NAME_FP32,
                    layout=layout,
                    description=f"torch.matmul on A and B converted to fp32, rounded to fp16, B {layout}",
                ),
                _matmul_fp32,
            )
            for layout in Layout
        ]
    return tuple(found)


def _matmul(buffers: BufferSet) -> None:
    import torch

    torch.matmul(buffers.a, buffers.b, out=buffers.c)


def _matmul_fp32(buffers: BufferSet) -> None:
    buffers.c.copy_(buffers.a.float() @ buffers.b.float())
