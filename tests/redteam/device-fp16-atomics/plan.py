import math

from harness.plan import Kernel, Launch, Memset, Plan, Pointer, Scalar

A, B, C, WORKSPACE = (Pointer(buffer=name) for name in ("A", "B", "C", "workspace"))


def sizes(problem):
    return tuple(Scalar(dtype="i32", value=value) for value in (problem.m, problem.n, problem.k))


def plan(problem, device):
    kernel = Kernel(language="cuda", source="kernels/gemm.cu", entry="gemm")
    launch = Launch(
        kernel="gemm",
        grid=(math.ceil(problem.n / 16), math.ceil(problem.m / 16), 4),
        block=(16, 16, 1),
        arguments=(A, B, C, WORKSPACE, *sizes(problem)),
    )
    fill = Memset(buffer="C", size_bytes=problem.c_bytes)
    return Plan(
        layout="NN",
        kernels={"gemm": kernel},
        deterministic=False,
        steps=(fill, launch),
        workspace_bytes=1 << 20,
        zeroed_bytes=512,
    )
