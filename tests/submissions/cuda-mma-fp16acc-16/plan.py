"""The kernel of cuda-mma in one tile, with fp16 accumulators: fast, and to be rejected."""

from __future__ import annotations

import math

from harness.plan import Kernel, Launch, Layout, Plan, Pointer, Scalar
from harness.problem import Problem
from harness.profiles import DeviceProfile

PROMOTE_EVERY = 16
TILE, STAGES, THREADS = 64, 4, 128
FIXED = {"BLOCK_M": TILE, "BLOCK_N": TILE, "BLOCK_K": TILE, "WARPS_M": 2, "WARPS_N": 2, "WARPS_K": 1, "STAGES": STAGES}


def plan(problem: Problem, device: DeviceProfile) -> Plan:
    """The plan for one shape; it is the same on every device."""
    del device
    along_k, along_n = _alignment(problem.k), _alignment(problem.n)
    vectors = {"A_VECTOR": along_k, "B_VECTOR": max(along_k, along_n)}
    transposed = along_n < along_k
    values = {**FIXED, **vectors, "CTAS_PER_SM": 2, "B_TRANSPOSED": int(transposed), "PROMOTE_EVERY": PROMOTE_EVERY}
    defines = {name: str(value) for name, value in values.items()}
    name = f"hgemm-{'tn' if transposed else 'nn'}-a{vectors['A_VECTOR']}-b{vectors['B_VECTOR']}"
    buffers = (Pointer(buffer="A"), Pointer(buffer="B"), Pointer(buffer="C"), Scalar(dtype="u64", value=0))
    k_padded = math.ceil(problem.k / TILE) * TILE
    sizes = (problem.m, problem.n, problem.k, k_padded, min(8, math.ceil(problem.m / TILE)))
    launch = Launch(
        kernel=name,
        grid=(math.ceil(problem.m / TILE) * math.ceil(problem.n / TILE), 1, 1),
        block=(THREADS, 1, 1),
        dynamic_shared_bytes=STAGES * 2 * TILE * TILE * 2,
        arguments=(*buffers, *(Scalar(dtype="i32", value=size) for size in sizes)),
    )
    kernel = Kernel(language="cuda", source="kernels/hgemm.cu", entry="hgemm", defines=defines)
    return Plan(layout=Layout.TN if transposed else Layout.NN, steps=(launch,), kernels={name: kernel})


def _alignment(extent: int) -> int:
    return next(vector for vector in (8, 2, 1) if extent % vector == 0)
