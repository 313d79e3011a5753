from harness.plan import Call, Kernel, Plan


def plan(problem, device):
    kernel = Kernel(language="native", source="kernels/gemm.cu", entry="hgemm_run")
    return Plan(layout="NN", kernels={"gemm": kernel}, steps=(Call(kernel="gemm"),), workspace_bytes=1 << 20)
