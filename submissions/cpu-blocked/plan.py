from harness.plan import Call, Kernel, Language, Layout, Plan
from harness.problem import Problem
from harness.profiles import DeviceProfile

PANEL = 32
KERNEL = Kernel(language=Language.C, source="kernels/hgemm.c", entry="hgemm", defines={"PANEL": str(PANEL)})


def plan(problem: Problem, device: DeviceProfile) -> Plan:
    panel_bytes = 4 * problem.k * PANEL
    return Plan(
        layout=Layout.NN,
        kernels={"hgemm": KERNEL},
        steps=(Call(kernel="hgemm"),),
        workspace_bytes=panel_bytes + 4 * 4 * problem.k,
    )
