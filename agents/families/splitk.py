"""One tile per CTA, or per several CTAs that have each a range of K."""

from __future__ import annotations

import math

from agents.config import KernelConfig, Split
from agents.families import common
from harness.plan import Launch, Plan, Pointer, Scalar, ScalarType
from harness.plan_arguments import Argument, Buffer
from harness.problem import Problem
from harness.profiles import DeviceProfile

TEMPLATE = "tiled.cu.j2"
ALIGNMENT_BYTES = 256


def threads(config: KernelConfig) -> int:
    """Threads of a CTA."""
    return 128 * config.warpgroups + 32


def counter_bytes(config: KernelConfig, problem: Problem) -> int:
    """Bytes of the tiles' counters, which are zero between operations."""
    if config.split is not Split.WORKSPACE:
        return 0
    return math.ceil(4 * config.tiles(problem) / ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def workspace_bytes(config: KernelConfig, problem: Problem) -> int:
    """Bytes of the workspace: the counters, then the sums of every tile and split."""
    if config.split not in (Split.WORKSPACE, Split.KERNEL):
        return 0
    return counter_bytes(config, problem) + 4 * config.bm * config.bn * config.tiles(problem) * config.splits


def plan(config: KernelConfig, problem: Problem, device: DeviceProfile) -> Plan:
    """One launch, and a second one where a kernel adds up."""
    source = common.render(TEMPLATE, config, even=problem.n % 2 == 0)
    zeroed = counter_bytes(config, problem)
    sums = Pointer(buffer=Buffer.WORKSPACE, offset_bytes=zeroed)
    more: dict[Split, tuple[Argument, ...]] = {
        Split.WORKSPACE: (sums, Pointer(buffer=Buffer.WORKSPACE)),
        Split.KERNEL: (sums,),
    }
    launch = common.one_tile_launch(config, problem, source.name, threads(config), *more.get(config.split, ()))
    kernels = {source.name: source.kernel()}
    steps = [launch]
    if config.split is Split.KERNEL:
        kernels[f"{source.name}-reduce"] = source.kernel("reduce")
        steps.append(_reduce(config, problem, f"{source.name}-reduce"))
    return Plan(
        layout=config.layout,
        steps=tuple(steps),
        kernels=kernels,
        workspace_bytes=workspace_bytes(config, problem),
        zeroed_bytes=zeroed,
    )


def _reduce(config: KernelConfig, problem: Problem, name: str) -> Launch:
    return Launch(
        kernel=name,
        grid=(config.tiles(problem), config.sums_per_thread // 4, 1),
        block=(128 * config.warpgroups, 1, 1),
        programmatic=True,
        arguments=(
            Pointer(buffer=Buffer.WORKSPACE),
            Pointer(buffer=Buffer.C),
            *common.sizes(config, problem),
            Scalar(dtype=ScalarType.I32, value=config.splits),
        ),
    )
