import math

from harness.plan import Kernel, Launch, Plan, Pointer, Scalar

A, B, C, WORKSPACE = (Pointer(buffer=name) for name in ("A", "B", "C", "workspace"))


def sizes(problem):
    return tuple(Scalar(dtype="i32", value=value) for value in (problem.m, problem.n, problem.k))


def plan(problem, device):
    kernels = {
        name: Kernel(language="cuda", source="kernels/gemm.cu", entry=name, defines={"WAITS": "1"})
        for name in ("partial", "reduce")
    }
    grid = (math.ceil(problem.n / 16), math.ceil(problem.m / 16), 4)
    arguments = (A, B, C, WORKSPACE, *sizes(problem))
    steps = (
        Launch(kernel="partial", grid=grid, block=(16, 16, 1), arguments=arguments),
        Launch(kernel="reduce", grid=(*grid[:2], 1), block=(16, 16, 1), arguments=arguments, programmatic=True),
    )
    return Plan(layout="NN", kernels=kernels, steps=steps, workspace_bytes=16 * problem.m * problem.n)
