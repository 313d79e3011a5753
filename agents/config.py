"""KernelConfig: one point of the agent's action space, and the sizes that follow from it."""

from __future__ import annotations

import math
from enum import StrEnum

from harness.model import Count, Model, Positive
from harness.plan import Layout
from harness.plan_arguments import OneOf
from harness.problem import Problem, Track

BARRIER_BYTES = 8
REGISTERS = {2: (40, 232), 3: (40, 152)}
"""Registers of a loading and of a multiplying thread of a persistent CTA, by warpgroups that multiply. They share 64 Ki."""

MOST_HELD_BYTES = 1 << 17
"""Of shared memory, what two strips of Q may take, so that the ring and C's buffers keep a third."""
WIDEST_PANEL = 64
"""Numbers in 128 bytes."""
MOST_WRITTEN = 7 / 6
"""Of a tile's bytes, what may leave so that panels are wide."""


class Family(StrEnum):
    """Which design a kernel follows."""

    WS_PERSISTENT = "ws_persistent"
    """Persistent, warp-specialised, for products that compute bounds."""
    SPLITK = "splitk"
    """Several CTAs share a tile, for long K and few tiles."""
    LATENCY = "latency"
    """The shortest way from launch to result, for small products."""
    SKINNY = "skinny"
    """Bandwidth first, for products with one short side."""
    OUTPUT = "output"
    """Persistent, with all of K of one operand held in shared memory while the other goes by, for short K."""
    REGISTERS = "registers"
    """Operands straight into registers, for products in which one round trip to memory is most of the time."""
    UNALIGNED = "unaligned"
    """Without TMA, for rows that do not start at multiples of 16 bytes."""


class Split(StrEnum):
    """How CTAs that share a tile add up their sums."""

    NONE = "none"
    """They do not share."""
    CLUSTER = "cluster"
    """In each other's shared memory, as one cluster."""
    WORKSPACE = "workspace"
    """In the workspace; the last to arrive adds up, in a fixed order, and sets the tile's counter back to zero."""
    KERNEL = "kernel"
    """In the workspace; a second kernel adds up."""
    ATOMIC = "atomic"
    """In the workspace by fp32 atomics, in any order; the last to arrive stores the tile and sets its sums back to zero."""
    STREAM = "stream"
    """Persistent CTAs share the tiles that fill no whole wave evenly; who has a tile's end adds up, in a fixed order."""


class Store(StrEnum):
    """How C leaves."""

    TMA = "tma"
    """Through shared memory and TMA."""
    ROWS = "rows"
    """Through shared memory, and from there by the threads that computed it, 16 bytes each: nobody waits for TMA."""
    WIDE = "wide"
    """From registers, 16 bytes a thread: rows of Q are ordered in shared memory so that a thread's sums are neighbours in C."""
    DIRECT = "direct"
    """From registers, with a test of every bound."""


class Cache(StrEnum):
    """What a kernel tells the L2."""

    PLAIN = "plain"
    """Nothing."""
    STREAM_C = "stream_c"
    """C is not read again."""
    AHEAD = "ahead"
    """C is not read again, and all of P is fetched into L2 once the first tile is under way."""


class KernelConfig(Model):
    """A kernel and how it is launched. P is A and Q is B, or, swapped, the other way round; see pieces/tile.cuh.j2."""

    family: OneOf[Family]
    """Family."""
    layout: OneOf[Layout]
    """Layout of B."""
    swapped: bool = False
    """Whether the rows of a warpgroup instruction lie along N rather than M."""
    bm: Positive
    """Rows of P in a tile."""
    bn: Positive
    """Rows of Q in a tile."""
    bk: Positive = 64
    """K of one stage."""
    stages: Positive
    """Stages of the ring."""
    held: Count = 0
    """Stages of K for which Q stays in shared memory while tiles go by along P; 0 loads it anew for every tile."""
    warpgroups: Positive = 1
    """Warpgroups that multiply."""
    ping_pong: bool = False
    """Whether each warpgroup has tiles of its own."""
    cluster_p: Positive = 1
    """CTAs of a cluster along P, which load Q together."""
    cluster_q: Positive = 1
    """CTAs of a cluster along Q, which load P together."""
    ctas_per_sm: Positive = 1
    """CTAs that a multiprocessor shall hold."""
    split: OneOf[Split] = Split.NONE
    """How CTAs share a tile."""
    splits: Positive = 1
    """CTAs that share a tile."""
    store: OneOf[Store] = Store.TMA
    """How C leaves."""
    buffers: Count = 0
    """Panels of C in shared memory per warpgroup beside the ring; 0 sends C through the ring."""
    cache: OneOf[Cache] = Cache.PLAIN
    """Hints to the L2."""
    group: Positive = 8
    """Tiles along P in a band of the raster."""
    accumulator: OneOf[Track] = Track.F32
    """Width of the sums."""

    @property
    def deterministic(self) -> bool:
        """Whether equal inputs give equal bits: not where the order of additions is left to chance."""
        return self.split is not Split.ATOMIC

    @property
    def blocks(self) -> int:
        """Blocks of 64 rows of P per warpgroup."""
        return self.bm // 64 // (1 if self.ping_pong else self.warpgroups)

    @property
    def sums_per_thread(self) -> int:
        """Accumulators of a thread."""
        return self.blocks * self.bn // 2

    @property
    def sum_registers(self) -> int:
        """Registers that a thread's accumulators take: two of fp16 share one."""
        return self.sums_per_thread // (1 if self.accumulator is Track.F32 else 2)

    @property
    def p_width(self) -> int:
        """Rows of P in one panel where P is stored across K, else 0."""
        return 64 if self.swapped and self.layout is Layout.NN else 0

    @property
    def q_width(self) -> int:
        """Rows of Q in one panel where Q is stored across K, else 0."""
        across = not self.swapped and self.layout is Layout.NN
        return next((width for width in (64, 32, 16) if self.bn % width == 0), 8) if across else 0

    @property
    def panel(self) -> int:
        """Rows of Q whose sums leave together. The last of TMA's panels may begin within the one before: it writes the same."""
        if self.store is Store.ROWS:
            return min(WIDEST_PANEL, 1 << (self.bn - 1).bit_length())
        widths = (64, 48, 32, 16, 8) if self.swapped else (64, 32, 16, 8)
        fitting = (width for width in widths if width <= self.bn)
        return next(width for width in fitting if math.ceil(self.bn / width) * width <= MOST_WRITTEN * self.bn)

    @property
    def round(self) -> int:
        """Panels that a warpgroup writes between two barriers: as many as make up 64 rows of Q."""
        return min(64 // self.panel, math.ceil(self.bn / self.panel), self.buffers or self.panels)

    @property
    def panels(self) -> int:
        """Panels of C per warpgroup and tile."""
        return self.blocks * math.ceil(self.bn / self.panel)

    @property
    def panels_through_ring(self) -> int:
        """Panels of C per warpgroup that lie in the ring together, once it is no longer needed: all, or two in turn."""
        return {Store.TMA: self.panels, Store.ROWS: min(2, self.panels)}.get(self.store, 0)

    @property
    def stage_bytes(self) -> int:
        """Bytes of one stage."""
        return 2 * self.bk * (self.bm + (0 if self.held else self.bn))

    @property
    def strips(self) -> int:
        """Strips of Q that shared memory holds, all of K of a tile's rows each: the next one is loaded early where two fit."""
        return 0 if not self.held else 2 if 2 * self._strip_bytes <= MOST_HELD_BYTES else 1

    @property
    def _strip_bytes(self) -> int:
        return 2 * self.held * self.bk * self.bn

    @property
    def barriers(self) -> int:
        """Two for every stage and, of every strip, one for each stage of K and one for all."""
        return 2 * self.stages + self.strips * (self.held + 1)

    @property
    def barrier_offset(self) -> int:
        """Where barriers lie: after ring, strips and C's buffers, or after the larger of ring and C where C goes through it."""
        ring = self.stages * self.stage_bytes + self.strips * self._strip_bytes
        panel_bytes = 2 * 64 * self.panel * self.warpgroups
        if self.buffers:
            return ring + self.buffers * panel_bytes
        tile_bytes = self.panels_through_ring * panel_bytes
        return max(ring, tile_bytes, self.shared_sums_bytes)

    @property
    def shared_sums_bytes(self) -> int:
        """Bytes of the sums that a cluster exchanges."""
        return 4 * self.bm * self.bn if self.split is Split.CLUSTER else 0

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a CTA."""
        return self.barrier_offset + self.barriers * BARRIER_BYTES

    @property
    def threads(self) -> int:
        """Threads of a CTA: those that multiply, and a warp that loads, or a warpgroup where registers are reassigned."""
        multiplying = 128 * self.warpgroups
        if self.family in (Family.LATENCY, Family.REGISTERS, Family.UNALIGNED):
            return multiplying
        persistent = self.family in (Family.WS_PERSISTENT, Family.OUTPUT)
        return multiplying + (128 if persistent and self.warpgroups in REGISTERS else 32)

    @property
    def cluster_ctas(self) -> int:
        """CTAs that load together."""
        return self.cluster_p * self.cluster_q

    def rows(self, problem: Problem) -> int:
        """Rows of P."""
        return problem.n if self.swapped else problem.m

    def columns(self, problem: Problem) -> int:
        """Rows of Q."""
        return problem.m if self.swapped else problem.n

    def tiles_p(self, problem: Problem) -> int:
        """Tiles along P, in clusters."""
        return math.ceil(self.rows(problem) / (self.bm * self.cluster_p))

    def tiles_q(self, problem: Problem) -> int:
        """Tiles along Q, in clusters."""
        return math.ceil(self.columns(problem) / (self.bn * self.cluster_q))

    def tiles(self, problem: Problem) -> int:
        """Tiles of C, in clusters."""
        return self.tiles_p(problem) * self.tiles_q(problem)

    def k_stages(self, problem: Problem) -> int:
        """Stages that all of K fills."""
        return math.ceil(problem.k / self.bk)
