"""The instrument measured: floors and peaks of this card, and whether windows read what they should. Runs in the worker."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from harness.devices import UNSCORED_OPERATIONS, ArenaLayout, BufferSet
from harness.model import Model, Name, Positive
from harness.plan import Layout
from harness.problem import Problem
from harness.record import Interval
from harness.timing.statistics import speedup

if TYPE_CHECKING:
    from harness.devices.cuda import CudaDevice
    from harness.devices.cuda_window import Window

ROUNDS = 20
LENGTH_SHAPES = ("64x64x64", "512x512x512", "1024x1024x1024")
MATRIX_SHAPE = "4096x4096x4096"
DELAY_SHAPE = "64x16384x16384"
"""Long enough that 3 % of it exceed a launch, and bound by memory, so that a delay does not move the clock."""
DELAYS = (0.03, 0.30)
LENGTH_WINDOW_NS = 1_000_000


class Reading(Model):
    """A ratio that the instrument should read, and what it read."""

    what: str
    """What was compared."""
    expected: float
    """The ratio that it should read."""
    read: Interval
    """The ratio that it read."""


class Examination(Model):
    """What the card and its instrument are like."""

    launch_ns: float
    """Time per launch of an empty kernel in a window: no operation is faster."""
    copy_bytes_per_s: float
    """Bandwidth of a large copy, bytes read plus written."""
    matrix_flops_per_s: float
    """Rate of a 4096³ product in a window."""
    readings: tuple[Reading, ...]
    """Windows of R against 2R operations, and an operation against itself with a delay."""
    baseline: Name
    """The operation that the readings use."""
    clock_mhz: Positive | None
    """Clock during the matrix products."""


def examine(device: CudaDevice) -> Examination:
    """Measure launch floor, bandwidth, matrix rate, window lengths and delays. Takes a few seconds."""
    launch_ns = _per_launch(device, lambda _: device.spin(0), [_nothing(device)] * 500)
    readings = [_length_reading(device, Problem.parse(shape)) for shape in LENGTH_SHAPES]
    delays = _delay_readings(device, Problem.parse(DELAY_SHAPE))
    matrix = _matrix_rate(device, Problem.parse(MATRIX_SHAPE))
    return Examination(
        launch_ns=launch_ns,
        copy_bytes_per_s=_copy_rate(device),
        matrix_flops_per_s=matrix.flops_per_s,
        readings=(*readings, *delays),
        baseline="cublas",
        clock_mhz=matrix.clock_mhz,
    )


def _length_reading(device: CudaDevice, problem: Problem) -> Reading:
    """Time per launch in windows of R operations over that in windows of 2R: 1 if a window adds nothing of its own."""
    buffers, enqueue = _operation(device, problem, 514)
    estimate = _per_launch(device, enqueue, buffers[:64])
    launches = max(1, min(len(buffers) // 2 - UNSCORED_OPERATIONS, int(LENGTH_WINDOW_NS / estimate) + 1))
    short = device.windows.capture(enqueue, buffers[: launches + UNSCORED_OPERATIONS], UNSCORED_OPERATIONS)
    long = device.windows.capture(enqueue, buffers[: 2 * launches + UNSCORED_OPERATIONS], UNSCORED_OPERATIONS)
    read = _interleaved(device, (short, launches), (long, 2 * launches))
    return Reading(what=f"{problem}: {launches} against {2 * launches} operations a window", expected=1.0, read=read)


def _delay_readings(device: CudaDevice, problem: Problem) -> list[Reading]:
    """An operation with a delay after it over the operation alone, for delays calibrated in windows of their own."""
    launches = 8
    buffers, enqueue = _operation(device, problem, launches + UNSCORED_OPERATIONS)
    plain = device.windows.capture(enqueue, buffers, UNSCORED_OPERATIONS)
    product_ns = _median([device.windows.time(plain).window_ns for _ in range(9)]) / launches
    readings = []
    for share in DELAYS:
        spin_ns, delay_ns = _calibrate(device, share * product_ns)

        def delayed(one: BufferSet, spin_ns: int = spin_ns) -> None:
            enqueue(one)
            device.spin(spin_ns)

        slow = device.windows.capture(delayed, buffers, UNSCORED_OPERATIONS)
        read = _interleaved(device, (slow, launches), (plain, launches))
        what = f"{problem} with a delay of {delay_ns:.0f} ns"
        readings.append(Reading(what=what, expected=1 + delay_ns / product_ns, read=read))
    return readings


class _MatrixRate(NamedTuple):
    flops_per_s: float
    clock_mhz: int | None


def _matrix_rate(device: CudaDevice, problem: Problem) -> _MatrixRate:
    buffers, enqueue = _operation(device, problem, 10)
    window = device.windows.capture(enqueue, buffers, UNSCORED_OPERATIONS)
    times = [device.windows.time(window) for _ in range(9)]
    launches = len(buffers) - UNSCORED_OPERATIONS
    best = sorted(times, key=lambda time: time.window_ns)[len(times) // 2]
    return _MatrixRate(problem.flops * launches / best.window_ns * 1e9, best.sm_clock_mhz)


def _calibrate(device: CudaDevice, wanted_ns: float) -> tuple[int, float]:
    """What to spin so that one launch among many takes that long, and how long it then takes."""
    nothing = [_nothing(device)] * 200

    def cost(spin_ns: int) -> float:
        return _per_launch(device, lambda _: device.spin(spin_ns), nothing)

    overhead = cost(20_000) - 20_000
    spin_ns = max(0, round(wanted_ns - overhead))
    return spin_ns, cost(spin_ns)


def _per_launch(device: CudaDevice, enqueue: Callable[[BufferSet], object], buffers: Sequence[BufferSet]) -> float:
    window = device.windows.capture(enqueue, buffers, UNSCORED_OPERATIONS)
    times = [device.windows.time(window).window_ns for _ in range(9)]
    device.windows.release(window)
    return _median(times) / (len(buffers) - UNSCORED_OPERATIONS)


def _interleaved(device: CudaDevice, first: tuple[Window, int], second: tuple[Window, int]) -> Interval:
    """Time per launch of the first window over the second's, from rounds in random order."""
    rng = random.Random(0)
    times: dict[int, list[int]] = {0: [], 1: []}
    for _ in range(ROUNDS):
        for which in rng.sample((0, 1), 2):
            times[which].append(device.windows.time((first, second)[which][0]).window_ns)
    return speedup(times[0], first[1], times[1], second[1])


def _operation(device: CudaDevice, problem: Problem, slots: int) -> tuple[list[BufferSet], Callable[[BufferSet], object]]:
    """Buffer sets of random numbers, and cuBLAS on them."""
    layout = ArenaLayout.plan(problem, slots, 4 * device.profile.l2_bytes, 0)
    memory = device.memory(layout.total_bytes)
    device.open_problem(layout)
    sets = layout.sets(memory, Layout.NN)
    sets.a.normal_()
    sets.b.normal_()
    (info,) = (info for info in device.bind_baselines(("cublas",), None) if info.layout is Layout.NN)
    buffers = [layout.buffers(memory, slot, Layout.NN) for slot in range(slots)]
    random.Random(0).shuffle(buffers)
    enqueue = device.enqueuer(info.key)
    for one in buffers[:2]:
        enqueue(one)
    return buffers, enqueue


def _copy_rate(device: CudaDevice) -> float:
    import torch

    source = torch.ones(1 << 29, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    nothing = [_nothing(device)] * (4 + UNSCORED_OPERATIONS)
    return 2 * source.nbytes / _per_launch(device, lambda _: torch.neg(source, out=target), nothing) * 1e9


def _nothing(device: CudaDevice) -> BufferSet:
    empty = device.memory(256)[:0]
    return BufferSet(empty, empty, empty, empty)


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
