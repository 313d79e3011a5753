"""An analytic model of what a configuration takes: waves, tensor work, bytes, latencies. It orders configurations, no more.

Rates of wgmma by width are published (arXiv 2402.13499). The other constants began as properties of an H200 and were then
fitted, one after the other, to 32,637 timed configurations (agents/data), so each stands for more than its name says.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from agents.config import Cache, Family, KernelConfig, Split, Store
from agents.families import output, ws_persistent
from agents.families.common import clusters_at_once
from agents.space import Space
from harness.problem import Problem
from harness.profiles import DeviceProfile

CLOCKS_PER_NS = 1.8
"""Of a multiprocessor that works: the power limit keeps it below its maximum."""
LAUNCH_NS = 1300.0
"""From one operation to the next where both are small."""
SECOND_KERNEL_NS = 3000.0
SECOND_KERNEL_NS_PER_BYTE = 0.06
"""Of the sums of one tile, which a first kernel writes and the second waits for."""
ADDING_NS = 1400.0
"""From the last CTA's sums to C, where all add to the same memory."""
LOAD_LATENCY = 1700.0
"""Clocks from the first request of cold data to its arrival."""
REGISTERS_END = 350.0
PROLOGUE = {Family.LATENCY: 250.0, Family.UNALIGNED: 250.0, Family.REGISTERS: 60.0}
"""Clocks before the first load is under way."""
USUAL_PROLOGUE = 500.0
CLUSTER_PROLOGUE = 900.0
"""Measured as 1,200 where both barriers of a cluster waited for all stores; they no longer do."""
STAGE_LATENCY = 60.0
"""Clocks of a stage's barriers and of starting its instructions, which overlap with those of another warpgroup only."""
L2_BYTES_PER_CLOCK = 75.0
"""That one multiprocessor reads from L2, when all read."""
STORE_BYTES_PER_CLOCK = 32.0
END = {Store.TMA: 900.0, Store.ROWS: 400.0, Store.WIDE: 950.0, Store.DIRECT: 600.0}
"""Clocks from the last instruction to the last byte of C on its way."""
TILE_END = 250.0
"""The same between two tiles, where stores go on meanwhile."""
EVEN_COLUMNS = 128
UNEVEN_COST = 1.5
"""Of writing tiles whose rows in C are not multiples of 256 bytes."""
DIRECT_STORE_COST = 1.3
"""Registers are stored in pieces of 16 bytes: so much slower than through TMA."""
NARROW = {8: 0.24, 16: 0.43, 24: 0.58, 32: 0.72, 48: 0.9}
"""Share of its peak rate that wgmma reaches with few rows of Q."""
SUSTAINED = 0.87
EXPOSED = 0.35
"""Of the shorter of computing and reading memory, what does not overlap."""
INTERFERENCE = 0.3
"""Of the shorter of multiplying and loading from L2, what does not overlap: both read shared memory and heat the chip."""
MMA_SYNC_RATE = 0.2
CROSS_LINE_COST = 1.02
"""An operand stored across K is read in more boxes."""
ATOMIC_COST = 2.0
"""Of a byte that is added to, against one that is written."""
EXCHANGE = 1000.0
"""Clocks from the last instruction of one CTA to the flag that another one sees."""

EXPLORED = 2
"""One in so many of a ranking may be there as the best of its mechanism: the model knows sizes better than mechanisms."""
HOPELESS = 2.0
"""But not one that promises to take so many times as long as the best."""
WORTH_PROCESSES = 100
"""Problems from which on several processes pay for their start."""

_space: Space | None = None
"""Of a process that ranks for another."""


class Work(NamedTuple):
    """What one CTA does for one tile, in clocks."""

    mainloop: float
    epilogue: float


def estimate_ns(config: KernelConfig, problem: Problem, device: DeviceProfile) -> float:
    """Nanoseconds that a configuration takes for a problem with cold data, by the model."""
    tiles = config.tiles(problem) * config.cluster_ctas
    ctas = tiles * config.splits
    sharing = config.cluster_ctas * (config.splits if config.split is Split.CLUSTER else 1)
    slots = clusters_at_once(config, device) // config.ctas_per_sm * sharing
    together = min(config.ctas_per_sm, max(1, math.ceil(ctas / slots)))
    work = _work(config, problem, together)
    prologue = PROLOGUE.get(config.family, USUAL_PROLOGUE) + (CLUSTER_PROLOGUE if config.cluster_ctas > 1 else 0.0)
    if config.family is Family.OUTPUT:
        turns = math.ceil(config.tiles(problem) / output.ctas(config, problem, device))
        prologue += 2 * config.bn * problem.k / L2_BYTES_PER_CLOCK
        even = (config.bm if config.swapped else config.bn) % EVEN_COLUMNS == 0
        stored = (work.epilogue - END[config.store]) * (1.0 if even else UNEVEN_COST) + TILE_END
        hidden = min(stored, work.mainloop) * (0.95 if config.ping_pong else 0.45)
        clocks = END[config.store] + turns * (work.mainloop + stored) - (turns - 1) * hidden
    elif config.family is Family.WS_PERSISTENT:
        shares = ws_persistent.stream(config, problem, device)
        rounds = config.tiles(problem) / shares.clusters
        waves = math.ceil(rounds)
        hidden = min(work.epilogue, work.mainloop) * (0.95 if config.ping_pong else 0.6 if config.buffers > 2 else 0.45)
        clocks = (rounds if shares.tiles else waves) * work.mainloop + waves * work.epilogue - (waves - 1) * hidden
    else:
        waves = math.ceil(ctas / (slots * together))
        clocks = waves * (work.mainloop + work.epilogue + (prologue if waves > 1 else 0.0) / together)
    busy_ns = (prologue + LOAD_LATENCY + clocks) / CLOCKS_PER_NS
    memory_ns = problem.bytes_total / (device.copy_bandwidth_bytes_per_s * _reach(ctas, config, device)) * 1e9
    reread_ns = _reread_bytes(config, problem, device) / device.copy_bandwidth_bytes_per_s * 1e9
    total = LAUNCH_NS + max(busy_ns, memory_ns + reread_ns) + EXPOSED * min(busy_ns, memory_ns)
    return total + _adding_up_ns(config, problem, device)


def ranked(space: Space, problem: Problem, most: int, distinct: bool = False) -> list[KernelConfig]:
    """The legal configurations that promise most, best first; the best of each mechanism is among them.

    Args:
        space: all configurations.
        problem: what they shall compute.
        most: how many.
        distinct: only the best of those that divide the problem alike.
    """
    order = sorted((estimate_ns(config, problem, space.device), space.index[config]) for config in space.legal(problem))
    if distinct:
        order = list({space.designs[index]: (estimate, index) for estimate, index in reversed(order)}.values())[::-1]
    firsts: dict[Hashable, tuple[float, int]] = {}
    for estimate, index in order:
        if estimate <= HOPELESS * order[0][0]:
            firsts.setdefault(_mechanism(space.configs[index]), (estimate, index))
    explored = list(firsts.values())[: most // EXPLORED]
    rest = [each for each in order[:most] if each not in explored]
    chosen = sorted((*explored, *rest[: most - len(explored)]))
    return [space.configs[index] for _, index in chosen]


def _mechanism(config: KernelConfig) -> Hashable:
    """What a configuration shares with those that differ from it only in sizes and hints."""
    if config.split is Split.STREAM:
        return (config.split, config.accumulator)
    together = (config.ping_pong, config.ctas_per_sm, config.cluster_p, config.cluster_q, config.store is Store.WIDE)
    return (config.family if config.split is Split.NONE else config.split, config.accumulator, *together)


def ranked_all(
    space: Space, problems: Sequence[Problem], most: int, distinct: bool = False
) -> dict[Problem, list[KernelConfig]]:
    """`ranked` of every problem, on all processors where there are many."""
    if len(problems) < WORTH_PROCESSES:
        return {problem: ranked(space, problem, most, distinct) for problem in problems}
    with ProcessPoolExecutor(initializer=_open_space, initargs=(space.device,)) as pool:
        found = pool.map(functools.partial(_ranked_indices, most, distinct), problems, chunksize=8)
        return {problem: [space.configs[index] for index in indices] for problem, indices in zip(problems, found, strict=True)}


def best(space: Space, problem: Problem) -> KernelConfig:
    """The configuration that promises most: the baseline policy."""
    return ranked(space, problem, 1)[0]


def _open_space(device: DeviceProfile) -> None:
    global _space
    _space = Space(device)


def _ranked_indices(most: int, distinct: bool, problem: Problem) -> list[int]:
    assert _space is not None
    return [_space.index[config] for config in ranked(_space, problem, most, distinct)]


def _work(config: KernelConfig, problem: Problem, together: int) -> Work:
    """Clocks of one tile while `together` CTAs share a multiprocessor."""
    if config.family is Family.REGISTERS:
        return _work_in_registers(config, problem, together)
    stages = math.ceil(config.k_stages(problem) / config.splits)
    rate = 4096 * SUSTAINED * NARROW.get(config.bn, 1.0)
    if config.family is Family.UNALIGNED:
        rate = 4096 * MMA_SYNC_RATE
    tensor = 2 * config.bm * config.bn * config.bk / rate
    loaded = 2 * config.bk * (config.bm / config.cluster_q + (0 if config.held else config.bn / config.cluster_p))
    load = loaded / L2_BYTES_PER_CLOCK * (CROSS_LINE_COST if config.p_width or config.q_width else 1.0)
    depth = max(1, config.stages - 1)
    started = tensor + (0.0 if config.ping_pong or config.warpgroups > 1 else STAGE_LATENCY)
    shared = together * (max(tensor, load) + INTERFERENCE * min(tensor, load))
    stage = max(started, load, LOAD_LATENCY / depth, shared)
    size = 2 * config.bm * config.bn * (2 if config.split in (Split.WORKSPACE, Split.KERNEL) else 1)
    slow = DIRECT_STORE_COST if config.store is Store.DIRECT and config.split is Split.NONE else 1.0
    hint = 0.97 if config.cache in (Cache.STREAM_C, Cache.AHEAD) else 1.0
    return Work(stages * stage, END[config.store] + together * slow * hint * size / STORE_BYTES_PER_CLOCK)


def _work_in_registers(config: KernelConfig, problem: Problem, together: int) -> Work:
    """Every warp has `bk` of K under way; what follows waits for memory again."""
    span = 4 * config.warpgroups * config.bk
    rounds = math.ceil(problem.k / span)
    terms = min(problem.k, span)
    load = 2 * terms * (config.bm + config.bn) / L2_BYTES_PER_CLOCK
    tensor = 2 * config.bm * config.bn * terms / (4096 * MMA_SYNC_RATE)
    work = together * max(load, tensor)
    return Work((rounds - 1) * (LOAD_LATENCY + work) + work, REGISTERS_END)


def _reach(ctas: int, config: KernelConfig, device: DeviceProfile) -> float:
    """Share of the bandwidth that so many CTAs can ask for: each has a ring's worth of bytes under way."""
    under_way = min(ctas, device.sm_count * config.ctas_per_sm) * config.stages * config.stage_bytes
    needed = device.copy_bandwidth_bytes_per_s * 1e-9 * LOAD_LATENCY / CLOCKS_PER_NS
    return min(1.0, 0.25 + under_way / needed / 2)


def _reread_bytes(config: KernelConfig, problem: Problem, device: DeviceProfile) -> float:
    """Bytes that are read from memory again, because a wave's operands are more than L2 keeps."""
    if problem.a_bytes + problem.b_bytes <= device.l2_bytes // 2:
        return 0.0
    wave = max(1, device.sm_count * config.ctas_per_sm)
    band = min(config.group, config.tiles_p(problem)) * config.cluster_p
    width = max(1.0, wave / band)
    rows, columns = band * config.bm, width * config.bn * config.cluster_q
    waves = max(1.0, config.tiles(problem) * config.cluster_ctas / wave)
    touched = waves * 2 * problem.k * (min(rows, config.rows(problem)) + min(columns, config.columns(problem)))
    return max(0.0, touched - problem.a_bytes - problem.b_bytes) * 0.5


def _adding_up_ns(config: KernelConfig, problem: Problem, device: DeviceProfile) -> float:
    if config.split is Split.NONE:
        return 0.0
    tile_bytes = 4 * config.bm * config.bn
    if config.split is Split.CLUSTER:
        return (800.0 + 2 * tile_bytes / L2_BYTES_PER_CLOCK) / CLOCKS_PER_NS
    everything = tile_bytes * config.tiles(problem) * config.splits
    l2_bytes_per_ns = L2_BYTES_PER_CLOCK * CLOCKS_PER_NS
    if config.split is Split.STREAM:
        shares = ws_persistent.stream(config, problem, device)
        exchanged = max(2.0, shares.clusters / config.tiles(problem)) * tile_bytes if shares.tiles else 0.0
        return EXCHANGE / CLOCKS_PER_NS + exchanged / l2_bytes_per_ns
    if config.split is Split.ATOMIC:
        added_ns = ATOMIC_COST * everything / (l2_bytes_per_ns * device.sm_count)
        return ADDING_NS + 2 * tile_bytes / l2_bytes_per_ns + added_ns
    if config.split is Split.KERNEL:
        return SECOND_KERNEL_NS + SECOND_KERNEL_NS_PER_BYTE * tile_bytes + everything / (l2_bytes_per_ns * device.sm_count)
    return ADDING_NS + tile_bytes * config.splits / l2_bytes_per_ns + everything / (l2_bytes_per_ns * device.sm_count)
