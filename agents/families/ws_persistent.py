"""Persistent, warp-specialised kernels: a loading warp, and warpgroups that share a tile or take turns."""

from __future__ import annotations

from agents.config import KernelConfig
from agents.families import common
from harness.plan import Launch, Plan
from harness.problem import Problem
from harness.profiles import DeviceProfile

TEMPLATE = "persistent.cu.j2"


def threads(config: KernelConfig) -> int:
    """Threads of a CTA."""
    return 128 * config.warpgroups + common.loaders(config)


def plan(config: KernelConfig, problem: Problem, device: DeviceProfile) -> Plan:
    """One launch of as many clusters as the device holds at once, or as there are tiles."""
    source = common.render(TEMPLATE, config, even=problem.n % 2 == 0)
    clusters = min(config.tiles(problem), device.sm_count * config.ctas_per_sm // config.cluster_ctas)
    launch = Launch(
        kernel=source.name,
        grid=(clusters * config.cluster_ctas, 1, 1),
        block=(threads(config), 1, 1),
        cluster=(config.cluster_ctas, 1, 1) if config.cluster_ctas > 1 else None,
        dynamic_shared_bytes=config.shared_bytes,
        arguments=common.arguments(config, problem),
    )
    return Plan(layout=config.layout, steps=(launch,), kernels={source.name: source.kernel()})
