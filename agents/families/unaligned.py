"""Kernels without TMA, for rows that do not start at multiples of 16 bytes."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from agents.config import Family, KernelConfig, Store
from agents.families import common
from harness.plan import Launch, Layout, Plan, Pointer
from harness.plan_arguments import Argument, Buffer
from harness.problem import Problem
from harness.profiles import DeviceProfile

TEMPLATE = "unaligned.cu.j2"


def source(config: KernelConfig, problem: Problem) -> common.Source:
    """The kernel, which differs by whether rows have an even length."""
    b_row = problem.k if config.layout is Layout.TN else problem.n
    return _render(config.model_copy(update={"group": 1}), 2 - problem.k % 2, 2 - b_row % 2)


def configs() -> Iterator[KernelConfig]:
    """Every configuration of the family."""
    for layout in Layout:
        yield KernelConfig(family=Family.UNALIGNED, layout=layout, bm=64, bn=64, bk=32, stages=1, store=Store.DIRECT)


def plan(config: KernelConfig, problem: Problem, device: DeviceProfile) -> Plan:
    """One launch of one CTA per tile."""
    kernel = source(config, problem)
    extents = (problem.m, problem.n, problem.k, config.k_stages(problem))
    raster = (config.tiles_p(problem), config.tiles_q(problem), min(config.group, config.tiles_p(problem)))
    pointers: tuple[Argument, ...] = tuple(Pointer(buffer=buffer) for buffer in (Buffer.A, Buffer.B, Buffer.C))
    launch = Launch(
        kernel=kernel.name,
        grid=(config.tiles(problem), 1, 1),
        block=(config.threads, 1, 1),
        arguments=(*pointers, *common.integers(*extents, *raster)),
    )
    return Plan(layout=config.layout, steps=(launch,), kernels={kernel.name: kernel.kernel()})


@functools.cache
def _render(config: KernelConfig, a_vector: int, b_vector: int) -> common.Source:
    return common.render_text(TEMPLATE, config, c=config.model_dump(mode="json"), a_vector=a_vector, b_vector=b_vector)
