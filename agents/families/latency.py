"""One tile per CTA and no loading warp: the shortest prologue."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from agents.config import Family, KernelConfig, Store
from agents.families import common
from agents.families.common import SIDES
from harness.plan import Plan
from harness.problem import Problem
from harness.profiles import DeviceProfile

TEMPLATE = "latency.cu.j2"


TILES = ((1, 64, (8, 16, 24, 32, 48, 64, 96, 128)), (2, 128, (16, 32, 64, 128)))
"""Warpgroups, rows of P, rows of Q."""
DEPTHS = ((64, 2), (64, 4), (64, 8), (128, 2), (128, 4))
"""K of a stage, and stages."""


def configs() -> Iterator[KernelConfig]:
    """Every configuration of the family, legal or not."""
    tiles = [(warpgroups, bm, bn) for warpgroups, bm, widths in TILES for bn in widths]
    for (warpgroups, bm, bn), (layout, swapped), (bk, stages), store in product(tiles, SIDES, DEPTHS, Store):
        yield KernelConfig(
            family=Family.LATENCY,
            layout=layout,
            swapped=swapped,
            bm=bm,
            bn=bn,
            bk=bk,
            stages=stages,
            warpgroups=warpgroups,
            store=store,
        )


def plan(config: KernelConfig, problem: Problem, device: DeviceProfile) -> Plan:
    """One launch."""
    source = common.render(TEMPLATE, config, even=problem.n % 2 == 0)
    arguments = common.arguments(config, problem, config.k_stages(problem))
    launch = common.one_tile_launch(config, problem, source.name, arguments)
    return Plan(layout=config.layout, steps=(launch,), kernels={source.name: source.kernel()})
