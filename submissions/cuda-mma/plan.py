"""Which tile, how many splits of K and which layout of B to use for a shape on a device."""

from __future__ import annotations

import math
from typing import NamedTuple

from harness.plan import Kernel, Launch, Layout, Plan, Pointer, Scalar, Unsupported
from harness.problem import Problem
from harness.profiles import DeviceProfile

MAX_WORKSPACE_BYTES = 256 << 20
REDUCE_THREADS = 128
REDUCE_COLUMNS = 4

# Rates and latencies of the cost model, in clocks where no other unit is named. Only their proportions matter.
HOPPER_MMA_SYNC_RATE = 0.62  # of the peak, which only wgmma reaches there
SHARED_BYTES_PER_CLOCK = 128
L2_BYTES_PER_CLOCK_PER_SM = 28
MEMORY_LATENCY = 1200
BARRIER = 40
MMA_LATENCY = 35
START_AND_END = 1500
SECOND_KERNEL_NS = 1200
EXPOSED = 0.2  # of the shorter of computing and reading from memory, which do not overlap wholly


class Tile(NamedTuple):
    """One variant of the kernel: the defines of kernels/hgemm.cu."""

    m: int
    n: int
    k: int
    warps_m: int
    warps_n: int
    warps_k: int
    stages: int
    ctas_per_sm: int

    @property
    def threads(self) -> int:
        """Threads of one CTA."""
        return 32 * self.warps_m * self.warps_n * self.warps_k

    @property
    def stage_bytes(self) -> int:
        """Bytes of A and B in one stage."""
        return 2 * self.k * (self.m + self.n)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of one CTA."""
        return self.stages * self.stage_bytes

    def resident(self, device: DeviceProfile) -> int:
        """CTAs that one multiprocessor holds (each CTA costs 1 KiB of the system's own)."""
        return min(self.ctas_per_sm, device.shared_bytes_per_sm // (self.shared_bytes + 1024))


TILES = (
    Tile(128, 256, 64, 2, 4, 1, stages=3, ctas_per_sm=1),
    Tile(128, 256, 32, 2, 4, 1, stages=4, ctas_per_sm=1),
    Tile(128, 128, 64, 2, 2, 1, stages=3, ctas_per_sm=2),
    Tile(128, 128, 32, 2, 2, 1, stages=4, ctas_per_sm=2),
    Tile(64, 256, 64, 1, 4, 1, stages=3, ctas_per_sm=1),
    Tile(64, 128, 64, 2, 2, 1, stages=4, ctas_per_sm=2),
    Tile(128, 64, 64, 2, 2, 1, stages=4, ctas_per_sm=2),
    Tile(64, 64, 64, 2, 2, 1, stages=4, ctas_per_sm=3),
    Tile(64, 32, 64, 2, 1, 2, stages=6, ctas_per_sm=3),
    Tile(32, 64, 64, 1, 2, 2, stages=6, ctas_per_sm=3),
    Tile(32, 32, 128, 1, 1, 4, stages=4, ctas_per_sm=3),
    Tile(16, 64, 128, 1, 1, 4, stages=4, ctas_per_sm=2),
    Tile(16, 128, 64, 1, 2, 2, stages=5, ctas_per_sm=2),
)
UNALIGNED_TILE = Tile(64, 64, 64, 2, 2, 1, stages=4, ctas_per_sm=3)
SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)


class Operands(NamedTuple):
    """Layout of B, and to how many numbers (8, 2 or 1) the rows of A and B are aligned."""

    layout: Layout
    a_vector: int
    b_vector: int


class Choice(NamedTuple):
    """A tile, and the range of K that each CTA works on."""

    tile: Tile
    k_per_split: int
    splits: int


def plan(problem: Problem, device: DeviceProfile) -> Plan | Unsupported:
    """The plan for one shape."""
    operands = choose_operands(problem)
    choices = candidates(problem, device, operands)
    if not choices:
        return Unsupported(reason=f"no tile fits into the shared memory of {device.name}")
    return build(problem, device, operands, min(choices, key=lambda choice: estimate_ns(problem, device, choice)))


def choose_operands(problem: Problem) -> Operands:
    """The layout of B whose rows are better aligned; NN where that makes no difference."""
    along_k, along_n = _alignment(problem.k), _alignment(problem.n)
    if along_n >= along_k:
        return Operands(Layout.NN, along_k, along_n)
    return Operands(Layout.TN, along_k, along_k)


def candidates(problem: Problem, device: DeviceProfile, operands: Operands) -> list[Choice]:
    """Every tile that fits the device, with every useful number of splits."""
    aligned = operands.a_vector == operands.b_vector == 8
    found = []
    for tile in TILES if aligned else (UNALIGNED_TILE,):
        if tile.shared_bytes <= device.shared_bytes_per_block:
            found += [choice for choice in _splits(problem, tile) if choice.splits == 1 or workspace(problem, choice)]
    return found


def estimate_ns(problem: Problem, device: DeviceProfile, choice: Choice) -> float:
    """Time by a model: waves of CTAs, each bound by latency or by the busiest of tensor cores, shared memory and L2."""
    tile = choice.tile
    clocks_per_ns = device.max_clock_mhz / 1000
    resident = tile.resident(device)
    stages = choice.k_per_split // tile.k
    latency, throughput = _stage_clocks(tile, device)
    end = tile.m * tile.n * (4 if choice.splits > 1 else 2) / L2_BYTES_PER_CLOCK_PER_SM

    def wave(ctas: int) -> float:
        return ctas * end + stages * max(latency, ctas * throughput)

    ctas = math.ceil(problem.m / tile.m) * math.ceil(problem.n / tile.n) * choice.splits
    full, rest = divmod(ctas, resident * device.sm_count)
    clocks = START_AND_END + full * (START_AND_END / resident + wave(resident)) + wave(math.ceil(rest / device.sm_count))
    compute_ns, memory_ns = clocks / clocks_per_ns, problem.bytes_total / device.copy_bandwidth_bytes_per_s * 1e9
    total = max(compute_ns, memory_ns) + EXPOSED * min(compute_ns, memory_ns)
    if choice.splits > 1:
        l2_bytes_per_ns = L2_BYTES_PER_CLOCK_PER_SM * device.sm_count * clocks_per_ns
        total += SECOND_KERNEL_NS + workspace(problem, choice) / l2_bytes_per_ns
    return total


def build(problem: Problem, device: DeviceProfile, operands: Operands, choice: Choice) -> Plan:
    """Write a choice down as launches."""
    tile, splits = choice.tile, choice.splits
    tiles_m, tiles_n = math.ceil(problem.m / tile.m), math.ceil(problem.n / tile.n)
    vectors = "" if operands.a_vector == operands.b_vector == 8 else f"-a{operands.a_vector}-b{operands.b_vector}"
    name = f"hgemm-{tile.m}x{tile.n}x{tile.k}-{operands.layout.lower()}{vectors}"
    scratch = Pointer(buffer="workspace") if splits > 1 else Scalar(dtype="u64", value=0)
    sizes = (problem.m, problem.n, problem.k, choice.k_per_split, _band(tile, tiles_m, tile.resident(device) * device.sm_count))
    launch = Launch(
        kernel=name,
        grid=(tiles_m * tiles_n, 1, splits),
        block=(tile.threads, 1, 1),
        dynamic_shared_bytes=tile.shared_bytes,
        arguments=(Pointer(buffer="A"), Pointer(buffer="B"), Pointer(buffer="C"), scratch, *map(_int, sizes)),
    )
    kernels = {name: Kernel(language="cuda", source="kernels/hgemm.cu", entry="hgemm", defines=_defines(tile, operands))}
    if splits == 1:
        return Plan(layout=operands.layout, steps=(launch,), kernels=kernels)
    kernels["reduce"] = Kernel(language="cuda", source="kernels/reduce.cu", entry="reduce")
    quads = problem.m * math.ceil(problem.n / REDUCE_COLUMNS)
    reduce = Launch(
        kernel="reduce",
        grid=(math.ceil(quads / REDUCE_THREADS), 1, 1),
        block=(REDUCE_THREADS, 1, 1),
        programmatic=_architecture(device) >= 90,
        arguments=(Pointer(buffer="workspace"), Pointer(buffer="C"), *map(_int, (problem.m, problem.n, splits))),
    )
    bytes_needed = workspace(problem, choice)
    return Plan(layout=operands.layout, steps=(launch, reduce), kernels=kernels, workspace_bytes=bytes_needed)


def workspace(problem: Problem, choice: Choice) -> int:
    """Bytes of the fp32 sums of all splits; 0 if that is more than is worth using."""
    columns = math.ceil(problem.n / REDUCE_COLUMNS) * REDUCE_COLUMNS
    size = 4 * choice.splits * problem.m * columns
    return size if size <= MAX_WORKSPACE_BYTES else 0


def _splits(problem: Problem, tile: Tile) -> list[Choice]:
    """Distinct divisions of K into ranges of whole stages, none empty."""
    stages = math.ceil(problem.k / tile.k)
    found = {}
    for wanted in SPLITS:
        per_split = math.ceil(stages / wanted)
        splits = math.ceil(stages / per_split)
        found[splits] = Choice(tile, per_split * tile.k, splits)
    return list(found.values())


def _stage_clocks(tile: Tile, device: DeviceProfile) -> tuple[float, float]:
    """Clocks of one stage of one CTA: what it takes alone, and what it occupies of its multiprocessor."""
    rate = device.peak_flops_per_clock_per_sm * (HOPPER_MMA_SYNC_RATE if _architecture(device) >= 90 else 1.0)
    warp_m, warp_n = tile.m // tile.warps_m, tile.n // tile.warps_n
    steps = tile.k // 16 // tile.warps_k
    step_reads = tile.threads // 32 * (warp_m + warp_n) * 16 * 2
    tensor = 2 * tile.m * tile.n * tile.k / rate
    shared = (steps * step_reads + tile.stage_bytes) / SHARED_BYTES_PER_CLOCK
    throughput = max(tensor, shared, tile.stage_bytes / L2_BYTES_PER_CLOCK_PER_SM)
    multiply = 2 * warp_m * warp_n * 16 / (rate / 4)
    latency = max(BARRIER + steps * max(MMA_LATENCY, multiply), MEMORY_LATENCY / (tile.stages - 1))
    return latency, throughput


def _band(tile: Tile, tiles_m: int, together: int) -> int:
    """Rows of tiles in a band such that the CTAs that run together touch the fewest rows of A and columns of B."""
    heights = [height for height in (1, 2, 4, 8, 16, 32) if height <= tiles_m]
    return min(heights, key=lambda height: height * tile.m + math.ceil(together / height) * tile.n)


def _alignment(extent: int) -> int:
    """To how many numbers rows of this length are aligned, of those that there is a variant for."""
    return next(vector for vector in (8, 2, 1) if extent % vector == 0)


def _defines(tile: Tile, operands: Operands) -> dict[str, str]:
    values = {
        "BLOCK_M": tile.m,
        "BLOCK_N": tile.n,
        "BLOCK_K": tile.k,
        "WARPS_M": tile.warps_m,
        "WARPS_N": tile.warps_n,
        "WARPS_K": tile.warps_k,
        "STAGES": tile.stages,
        "CTAS_PER_SM": tile.ctas_per_sm,
        "B_TRANSPOSED": int(operands.layout is Layout.TN),
        "A_VECTOR": operands.a_vector,
        "B_VECTOR": operands.b_vector,
    }
    return {name: str(value) for name, value in values.items()}


def _architecture(device: DeviceProfile) -> int:
    return int(device.architecture[3:].rstrip("af"))


def _int(value: int) -> Scalar:
    return Scalar(dtype="i32", value=value)
