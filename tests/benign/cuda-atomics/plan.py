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
    size = 4 * problem.m * problem.n
    clear = Memset(buffer="workspace", size_bytes=size)
    kernels = {"gemm": kernel, "round": kernel.model_copy(update={"entry": "rounded"})}
    last = launch.model_copy(update={"kernel": "round", "grid": (*launch.grid[:2], 1)})
    return Plan(layout="NN", kernels=kernels, steps=(clear, launch, last), workspace_bytes=size, deterministic=False)
