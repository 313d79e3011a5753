"""Kernels without shared memory before the last sum: operands go straight into registers, for the smallest products."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import product

from agents.config import Family, KernelConfig, Store
from agents.families import common
from harness.plan import Launch, Layout, Plan, Pointer
from harness.plan_arguments import Argument, Buffer
from harness.problem import Problem
from harness.profiles import DeviceProfile

TEMPLATE = "registers.cu.j2"
TILES = ((16, 8), (16, 16), (32, 16), (16, 32), (32, 32))
"""Rows of A and columns of B."""
WARPGROUPS = (1, 2)
DEPTHS = (32, 64, 128)
"""K that a warp has under way."""


def configs() -> Iterator[KernelConfig]:
    """Every configuration of the family, legal or not."""
    for (bm, bn), warpgroups, bk in product(TILES, WARPGROUPS, DEPTHS):
        yield KernelConfig(
            family=Family.REGISTERS,
            layout=Layout.TN,
            bm=bm,
            bn=bn,
            bk=bk,
            stages=1,
            warpgroups=warpgroups,
            store=Store.DIRECT,
        )


def source(config: KernelConfig, problem: Problem) -> common.Source:
    """The kernel, which differs by whether rows of C have an even length."""
    return _render(config.model_copy(update={"group": 1}), problem.n % 2 == 0)


def plan(config: KernelConfig, problem: Problem, device: DeviceProfile) -> Plan:
    """One launch of one CTA per tile."""
    kernel = source(config, problem)
    pointers: tuple[Argument, ...] = tuple(Pointer(buffer=buffer) for buffer in (Buffer.A, Buffer.B, Buffer.C))
    launch = Launch(
        kernel=kernel.name,
        grid=(config.tiles_p(problem), config.tiles_q(problem), 1),
        block=(config.threads, 1, 1),
        arguments=(*pointers, *common.integers(problem.m, problem.n, problem.k)),
    )
    return Plan(layout=config.layout, steps=(launch,), kernels={kernel.name: kernel.kernel()})


@functools.cache
def _render(config: KernelConfig, even: bool) -> common.Source:
    return common.render_text(TEMPLATE, config, c=config.model_dump(mode="json"), even=even)
