"""Persistent kernels for short K: a strip of one operand stays in shared memory while the other goes by, and C streams out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

from agents.config import Cache, Family, KernelConfig
from agents.families import common
from agents.families.common import SIDES
from harness.plan import Launch, Plan, Scalar, ScalarType
from harness.problem import Problem
from harness.profiles import DeviceProfile

TEMPLATE = "output.cu.j2"

TILES = (
    (2, False, 128, (128, 176, 192, 224, 256)),
    (2, False, 256, (96, 128, 160, 192)),
    (2, True, 64, (128, 144, 160, 192, 224, 256)),
    (2, True, 128, (64, 96, 112, 128, 144, 160, 176, 192)),
)
"""Warpgroups, whether they take turns, rows of P, rows of Q."""
HELD = (1, 2, 4, 8)
"""Stages of K of a strip."""
HINTS = (Cache.STREAM_C, Cache.AHEAD)
ROUNDS = 2
"""Rounds of panels of C that are on their way out at once, per warpgroup: more leave less room for the ring, and are slower."""
ALIGNED = 0.95
"""Of the CTAs that there may be, how many there must be where each is to have whole strips, or whole parts of one."""


def configs() -> Iterator[KernelConfig]:
    """Every configuration of the family, legal or not."""
    tiles = [(warpgroups, ping_pong, bm, bn) for warpgroups, ping_pong, bm, widths in TILES for bn in widths]
    for (warpgroups, ping_pong, bm, bn), (layout, swapped), held, cache in product(tiles, SIDES, HELD, HINTS):
        config = KernelConfig(
            family=Family.OUTPUT,
            layout=layout,
            swapped=swapped,
            bm=bm,
            bn=bn,
            stages=1,
            held=held,
            warpgroups=warpgroups,
            ping_pong=ping_pong,
            cache=cache,
            group=1,
        )
        yield common.deepest(config.model_copy(update={"buffers": ROUNDS * (64 // config.panel)}))


def ctas(config: KernelConfig, problem: Problem, device: DeviceProfile) -> int:
    """CTAs of a launch: as few as go through the tiles in the same number of rounds, since then fewer change strips.

    Where nearly as many can have whole strips or whole parts of one, so many: they write neighbouring columns at the same time.
    """
    tiles, tiles_p = config.tiles(problem), config.tiles_p(problem)
    fewest = math.ceil(tiles / math.ceil(tiles / device.sm_count))
    shares = ((tiles // number, number) for number in range(1, device.sm_count + 1) if tiles % number == 0)
    aligned = max(number for share, number in shares if share % tiles_p == 0 or tiles_p % share == 0)
    return aligned if aligned >= ALIGNED * fewest else fewest


def plan(config: KernelConfig, problem: Problem, device: DeviceProfile) -> Plan:
    """One launch, each CTA with neighbouring tiles, one strip's after the other's."""
    source = common.render(TEMPLATE, config, even=problem.n % 2 == 0)
    tiles_p, tiles, grid = config.tiles_p(problem), config.tiles(problem), ctas(config, problem, device)
    by_strip = Scalar(dtype=ScalarType.U64, value=common.multiplier(tiles_p))
    walk = (*common.integers(tiles_p), by_strip, *common.integers(tiles // grid, tiles % grid))
    launch = Launch(
        kernel=source.name,
        grid=(grid, 1, 1),
        block=(config.threads, 1, 1),
        dynamic_shared_bytes=config.shared_bytes,
        arguments=(*common.arguments(config, problem, config.k_stages(problem)), *walk),
    )
    return Plan(layout=config.layout, steps=(launch,), kernels={source.name: source.kernel()})
