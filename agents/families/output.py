"""Persistent kernels for short K: a few stages, and the rest of shared memory for C on its way out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from agents.config import Cache, Family, KernelConfig
from agents.families import ws_persistent
from agents.families.common import SIDES

TEMPLATE = ws_persistent.TEMPLATE
plan = ws_persistent.plan

TILES = (
    (2, False, 128, (128, 176, 256)),
    (2, False, 256, (64, 128)),
    (2, True, 64, (128, 256)),
    (2, True, 128, (64, 112, 128, 144, 176)),
    (1, False, 64, (128, 256)),
)
"""Warpgroups, whether they take turns, rows of P, rows of Q."""
STAGES = (2, 4)
GROUPS = (2, 8)


def configs() -> Iterator[KernelConfig]:
    """Every configuration of the family, legal or not."""
    tiles = [(warpgroups, ping_pong, bm, bn) for warpgroups, ping_pong, bm, widths in TILES for bn in widths]
    hints = (Cache.PLAIN, Cache.STREAM_C)
    for (warpgroups, ping_pong, bm, bn), (layout, swapped), cache, group in product(tiles, SIDES, hints, GROUPS):
        config = KernelConfig(
            family=Family.OUTPUT,
            layout=layout,
            swapped=swapped,
            bm=bm,
            bn=bn,
            stages=1,
            warpgroups=warpgroups,
            ping_pong=ping_pong,
            buffers=1,
            cache=cache,
            group=group,
        )
        for stages, tiles_out in product(STAGES, (1, 2)):
            yield config.model_copy(update={"stages": stages, "buffers": tiles_out * config.panels})
