"""cuBLAS: `cublasGemmEx` with the library's own choice of algorithm."""

from __future__ import annotations

from typing import Any

from harness.baselines.gemm import Numbers, cublas_error, numbers_for
from harness.baselines.torch_matmul import Candidate
from harness.devices import BufferSet, OperationInfo
from harness.model import MissingDependencyError
from harness.plan import Layout
from harness.problem import Problem

NAME = "cublas"
WORKSPACE_BYTES = 32 << 20
"""What NVIDIA recommends for Hopper; less would cripple the baseline."""


class Cublas:
    """A handle on one stream with a workspace of its own."""

    def __init__(self, stream: int) -> None:
        import torch

        try:
            from nvmath.bindings import cublas
        except ImportError as error:
            raise MissingDependencyError("nvmath-python", "gpu", "the cuBLAS baseline") from error
        self._cublas: Any = cublas
        self._handle = cublas.create()
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        cublas.set_stream(self._handle, stream)
        cublas.set_workspace(self._handle, self._workspace.data_ptr(), WORKSPACE_BYTES)
        self.version = cublas.get_version(self._handle)

    def candidates(self, problem: Problem) -> tuple[Candidate, ...]:
        """Both layouts of B."""
        numbers = numbers_for(problem.track)
        return tuple(
            Candidate(
                OperationInfo(
                    key=f"{NAME}/{layout}",
                    contender=NAME,
                    layout=layout,
                    description=f"gemm_ex, compute {numbers.name}, workspace {WORKSPACE_BYTES >> 20} MiB, B {layout}",
                    workspace_limit_bytes=WORKSPACE_BYTES,
                ),
                self._enqueue(problem, layout, numbers),
            )
            for layout in Layout
        )

    def _enqueue(self, problem: Problem, layout: Layout, numbers: Numbers) -> Any:
        m, n, k = problem.m, problem.n, problem.k
        transposed = layout is Layout.TN
        cublas, handle = self._cublas, self._handle

        def enqueue(buffers: BufferSet) -> None:
            # Row-major C = A·B is column-major Cᵀ = Bᵀ·Aᵀ.
            a, b, c = buffers.a.data_ptr(), buffers.b.data_ptr(), buffers.c.data_ptr()
            with cublas_error(f"{NAME}/{layout}"):
                cublas.gemm_ex(
                    handle, int(transposed), 0, n, m, k, numbers.one, b, numbers.half, k if transposed else n,
                    a, numbers.half, k, numbers.zero, c, numbers.half, n, numbers.compute_type, -1,
                )  # fmt: skip

        return enqueue
