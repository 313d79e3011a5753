"""One library for every shape; what it launches is decided in its hgemm_create."""

from __future__ import annotations

from harness.plan import Call, Kernel, Plan
from harness.problem import Problem
from harness.profiles import DeviceProfile

MAX_SPLITS = 8
"""Partial sums that the workspace has room for; kernels/hgemm.cu has the same number."""


def plan(problem: Problem, device: DeviceProfile) -> Plan:
    """The plan for one shape."""
    del device
    return Plan(
        layout="NN",
        steps=(Call(kernel="hgemm"),),
        kernels={"hgemm": Kernel(language="native", source="kernels/hgemm.cu", entry="hgemm_run")},
        workspace_bytes=4 * MAX_SPLITS * problem.m * problem.n if problem.m * problem.n <= 1 << 20 else 0,
    )
