"""The action space: every configuration, the rules that a legal one obeys, and what is legal for a problem."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from types import ModuleType
from typing import NamedTuple

from agents.config import Cache, Family, KernelConfig, Split, Store
from agents.families import common, latency, output, skinny, splitk, unaligned, ws_persistent
from agents.families import registers as small
from harness.model import DataError
from harness.plan import MAX_WORKSPACE_BYTES, MAX_ZEROED_BYTES, Layout, Plan
from harness.problem import Problem, Track
from harness.profiles import DeviceProfile

FAMILIES: Mapping[Family, ModuleType] = {
    Family.WS_PERSISTENT: ws_persistent,
    Family.SPLITK: splitk,
    Family.LATENCY: latency,
    Family.SKINNY: skinny,
    Family.OUTPUT: output,
    Family.REGISTERS: small,
    Family.UNALIGNED: unaligned,
}

ACTIONS = (
    "family", "layout", "swapped", "bm", "bn", "bk", "stages", "held", "warpgroups", "ping_pong", "cluster_p", "cluster_q",
    "ctas_per_sm", "split", "splits", "store", "buffers", "cache", "group", "accumulator",
)  # fmt: skip
"""Parameters in the order in which a policy may choose them one by one."""

TMA_ALIGNMENT = 8
"""Numbers to whose multiples the rows of a matrix must start: 16 bytes."""
OWN_REGISTERS = 40
"""Registers that a multiplying thread needs beside its sums: the least with which hardly any spills, see docs/kernels.md."""
MAX_SPLIT_BYTES = 256 << 20
"""A workspace beyond this costs more to write and read than splitting gains."""


class Rule(NamedTuple):
    """Something that holds for every legal configuration."""

    reason: str
    """What goes wrong otherwise."""
    holds: Callable[[KernelConfig, DeviceProfile], bool]
    """Whether it holds on a device."""


class ProblemRule(NamedTuple):
    """Something that holds for every configuration that is legal for a problem."""

    reason: str
    """What goes wrong otherwise."""
    holds: Callable[[KernelConfig, Problem], bool]
    """Whether it holds for a problem."""


RULES = (
    Rule(
        "TMA, wgmma and clusters are instructions of sm_90a; mma.sync with 16 of K is one of sm_80 and later",
        lambda c, d: (
            d.architecture == "sm_90a" or (not _uses_wgmma(c) and not d.is_cpu and int(d.architecture[3:].rstrip("af")) >= 80)
        ),
    ),
    Rule(
        "a warpgroup instruction multiplies 64 rows of P, so a tile has 64 for each warpgroup, or a multiple",
        lambda c, d: not _uses_wgmma(c) or (c.blocks >= 1 and c.bm == 64 * c.blocks * (1 if c.ping_pong else c.warpgroups)),
    ),
    Rule("a warpgroup instruction multiplies 8 to 256 rows of Q, in eights", lambda c, d: c.bn % 8 == 0 and 8 <= c.bn <= 256),
    Rule(
        "boxes of 64 of K fill the widest swizzle and a stage holds whole boxes; without TMA it is multiplied in sixteens",
        lambda c, d: c.bk % (64 if _uses_wgmma(c) else 16) == 0,
    ),
    Rule("a ring overlaps loading and multiplying from two stages on", lambda c, d: c.stages >= _least_stages(c)),
    Rule(
        "panels of rows stored across K are 16, 32 or 64 wide: the swizzles that wgmma reads there",
        lambda c, d: c.q_width != 8,
    ),
    Rule(
        "a CTA loads whole groups of 8 lines of what its cluster shares, since the swizzle repeats after 8",
        lambda c, d: _slices_are_whole(c),
    ),
    Rule("a box has at most 256 lines", lambda c, d: max(c.bm // c.cluster_q, c.bn // c.cluster_p) <= 256),
    Rule(
        "only the persistent kernels share loads in a cluster; the others use it to share a tile",
        lambda c, d: c.cluster_ctas == 1 or c.family is Family.WS_PERSISTENT,
    ),
    Rule(
        "the kernels for short K, and no others, hold strips of Q, and their C leaves by TMA",
        lambda c, d: (c.held > 0) == (c.family is Family.OUTPUT) and (not c.held or c.store is Store.TMA),
    ),
    Rule("a cluster has at most as many CTAs as is portable", lambda c, d: max(c.cluster_ctas, _sharing(c)) <= d.max_cluster),
    Rule(
        "only the kernels for short K fetch all of an operand ahead",
        lambda c, d: c.cache is not Cache.AHEAD or c.family is Family.OUTPUT,
    ),
    Rule("warpgroups take turns in pairs", lambda c, d: not c.ping_pong or c.warpgroups == 2),
    Rule("named barriers are numbered up to 15, one for each warpgroup", lambda c, d: c.warpgroups <= 3),
    Rule(
        "the ring, C's buffers and the barriers fit in shared memory", lambda c, d: c.shared_bytes <= d.shared_bytes_per_block
    ),
    Rule(
        "so many CTAs fit in a multiprocessor's shared memory",
        lambda c, d: c.ctas_per_sm * (c.shared_bytes + common.RESERVED_BYTES) <= d.shared_bytes_per_sm,
    ),
    Rule(
        "a thread's sums and what it needs beside them fit in its registers: spilling costs most of the speed",
        lambda c, d: c.sum_registers + OWN_REGISTERS <= registers(c, d),
    ),
    Rule(
        "persistent kernels have TMA store C while they go on, which is quicker in all than that their threads do it",
        lambda c, d: c.store is not Store.ROWS or c.family in (Family.LATENCY, Family.SKINNY),
    ),
    Rule(
        "a thread's sums are neighbours in C where Q is B with K innermost, of which a CTA loads whole groups of 32 rows",
        lambda c, d: (
            c.store is not Store.WIDE
            or (
                c.layout is Layout.TN
                and not c.swapped
                and c.bn % (common.GROUP * c.cluster_p) == 0
                and c.family in (Family.WS_PERSISTENT, Family.LATENCY)
            )
        ),
    ),
    Rule("CTAs share a tile in the families that can add up", lambda c, d: _split_is_possible(c)),
    Rule(
        "sums that CTAs add up piece by piece are stored from registers",
        lambda c, d: c.split in (Split.NONE, Split.STREAM) or c.store is Store.DIRECT,
    ),
    Rule(
        "sums in fp16 are those of one warpgroup instruction after the other: they are not added up across CTAs",
        lambda c, d: c.accumulator is Track.F32 or (c.split is Split.NONE and _uses_wgmma(c)),
    ),
    Rule(
        "persistent kernels store through buffers of their own, since the ring is being filled; the others through the ring",
        lambda c, d: (c.buffers > 0) == (c.store is Store.TMA and c.family in (Family.WS_PERSISTENT, Family.OUTPUT)),
    ),
)

PROBLEM_RULES = (
    ProblemRule(
        "a tile and its cluster are less than twice as long as the sides of C: the rest is computed for nothing",
        lambda c, p: (
            c.family is Family.UNALIGNED
            or (c.bm * c.cluster_p < 2 * max(64, c.rows(p)) and c.bn * c.cluster_q < 2 * max(8, c.columns(p)))
        ),
    ),
    ProblemRule(
        "rows of A, and of B as it is stored, start at multiples of 16 bytes, or TMA cannot load them; "
        "where they do, the kernels without TMA are no choice",
        lambda c, p: (c.family is Family.UNALIGNED) != loads_by_tma(p, c.layout),
    ),
    ProblemRule(
        "where no layout of B can be loaded by TMA, the one whose rows are better aligned is taken",
        lambda c, p: c.family is not Family.UNALIGNED or (not any(loads_by_tma(p, x) for x in Layout) and c.layout is _even(p)),
    ),
    ProblemRule(
        "rows of C start at multiples of 16 bytes, or neither TMA nor a thread can store 16 bytes at once",
        lambda c, p: c.store is Store.DIRECT or p.n % TMA_ALIGNMENT == 0,
    ),
    ProblemRule(
        "columns of C come in groups of 32 where rows of Q change places in them",
        lambda c, p: c.store is not Store.WIDE or p.n % common.GROUP == 0,
    ),
    ProblemRule(
        "a strip holds all of K, which fills more than half of it",
        lambda c, p: not c.held or c.held < 2 * c.k_stages(p) <= 2 * c.held,
    ),
    ProblemRule(
        "sums in fp16 are for the track that allows them",
        lambda c, p: c.accumulator is Track.F32 or p.track is Track.F16,
    ),
    ProblemRule("each CTA of a tile has at least one stage of K", lambda c, p: c.splits <= c.k_stages(p)),
    ProblemRule(
        "the sums in the workspace stay small beside what a GPU writes in a few microseconds",
        lambda c, p: splitk.workspace_bytes(c, p) <= min(MAX_SPLIT_BYTES, MAX_WORKSPACE_BYTES),
    ),
    ProblemRule(
        "counters, and sums that atomics add to, fit in the workspace that is kept zero",
        lambda c, p: splitk.zeroed_bytes(c, p) <= MAX_ZEROED_BYTES,
    ),
    ProblemRule(
        "a grid has at most 65,535 CTAs along its second side, on which kernels of one tile a CTA have their tiles along Q",
        lambda c, p: c.family in (Family.WS_PERSISTENT, Family.OUTPUT, Family.UNALIGNED) or c.tiles_q(p) < 1 << 16,
    ),
    ProblemRule("tiles are counted in 31 bits", lambda c, p: c.tiles(p) * c.cluster_ctas < 1 << 31),
    ProblemRule(
        "a raster's band is no longer than C, where a shorter one is the same",
        lambda c, p: c.group == 1 or c.group <= max(c.tiles_p(p), _least_group(c)),
    ),
)


class Space:
    """Every configuration that a device can hold, in a fixed order: the actions of an agent."""

    def __init__(self, device: DeviceProfile) -> None:
        self.device = device
        found = (config for family in FAMILIES.values() for config in family.configs())
        self.configs: tuple[KernelConfig, ...] = tuple(dict.fromkeys(c for c in found if not broken_rules(c, device)))
        self.index: Mapping[KernelConfig, int] = {config: index for index, config in enumerate(self.configs)}
        self.designs: tuple[Hashable, ...] = tuple((_division(config), config.store is Store.WIDE) for config in self.configs)
        self._alike: dict[Hashable, list[KernelConfig]] = defaultdict(list)
        for config in self.configs:
            self._alike[_division(config)].append(config)

    def variants(self, config: KernelConfig, problem: Problem) -> tuple[KernelConfig, ...]:
        """The legal configurations that divide a problem as this one does; itself among them."""
        found = self._alike[_division(config)]
        return tuple(each for each in found if _fits(each, problem))

    def mask(self, problem: Problem) -> tuple[bool, ...]:
        """Per configuration, whether it is legal for a problem. At least one is."""
        return tuple(_fits(config, problem) for config in self.configs)

    def is_legal(self, config: KernelConfig, problem: Problem) -> bool:
        """Whether a configuration is one of the space, and legal for a problem."""
        return config in self.index and _fits(config, problem)

    def legal(self, problem: Problem) -> tuple[KernelConfig, ...]:
        """The configurations that are legal for a problem."""
        return tuple(config for config, allowed in zip(self.configs, self.mask(problem), strict=True) if allowed)

    def options(self, problem: Problem, chosen: Mapping[str, object]) -> tuple[object, ...]:
        """Values of the next parameter of ACTIONS that lead to a legal configuration, given those before it.

        Raises:
            DataError: the chosen values lead to none.
        """
        name = ACTIONS[len(chosen)]
        fitting = [c for c in self.legal(problem) if all(getattr(c, key) == value for key, value in chosen.items())]
        if not fitting:
            raise DataError(f"no configuration that is legal for {problem} has {dict(chosen)}.")
        return tuple(dict.fromkeys(getattr(config, name) for config in fitting))


def broken_rules(config: KernelConfig, device: DeviceProfile, problem: Problem | None = None) -> tuple[str, ...]:
    """Reasons why a configuration is not legal, on a device and, where one is given, for a problem; empty if it is."""
    found = [rule.reason for rule in RULES if not rule.holds(config, device)]
    if problem is not None and not found:
        found = [rule.reason for rule in PROBLEM_RULES if not rule.holds(config, problem)]
    return tuple(found)


def plan_for(config: KernelConfig, problem: Problem, device: DeviceProfile) -> Plan:
    """How a legal configuration computes a problem."""
    plan: Plan = FAMILIES[config.family].plan(config, problem, device)
    return plan


def sources_for(config: KernelConfig, problem: Problem) -> tuple[common.Source, ...]:
    """What `plan_for` launches, as source."""
    if not _uses_wgmma(config):
        return (FAMILIES[config.family].source(config, problem),)
    return (common.render(FAMILIES[config.family].TEMPLATE, config, even=problem.n % 2 == 0),)


def kernels_for(config: KernelConfig, problem: Problem) -> tuple[str, ...]:
    """Names of the kernels that `plan_for` launches, without planning."""
    names = tuple(source.name for source in sources_for(config, problem))
    return (*names, *(f"{name}{splitk.REDUCE}" for name in names if config.split is Split.KERNEL))


def loads_by_tma(problem: Problem, layout: Layout) -> bool:
    """Whether rows of A and of B in that layout start at multiples of 16 bytes."""
    b_row = problem.k if layout is Layout.TN else problem.n
    return problem.k % TMA_ALIGNMENT == 0 and b_row % TMA_ALIGNMENT == 0


def registers(config: KernelConfig, device: DeviceProfile) -> int:
    """Registers of a multiplying thread."""
    from agents.config import REGISTERS

    persistent = config.family in (Family.WS_PERSISTENT, Family.OUTPUT)
    if persistent and config.warpgroups in REGISTERS:
        return REGISTERS[config.warpgroups][1] if config.ctas_per_sm == 1 else 0
    return min(255, device.registers_per_sm // (config.threads * config.ctas_per_sm) // 8 * 8)


def _fits(config: KernelConfig, problem: Problem) -> bool:
    """Whether a configuration that its device allows is legal for a problem."""
    return all(rule.holds(config, problem) for rule in PROBLEM_RULES)


def _division(config: KernelConfig) -> Hashable:
    """How a configuration divides the work. Layout, orientation, raster, hints and the way out of C are left open."""
    p, q = (config.bm, config.cluster_p), (config.bn, config.cluster_q)
    tile = (q, p) if config.swapped else (p, q)
    ctas = (config.warpgroups, config.ping_pong, config.ctas_per_sm, config.split, config.splits)
    return (config.family, *tile, config.bk, config.held, *ctas, config.accumulator)


def _uses_wgmma(config: KernelConfig) -> bool:
    return config.family not in (Family.REGISTERS, Family.UNALIGNED)


def _least_stages(config: KernelConfig) -> int:
    return 1 if config.family is Family.LATENCY or not _uses_wgmma(config) else 2


def _sharing(config: KernelConfig) -> int:
    return config.splits if config.split is Split.CLUSTER else 1


def _split_is_possible(config: KernelConfig) -> bool:
    if config.split in (Split.NONE, Split.STREAM):
        return config.splits == 1 and (config.split is Split.NONE or config.family is Family.WS_PERSISTENT)
    return config.splits > 1 and config.family in (Family.SPLITK, Family.SKINNY)


def _slices_are_whole(config: KernelConfig) -> bool:
    p_lines = config.bk if config.p_width else config.bm
    q_lines = config.bk if config.q_width else config.bn
    return p_lines % (8 * config.cluster_q) == 0 and q_lines % (8 * config.cluster_p) == 0


def _least_group(config: KernelConfig) -> int:
    """The shortest band that the family has: a longer one than C is then the same."""
    return min(getattr(FAMILIES[config.family], "GROUPS", (config.group,)))


def _even(problem: Problem) -> Layout:
    """The layout of B whose rows are better aligned."""
    return Layout.NN if math.gcd(problem.n, 2) > math.gcd(problem.k, 2) else Layout.TN
