"""Persistent, warp-specialised kernels: a loading warp, and warpgroups that share a tile or take turns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from agents.config import Cache, Family, KernelConfig, Split, Store
from agents.families import common
from agents.families.common import SIDES
from harness.plan import Launch, Plan, Pointer
from harness.plan_arguments import Argument, Buffer
from harness.problem import Problem, Track
from harness.profiles import DeviceProfile

TEMPLATE = "persistent.cu.j2"


class Tiles(NamedTuple):
    """Tiles of which one is rendered each."""

    warpgroups: int
    """Warpgroups that multiply."""
    ping_pong: bool
    """Whether they take turns, each with a tile of its own, rather than share one."""
    bm: int
    """Rows of P."""
    widths: tuple[int, ...]
    """Rows of Q."""


TILES = (
    Tiles(1, False, 64, (64, 128, 192, 256)),
    Tiles(2, False, 128, (64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 256)),
    Tiles(2, False, 256, (64, 96, 128, 160, 192)),
    Tiles(3, False, 192, (128, 160, 192)),
    Tiles(2, True, 64, (128, 192, 256)),
    Tiles(2, True, 128, (64, 80, 96, 112, 128, 144, 160, 176, 192)),
)
"""Widths between powers of two fill the last wave better."""
WIDE = (Tiles(2, False, 128, (128, 256)), Tiles(2, False, 256, (128,)), Tiles(2, True, 128, (128,)))
"""For clusters of four, which read less from L2 and leave some multiprocessors without work."""
SLENDER = (Tiles(1, False, 64, (16, 32, 48, 64, 96, 128)), Tiles(2, False, 128, (16, 32, 48, 64, 80, 96, 112, 128, 144)))
"""For products with one short side: a cluster reads it once, and the long side is spread over all multiprocessors."""
STREAMED = (Tiles(2, False, 128, (128, 192, 256)), Tiles(2, False, 256, (128,)), Tiles(2, True, 128, (128, 192)))
"""Where CTAs share the tiles that fill no whole wave."""
HALVES = (
    Tiles(2, False, 128, (128, 192, 256)),
    Tiles(2, False, 256, (128, 192, 224, 256)),
    Tiles(2, True, 128, (128, 192, 256)),
)
"""With sums in fp16, which leave registers for larger tiles."""
CLUSTERS = ((1, 1), (2, 1), (1, 2))
FOURS = ((2, 2), (4, 1), (1, 4))
GROUPS = (4, 8, 16)
FEW_GROUPS = GROUPS[:2]
SLIM = 2
"""Rounds of panels of C that are on their way out at once: two leave most room for the ring."""
EXCHANGED_K = 160
"""K that a tile multiplies in the time in which its sums are read: at N times of it, more than √N CTAs a tile cost time."""


class Stream(NamedTuple):
    """What the CTAs of a launch share."""

    clusters: int
    """Clusters of the launch."""
    tiles: int
    """Tiles, in clusters, whose K all of them go through together; the others they take whole."""


def configs() -> Iterator[KernelConfig]:
    """Every configuration of the family, legal or not."""
    for base in _bases(TILES):
        for cluster, group in product(CLUSTERS, GROUPS):
            yield _variant(base, cluster, group=group)
        for cluster, group in product(CLUSTERS, FEW_GROUPS):
            yield _variant(base, cluster, group=group, store=Store.WIDE, buffers=0)
        if base.bn in (64, 128, 256):
            yield from (
                _variant(base, (1, 1), store=Store.DIRECT, buffers=0, cache=Cache.PLAIN, group=group) for group in GROUPS
            )
    for base, cluster, group in product(_bases(WIDE), FOURS, FEW_GROUPS):
        yield _variant(base, cluster, group=group)
    for base, cluster in product(_bases(SLENDER), (*CLUSTERS, *FOURS[1:])):
        yield _variant(base, cluster, group=GROUPS[0])
    for base, cluster, group in product(_bases(STREAMED), CLUSTERS, FEW_GROUPS):
        yield _variant(base, cluster, group=group, split=Split.STREAM)
    for base, cluster, group in product(_bases(HALVES), CLUSTERS, FEW_GROUPS):
        yield _variant(base, cluster, group=group, accumulator=Track.F16)


def stream(config: KernelConfig, problem: Problem, device: DeviceProfile) -> Stream:
    """How the clusters of a launch share tiles.

    Where the last wave is not full, it and the one before are streamed, so that each cluster has between one tile and two, and
    a tile seldom more than two clusters. This is two-tile stream-K (Osama et al. 2023, arXiv 2301.03598).
    """
    tiles, most = config.tiles(problem), common.clusters_at_once(config, device)
    if config.split is not Split.STREAM:
        return Stream(min(tiles, most), 0)
    if tiles < most:
        return Stream(min(most, tiles * max(1, math.isqrt(problem.k // EXCHANGED_K))), tiles)
    return Stream(most, tiles % most + most if tiles % most else 0)


def plan(config: KernelConfig, problem: Problem, device: DeviceProfile) -> Plan:
    """One launch of as many clusters as the device holds at once, or as there is work for."""
    source = common.render(TEMPLATE, config, even=problem.n % 2 == 0)
    shares = stream(config, problem, device)
    ctas = shares.clusters * config.cluster_ctas
    stages = config.k_stages(problem)
    streamed: tuple[int, ...] = ()
    pointers: tuple[Argument, ...] = ()
    zeroed = workspace = 0
    if config.split is Split.STREAM:
        parts = ctas if config.ping_pong else ctas * config.warpgroups
        zeroed = common.aligned(4 * parts)
        workspace = zeroed + 4 * config.bm * config.bn * ctas
        streamed = (shares.tiles,)
        pointers = (Pointer(buffer=Buffer.WORKSPACE, offset_bytes=zeroed), Pointer(buffer=Buffer.WORKSPACE))
    launch = Launch(
        kernel=source.name,
        grid=(ctas, 1, 1),
        block=(config.threads, 1, 1),
        cluster=(config.cluster_ctas, 1, 1) if config.cluster_ctas > 1 else None,
        dynamic_shared_bytes=config.shared_bytes,
        arguments=(*common.arguments(config, problem, stages, *streamed), *common.raster(config, problem), *pointers),
    )
    return Plan(
        layout=config.layout,
        steps=(launch,),
        kernels={source.name: source.kernel()},
        workspace_bytes=workspace,
        zeroed_bytes=zeroed,
    )


def _bases(tiles: tuple[Tiles, ...]) -> Iterator[KernelConfig]:
    for (warpgroups, ping_pong, bm, widths), (layout, swapped) in product(tiles, SIDES):
        for bn in widths:
            yield KernelConfig(
                family=Family.WS_PERSISTENT,
                layout=layout,
                swapped=swapped,
                bm=bm,
                bn=bn,
                stages=1,
                warpgroups=warpgroups,
                ping_pong=ping_pong,
            )


def _variant(base: KernelConfig, cluster: tuple[int, int], **changes: object) -> KernelConfig:
    slim = SLIM * (64 // base.panel)
    update = {"cluster_p": cluster[0], "cluster_q": cluster[1], "buffers": slim, "cache": Cache.STREAM_C, **changes}
    return common.deepest(base.model_copy(update=update))
