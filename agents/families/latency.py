"""One tile per CTA and no loading warp: the shortest prologue."""

from __future__ import annotations

from agents.config import KernelConfig
from agents.families import common
from harness.plan import Plan
from harness.problem import Problem
from harness.profiles import DeviceProfile

TEMPLATE = "latency.cu.j2"


def threads(config: KernelConfig) -> int:
    """Threads of a CTA."""
    return 128 * config.warpgroups


def plan(config: KernelConfig, problem: Problem, device: DeviceProfile) -> Plan:
    """One launch."""
    source = common.render(TEMPLATE, config, even=problem.n % 2 == 0)
    launch = common.one_tile_launch(config, problem, source.name, threads(config))
    return Plan(layout=config.layout, steps=(launch,), kernels={source.name: source.kernel()})
