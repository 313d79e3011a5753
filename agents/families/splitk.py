"""One tile per CTA, or per several CTAs that have each a range of K."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from agents.config import Family, KernelConfig, Split, Store
from agents.families import common
from agents.families.common import SIDES
from harness.plan import Launch, Plan, Pointer
from harness.plan_arguments import Argument, Buffer
from harness.problem import Problem
from harness.profiles import DeviceProfile

TEMPLATE = "tiled.cu.j2"
REDUCE = "-reduce"
"""After the name of a kernel, that of the one which adds up."""


def counter_bytes(config: KernelConfig, problem: Problem) -> int:
    """Bytes of the tiles' counters, which are zero between operations."""
    return common.aligned(4 * config.tiles(problem)) if config.split in (Split.WORKSPACE, Split.ATOMIC) else 0


def sum_bytes(config: KernelConfig, problem: Problem) -> int:
    """Bytes of the sums of every tile, for every split or, where atomics add them, once."""
    if config.split not in (Split.WORKSPACE, Split.KERNEL, Split.ATOMIC):
        return 0
    each = 4 * config.bm * config.bn * config.tiles(problem)
    return each if config.split is Split.ATOMIC else each * config.splits


def zeroed_bytes(config: KernelConfig, problem: Problem) -> int:
    """Bytes of the workspace, from its start, that are zero between operations."""
    return counter_bytes(config, problem) + (sum_bytes(config, problem) if config.split is Split.ATOMIC else 0)


def workspace_bytes(config: KernelConfig, problem: Problem) -> int:
    """Bytes of the workspace: the counters, then the sums."""
    return counter_bytes(config, problem) + sum_bytes(config, problem)


TILES = ((1, 64, (32, 64, 128, 256)), (2, 128, (64, 128, 256)))
"""Warpgroups, rows of P, rows of Q."""
SHARES = (
    *((Split.CLUSTER, splits) for splits in (2, 3, 4, 6, 8)),
    *((split, splits) for split in (Split.WORKSPACE, Split.KERNEL) for splits in (2, 3, 4, 6, 8, 12, 16, 32)),
    *((Split.ATOMIC, splits) for splits in (4, 8, 16, 32, 64, 128)),
)


def configs() -> Iterator[KernelConfig]:
    """Every configuration of the family, legal or not."""
    tiles = [(warpgroups, bm, bn) for warpgroups, bm, widths in TILES for bn in widths]
    for (warpgroups, bm, bn), (layout, swapped), (split, splits), bk in product(tiles, SIDES, SHARES, (64, 128)):
        config = KernelConfig(
            family=Family.SPLITK,
            layout=layout,
            swapped=swapped,
            bm=bm,
            bn=bn,
            bk=bk,
            stages=1,
            warpgroups=warpgroups,
            split=split,
            splits=splits,
            store=Store.DIRECT,
        )
        yield common.deepest(config)


def plan(config: KernelConfig, problem: Problem, device: DeviceProfile) -> Plan:
    """One launch, and a second one where a kernel adds up."""
    source = common.render(TEMPLATE, config, even=problem.n % 2 == 0)
    sums = Pointer(buffer=Buffer.WORKSPACE, offset_bytes=counter_bytes(config, problem))
    counters = Pointer(buffer=Buffer.WORKSPACE)
    more: dict[Split, tuple[Argument, ...]] = {
        Split.WORKSPACE: (sums, counters),
        Split.ATOMIC: (sums, counters),
        Split.KERNEL: (sums,),
    }
    least, longer = divmod(config.k_stages(problem), config.splits)
    arguments = (*common.arguments(config, problem, least, longer), *more.get(config.split, ()))
    launch = common.one_tile_launch(config, problem, source.name, arguments)
    kernels = {source.name: source.kernel()}
    steps = [launch]
    if config.split is Split.KERNEL:
        kernels[source.name + REDUCE] = source.kernel("reduce")
        steps.append(_reduce(config, problem, source.name + REDUCE))
    return Plan(
        layout=config.layout,
        steps=tuple(steps),
        kernels=kernels,
        workspace_bytes=workspace_bytes(config, problem),
        zeroed_bytes=zeroed_bytes(config, problem),
        deterministic=config.deterministic,
    )


def _reduce(config: KernelConfig, problem: Problem, name: str) -> Launch:
    return Launch(
        kernel=name,
        grid=(config.tiles_p(problem), config.tiles_q(problem), config.sums_per_thread // 4),
        block=(128 * config.warpgroups, 1, 1),
        programmatic=True,
        arguments=(
            Pointer(buffer=Buffer.WORKSPACE),
            Pointer(buffer=Buffer.C),
            *common.integers(*common.extents(config, problem), config.splits),
        ),
    )
