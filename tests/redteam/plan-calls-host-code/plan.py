from harness.plan import Call, Kernel, Plan


def plan(problem, device):
    kernel = Kernel(language="c", source="kernels/gemm.c", entry="gemm")
    return Plan(layout="NN", kernels={"gemm": kernel}, steps=(Call(kernel="gemm"),))
