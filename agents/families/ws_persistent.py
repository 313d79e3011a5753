"""Persistent, warp-specialised kernels: a loading warp, and warpgroups that share a tile or take turns."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from agents.config import Family, KernelConfig, Store
from agents.families import common
from agents.families.common import SIDES
from harness.plan import Launch, Plan
from harness.problem import Problem
from harness.profiles import DeviceProfile

TEMPLATE = "persistent.cu.j2"


TOGETHER = (
    (1, 64, (64, 128, 192, 256)),
    (2, 128, (64, 96, 128, 160, 192, 208, 224, 256)),
    (2, 256, (64, 96, 128, 160, 192)),
    (3, 192, (128, 160, 192)),
)
"""Warpgroups that share a tile, its rows of P, and of Q. Widths between powers of two fill the last wave better."""
IN_TURN = ((64, (128, 192, 256)), (128, (64, 96, 128, 160, 192)))
"""Rows of P and of Q of a tile where two warpgroups take turns."""
CLUSTERS = ((1, 1), (2, 1), (1, 2))
GROUPS = (4, 8, 16)
SLIM = 2
"""Panels of C that are on their way out at once: two leave most room for the ring."""


def configs() -> Iterator[KernelConfig]:
    """Every configuration of the family, legal or not."""
    tiles = [(warpgroups, False, bm, bn) for warpgroups, bm, widths in TOGETHER for bn in widths]
    tiles += [(2, True, bm, bn) for bm, widths in IN_TURN for bn in widths]
    for (warpgroups, ping_pong, bm, bn), (layout, swapped), cluster, group in product(tiles, SIDES, CLUSTERS, GROUPS):
        config = KernelConfig(
            family=Family.WS_PERSISTENT,
            layout=layout,
            swapped=swapped,
            bm=bm,
            bn=bn,
            stages=1,
            warpgroups=warpgroups,
            ping_pong=ping_pong,
            cluster_p=cluster[0],
            cluster_q=cluster[1],
            buffers=SLIM,
            group=group,
        )
        yield common.deepest(config)
        if cluster == (1, 1) and bn in (64, 128, 256):
            yield common.deepest(config.model_copy(update={"store": Store.DIRECT, "buffers": 0}))


def plan(config: KernelConfig, problem: Problem, device: DeviceProfile) -> Plan:
    """One launch of as many clusters as the device holds at once, or as there are tiles."""
    source = common.render(TEMPLATE, config, even=problem.n % 2 == 0)
    clusters = min(config.tiles(problem), device.sm_count * config.ctas_per_sm // config.cluster_ctas)
    launch = Launch(
        kernel=source.name,
        grid=(clusters * config.cluster_ctas, 1, 1),
        block=(config.threads, 1, 1),
        cluster=(config.cluster_ctas, 1, 1) if config.cluster_ctas > 1 else None,
        dynamic_shared_bytes=config.shared_bytes,
        arguments=common.arguments(config, problem),
    )
    return Plan(layout=config.layout, steps=(launch,), kernels={source.name: source.kernel()})
