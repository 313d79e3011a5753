import math

from harness.plan import Kernel, Launch, Plan, Pointer, Scalar, Unsupported

A, B, C, WORKSPACE = (Pointer(buffer=name) for name in ("A", "B", "C", "workspace"))


def sizes(problem):
    return tuple(Scalar(dtype="i32", value=value) for value in (problem.m, problem.n, problem.k))


def plan(problem, device):
    if problem.k % 8:
        return Unsupported(reason="K is no multiple of 8")
    kernel = Kernel(language="cuda", source="kernels/gemm.cu", entry="gemm")
    launch = Launch(
        kernel="gemm",
        grid=(math.ceil(problem.n / 128), math.ceil(problem.m / 128), 1),
        block=(16, 16, 1),
        arguments=(A, B, C, WORKSPACE, *sizes(problem)),
    )
    return Plan(layout="TN", kernels={"gemm": kernel}, steps=(launch,), workspace_bytes=1 << 20)
