from harness.plan import Call, Kernel, Language, Layout, Plan
from harness.problem import Problem
from harness.profiles import DeviceProfile

KERNEL = Kernel(language=Language.C, source="kernels/hgemm.c", entry="hgemm")


def plan(problem: Problem, device: DeviceProfile) -> Plan:
    return Plan(layout=Layout.TN, kernels={"hgemm": KERNEL}, steps=(Call(kernel="hgemm"),))
