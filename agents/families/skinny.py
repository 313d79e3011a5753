"""One tile per CTA in deep rings, for products with one short side: they read one operand once and end with it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from agents.config import Family, KernelConfig, Split, Store
from agents.families import common, splitk
from agents.families.common import SIDES

TEMPLATE = splitk.TEMPLATE
plan = splitk.plan

TILES = ((1, 64, (8, 16, 32, 64, 128, 256)), (2, 128, (16, 32, 64, 128)))
"""Warpgroups, rows of P, rows of Q. The long side of C belongs on P: its 64 rows are filled whatever the short side is."""
SHARES = (
    *((Split.CLUSTER, splits) for splits in (2, 4, 8)),
    *((split, splits) for split in (Split.WORKSPACE, Split.KERNEL) for splits in (2, 3, 4, 8, 16)),
    *((Split.ATOMIC, splits) for splits in (4, 8, 16)),
)
IN_SPLITK = {(warpgroups, bn) for warpgroups, _, widths in splitk.TILES for bn in widths}
MOST_STAGES = 12


def configs() -> Iterator[KernelConfig]:
    """Every configuration of the family, legal or not."""
    tiles = [(warpgroups, bm, bn) for warpgroups, bm, widths in TILES for bn in widths]
    for (warpgroups, bm, bn), (layout, swapped), residents in product(tiles, SIDES, (1, 2)):
        whole = KernelConfig(
            family=Family.SKINNY,
            layout=layout,
            swapped=swapped,
            bm=bm,
            bn=bn,
            bk=128 if residents == 1 and bn <= 128 else 64,
            stages=1,
            warpgroups=warpgroups,
            ctas_per_sm=residents,
        )
        for store in (Store.TMA, Store.ROWS, Store.DIRECT):
            yield common.deepest(whole.model_copy(update={"store": store}), MOST_STAGES)
        for split, splits in SHARES if residents > 1 or (warpgroups, bn) not in IN_SPLITK else ():
            shared = whole.model_copy(update={"split": split, "splits": splits, "store": Store.DIRECT})
            yield common.deepest(shared, MOST_STAGES)
