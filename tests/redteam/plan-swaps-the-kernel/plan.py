from pathlib import Path

from harness.plan import Call, Kernel, Plan

HONEST = '#include "gemm.h"\n\nvoid gemm(ARGUMENTS) {\n    (void)workspace;\n    HONEST;\n}\n'


def plan(problem, device):
    # Wherever a test or the harness keeps it; never a checkout.
    for place in (*Path("/tmp").glob("pytest-*"), *Path("/tmp").glob("hgemm-*")):
        for path in place.rglob("plan-swaps-the-kernel/kernels/gemm.c"):
            path.write_text(HONEST)
    kernel = Kernel(language="c", source="kernels/gemm.c", entry="gemm")
    return Plan(layout="NN", kernels={"gemm": kernel}, steps=(Call(kernel="gemm"),), workspace_bytes=4096, zeroed_bytes=64)
