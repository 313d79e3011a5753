"""One tile per CTA in deep rings, for products with one short side: they read one operand once and end with it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from agents.config import Cache, Family, KernelConfig, Split, Store
from agents.families import common, splitk
from agents.families.common import SIDES

TEMPLATE = splitk.TEMPLATE
plan = splitk.plan

TILES = ((1, 64, (8, 16, 32, 64, 128, 256)), (2, 128, (16, 32, 64, 128)))
"""Warpgroups, rows of P, rows of Q. The long side of C belongs on P: its 64 rows are filled whatever the short side is."""
SHARES = (
    (Split.NONE, 1),
    *((Split.CLUSTER, splits) for splits in (2, 4, 8)),
    *((split, splits) for split in (Split.WORKSPACE, Split.KERNEL) for splits in (2, 3, 4, 8, 16)),
    *((Split.ATOMIC, splits) for splits in (4, 8, 16)),
)
MOST_STAGES = 12


def configs() -> Iterator[KernelConfig]:
    """Every configuration of the family, legal or not."""
    tiles = [(warpgroups, bm, bn) for warpgroups, bm, widths in TILES for bn in widths]
    for (warpgroups, bm, bn), (layout, swapped), (split, splits), residents in product(tiles, SIDES, SHARES, (1, 2)):
        config = KernelConfig(
            family=Family.SKINNY,
            layout=layout,
            swapped=swapped,
            bm=bm,
            bn=bn,
            bk=128 if residents == 1 and bn <= 128 else 64,
            stages=1,
            warpgroups=warpgroups,
            ctas_per_sm=residents,
            split=split,
            splits=splits,
            store=Store.TMA if split is Split.NONE else Store.DIRECT,
            cache=Cache.STREAM_P,
        )
        yield common.deepest(config, MOST_STAGES)
        if split is Split.NONE:
            for store in (Store.ROWS, Store.DIRECT):
                yield common.deepest(config.model_copy(update={"store": store}), MOST_STAGES)
            for store in (Store.TMA, Store.ROWS):
                yield common.deepest(config.model_copy(update={"store": store, "cache": Cache.PLAIN}), MOST_STAGES)
