"""cuBLASLt: the first suggestion of its heuristic, or the fastest of all that it suggests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from harness.baselines.gemm import Numbers, cublas_error, numbers_for
from harness.baselines.torch_matmul import Candidate
from harness.devices import BufferSet, OperationInfo
from harness.model import MissingDependencyError
from harness.plan import Layout
from harness.problem import Problem

HEURISTIC = "cublaslt_heuristic"
AUTOTUNED = "cublaslt_autotuned"
HEURISTIC_WORKSPACE_BYTES = 32 << 20
AUTOTUNED_WORKSPACE_LIMITS_BYTES = (0, 4 << 20, 32 << 20, 256 << 20)
"""Limits that suggestions are asked for at: a larger one admits more split-K, a smaller one changes the order."""
SUGGESTIONS = 100
"""Suggestions asked for at each limit; the library gives fewer."""


_DESCRIBED = (
    ("algo", "ID", np.int32),
    ("tile", "TILE_ID", np.uint32),
    ("stages", "STAGES_ID", np.uint32),
    ("split-K", "SPLITK_NUM", np.int32),
    ("cluster", "CLUSTER_SHAPE_ID", np.uint16),
)
"""What of an algorithm's configuration its description names, with the types that the library stores it in."""


class CublasLt:
    """A handle, a workspace, and the suggestions for one problem after another."""

    def __init__(self, stream: int, autotuned: bool) -> None:
        import torch

        try:
            from nvmath.bindings import cublasLt
        except ImportError as error:
            raise MissingDependencyError("nvmath-python", "gpu", "the cuBLASLt baselines") from error
        self._lt: Any = cublasLt
        self._handle = cublasLt.create()
        self._stream = stream
        self._autotuned = autotuned
        self._limits = AUTOTUNED_WORKSPACE_LIMITS_BYTES if autotuned else (HEURISTIC_WORKSPACE_BYTES,)
        self._workspace = torch.empty(max(self._limits), dtype=torch.uint8, device="cuda")
        self._products: list[_Product] = []
        self._problem: Problem | None = None
        self._candidates: tuple[Candidate, ...] = ()
        self.version = cublasLt.get_version()

    def candidates(self, problem: Problem) -> tuple[Candidate, ...]:
        """The first suggestion for each layout of B, or every distinct one over all workspace limits.

        They live until another problem is asked for.
        """
        if problem == self._problem:
            return self._candidates
        for product in self._products:
            product.destroy()
        self._products = [_Product(self._lt, problem, layout) for layout in Layout]
        found: list[Candidate] = []
        for product in self._products:
            suggestions = self._suggestions(product)
            found += [
                Candidate(self._info(product, suggestion), self._enqueue(product, suggestion))
                for suggestion in (suggestions if self._autotuned else suggestions[:1])
            ]
        self._problem, self._candidates = problem, tuple(found)
        return self._candidates

    def _suggestions(self, product: _Product) -> list[_Suggestion]:
        distinct: dict[str, _Suggestion] = {}
        for limit in self._limits:
            for suggestion in product.ask(self._handle, limit, SUGGESTIONS if self._autotuned else 1):
                distinct.setdefault(suggestion.digest, suggestion)
        return list(distinct.values())

    def _info(self, product: _Product, suggestion: _Suggestion) -> OperationInfo:
        name = AUTOTUNED if self._autotuned else HEURISTIC
        return OperationInfo(
            key=f"{name}/{product.layout}/{suggestion.digest}",
            contender=name,
            layout=product.layout,
            description=(
                f"{self._describe(suggestion)}, compute {product.numbers.name}, workspace {suggestion.workspace_bytes} of "
                f"{suggestion.limit_bytes >> 20} MiB, suggestion {suggestion.rank}, B {product.layout}"
            ),
            workspace_limit_bytes=max(self._limits),
        )

    def _enqueue(self, product: _Product, suggestion: _Suggestion) -> Callable[[BufferSet], None]:
        lt, handle, stream, numbers = self._lt, self._handle, self._stream, product.numbers
        workspace, address = self._workspace.data_ptr(), suggestion.algorithm.ctypes.data

        def enqueue(buffers: BufferSet) -> None:
            # Row-major C = A·B is column-major Cᵀ = Bᵀ·Aᵀ, so B comes first.
            a, b, c = buffers.a.data_ptr(), buffers.b.data_ptr(), buffers.c.data_ptr()
            with cublas_error(f"cuBLASLt {suggestion.digest}"):
                lt.matmul(
                    handle, product.operation, numbers.one, b, product.b, a, product.a, numbers.zero, c, product.c,
                    c, product.c, address, workspace, suggestion.limit_bytes, stream,
                )  # fmt: skip

        return enqueue

    def _describe(self, suggestion: _Suggestion) -> str:
        """Algorithm id, tile, stages, split-K and cluster, as far as the library tells."""
        attributes = self._lt.MatmulAlgoConfigAttribute
        parts = []
        for label, attribute, dtype in _DESCRIBED:
            value, written = np.zeros(1, dtype=dtype), np.zeros(1, dtype=np.uint64)
            with cublas_error(f"reading {attribute}"):
                self._lt.matmul_algo_config_get_attribute(
                    suggestion.algorithm.ctypes.data,
                    getattr(attributes, attribute),
                    value.ctypes.data,
                    value.nbytes,
                    written.ctypes.data,
                )
            parts.append(f"{label} {int(value[0])}")
        return " ".join(parts)


class _Suggestion(NamedTuple):
    """One algorithm that the library suggests."""

    digest: str
    algorithm: Any
    """The 64 bytes of cublasLtMatmulAlgo_t."""
    workspace_bytes: int
    limit_bytes: int
    rank: int


class _Product:
    """Descriptors of one problem in one layout."""

    def __init__(self, lt: Any, problem: Problem, layout: Layout) -> None:
        self._lt = lt
        self.layout = layout
        self.numbers: Numbers = numbers_for(problem.track)
        m, n, k, half = problem.m, problem.n, problem.k, self.numbers.half
        transposed = layout is Layout.TN
        self.operation = lt.matmul_desc_create(self.numbers.compute_type, self.numbers.scale_type)
        flag = np.array([int(transposed)], dtype=np.int32)
        lt.matmul_desc_set_attribute(self.operation, lt.MatmulDescAttribute.TRANSA, flag.ctypes.data, flag.nbytes)
        rows, columns = (k, n) if transposed else (n, k)
        self.b = lt.matrix_layout_create(half, rows, columns, rows)
        self.a = lt.matrix_layout_create(half, k, m, k)
        self.c = lt.matrix_layout_create(half, n, m, n)

    def ask(self, handle: int, limit_bytes: int, count: int) -> list[_Suggestion]:
        """Suggestions at a workspace limit, best first by the library's own estimate; those it marks as failed are left out."""
        lt = self._lt
        preference = lt.matmul_preference_create()
        limit = np.array([limit_bytes], dtype=np.uint64)
        attribute = lt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES
        results = lt.MatmulHeuristicResult(count)
        returned = np.zeros(1, dtype=np.int32)
        try:
            lt.matmul_preference_set_attribute(preference, attribute, limit.ctypes.data, limit.nbytes)
            with cublas_error("cuBLASLt's heuristic"):
                lt.matmul_algo_get_heuristic(
                    handle, self.operation, self.b, self.a, self.c, self.c, preference, count, results.ptr, returned.ctypes.data
                )
        finally:
            lt.matmul_preference_destroy(preference)
        size = lt.matmul_heuristic_result_dtype.itemsize
        raw = _bytes_at(results.ptr, size * int(returned[0]))
        found = []
        for rank in range(int(returned[0])):
            item = raw[rank * size : (rank + 1) * size]
            algorithm = np.frombuffer(item[:64], dtype=np.uint64).copy()
            workspace_bytes = int.from_bytes(item[64:72], "little")
            state = int.from_bytes(item[72:76], "little")
            if state == 0:
                digest = hashlib.sha256(item[:64]).hexdigest()[:12]
                found.append(_Suggestion(digest, algorithm, workspace_bytes, limit_bytes, rank))
        return found

    def destroy(self) -> None:
        """Free the descriptors."""
        self._lt.matmul_desc_destroy(self.operation)
        for layout in (self.a, self.b, self.c):
            self._lt.matrix_layout_destroy(layout)


def _bytes_at(address: int, size: int) -> bytes:
    import ctypes

    return ctypes.string_at(address, size)
