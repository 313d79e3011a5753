"""One CTA of 256 threads per 64x64 tile of C, whatever the shape."""

from __future__ import annotations

import math

from harness.plan import Kernel, Launch, Plan, Pointer, Scalar
from harness.problem import Problem
from harness.profiles import DeviceProfile

TILE = 64
THREADS = 256


def plan(problem: Problem, device: DeviceProfile) -> Plan:
    """The plan for one shape; it is the same on every device."""
    del device
    buffers = (Pointer(buffer="A"), Pointer(buffer="B"), Pointer(buffer="C"))
    sizes = tuple(Scalar(dtype="i32", value=extent) for extent in (problem.m, problem.n, problem.k))
    launch = Launch(
        kernel="hgemm",
        grid=(math.ceil(problem.m / TILE) * math.ceil(problem.n / TILE), 1, 1),
        block=(THREADS, 1, 1),
        arguments=buffers + sizes,
    )
    return Plan(
        layout="NN",
        steps=(launch,),
        kernels={"hgemm": Kernel(language="cuda", source="kernels/hgemm.cu", entry="hgemm")},
    )
