"""What the families of TMA kernels share: rendering, tensor maps, arguments and the launch."""

from __future__ import annotations

import functools
import hashlib
import math
import re
from typing import TYPE_CHECKING, NamedTuple

from agents.config import REGISTERS, Cache, Family, KernelConfig, Split, Store
from harness.model import MissingDependencyError
from harness.plan import Kernel, Language, Launch, Layout, Pointer, Scalar, ScalarType, Swizzle, TensorMap
from harness.plan_arguments import Argument, Buffer, L2Promotion
from harness.problem import Problem, Track

if TYPE_CHECKING:
    from jinja2 import Environment

    from harness.profiles import DeviceProfile

ENTRY = "hgemm"

SIDES = tuple((layout, swapped) for layout in Layout for swapped in (False, True))
"""Layouts of B, each with P along M and along N."""
SHARED_BYTES = 232448
"""Shared memory that a ring may fill with one CTA per multiprocessor; smaller devices refuse what does not fit."""
RESERVED_BYTES = 1024
"""Shared memory that the system keeps of every CTA."""
MOST_STAGES = 8
ALIGNMENT_BYTES = 256
"""Between parts of a workspace."""


STAGED = (Store.TMA, Store.ROWS)
"""Where C goes through shared memory."""
PROMOTION = L2Promotion.B128
"""Of loads: 256 bytes ask for lines that the next box asks for too, which costs up to 5 % where memory is the bound."""
GROUP = 32
"""Rows of Q that change places among each other where C is stored in wide pieces."""
IDLE = {3: 15, 4: 12, 6: 30, 8: 12}
"""Multiprocessors that clusters of so many CTAs, one to a multiprocessor, leave without work on an H200, as its driver says
(cuOccupancyMaxActiveClusters): a cluster lies within one GPC. More clusters than fit were seen to take twice as long."""


class Source(NamedTuple):
    """A rendered kernel."""

    name: str
    """Name of the kernel in plans; equal names are equal text."""
    text: str
    """CUDA C++."""

    @property
    def path(self) -> str:
        """Its file in a submission."""
        return f"kernels/{self.name}.cu"

    def kernel(self, entry: str = ENTRY) -> Kernel:
        """The entry as a plan names it."""
        return Kernel(language=Language.CUDA, source=self.path, entry=entry)


def render(template: str, config: KernelConfig, even: bool = True) -> Source:
    """The source of a configuration.

    Args:
        template: name of the template.
        config: a configuration whose rules hold.
        even: whether rows of C have an even length, so that two neighbours can be stored at once.

    Raises:
        MissingDependencyError: jinja2 is absent.
    """
    compiled = config.model_copy(
        update={
            "group": 1,
            "splits": config.splits if config.split is Split.CLUSTER else 1,
            "buffers": config.buffers if config.store in STAGED else 0,
        }
    )
    return _render(template, compiled, even or config.store is not Store.DIRECT)


def render_text(template: str, config: KernelConfig, **values: object) -> Source:
    """The source of a configuration from the values that its template names beside `c`, the configuration."""
    text = _environment().get_template(template).render(**values)
    head = f"// Generated from agents/templates/{template} for this configuration; edit the template instead.\n"
    described = f"// {config.model_dump_json(exclude={'group'}, exclude_defaults=True)}\n"
    marked = "" if config.deterministic else "// Not deterministic: the last bits depend on the order in which CTAs add up.\n"
    text = head + described + marked + "\n" + re.sub(r"\n{3,}", "\n\n", text.strip()) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    swapped = "-swap" if config.swapped else ""
    return Source(f"{config.family}-{config.bm}x{config.bn}x{config.bk}-{config.layout.lower()}{swapped}-{digest}", text)


@functools.lru_cache(maxsize=4096)
def _render(template: str, config: KernelConfig, even: bool) -> Source:
    given, taken = REGISTERS.get(config.warpgroups, (0, 0))
    derived = {
        "p_width": config.p_width,
        "q_width": config.q_width,
        "blocks": config.blocks,
        "panel": config.panel,
        "buffers": config.buffers or config.panels_through_ring,
        "round": config.round,
        "barrier_offset": config.barrier_offset,
        "tma_store": config.store is Store.TMA,
        "staged": config.store in STAGED,
        "wide": config.store is Store.WIDE,
        "persistent": config.family is Family.WS_PERSISTENT,
        "strips": config.strips,
        "even": even,
        "loaders": config.threads - 128 * config.warpgroups,
        "given_registers": given,
        "taken_registers": taken,
        "c_hint": config.cache in (Cache.STREAM_C, Cache.AHEAD),
        "ahead": config.cache is Cache.AHEAD,
        "halves": config.accumulator is Track.F16,
    }
    return render_text(template, config, c={**config.model_dump(mode="json"), **derived})


@functools.cache
def _environment() -> Environment:
    try:
        import jinja2
    except ImportError as error:
        raise MissingDependencyError("jinja2", "agents", "Rendering kernels") from error
    loader = jinja2.PackageLoader("agents", "templates")
    return jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, autoescape=False)


def deepest(config: KernelConfig, most: int = MOST_STAGES) -> KernelConfig:
    """The configuration with as many stages as fit, at most `most`."""
    room = (SHARED_BYTES + RESERVED_BYTES) // config.ctas_per_sm - RESERVED_BYTES
    for stages in range(most, 1, -1):
        deep = config.model_copy(update={"stages": stages})
        if deep.shared_bytes <= room:
            return deep
    return config


def clusters_at_once(config: KernelConfig, device: DeviceProfile) -> int:
    """Clusters that the device holds together, or CTAs without one: who waits for the end of another doubles the time."""
    size = config.cluster_ctas * (config.splits if config.split is Split.CLUSTER else 1)
    return max(1, (device.sm_count - IDLE.get(size, 0)) // size) * config.ctas_per_sm


def maps(config: KernelConfig, problem: Problem) -> tuple[TensorMap, TensorMap]:
    """Tensor maps of P and Q."""
    a = _operand(Buffer.A, 0, problem.m, problem.k, config, rows_are_p=not config.swapped)
    width = config.p_width or config.q_width
    b = _operand(Buffer.B, width, problem.n, problem.k, config, rows_are_p=config.swapped)
    return (b, a) if config.swapped else (a, b)


def output_map(config: KernelConfig, problem: Problem) -> TensorMap:
    """Tensor map of C."""
    return TensorMap(
        buffer=Buffer.C,
        dims=(problem.n, problem.m),
        strides_bytes=(2 * problem.n,),
        box=(64, config.panel) if config.swapped else (config.panel, 64),
        swizzle=_swizzle(128 if config.swapped else 2 * config.panel),
    )


def aligned(size_bytes: int) -> int:
    """Bytes of a part of a workspace after which another one begins."""
    return math.ceil(size_bytes / ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def arguments(config: KernelConfig, problem: Problem, *more: int) -> tuple[Argument, ...]:
    """Parameters that all kernels of the families begin with; `more` follows the extents of C."""
    c: Argument = output_map(config, problem) if config.store is Store.TMA else Pointer(buffer=Buffer.C)
    return (*maps(config, problem), c, *integers(*extents(config, problem), *more))


def extents(config: KernelConfig, problem: Problem) -> tuple[int, int, int]:
    """Rows and columns of C as P and Q have it, and numbers from one row of C to the next."""
    return config.rows(problem), config.columns(problem), problem.n


def raster(config: KernelConfig, problem: Problem) -> tuple[Scalar, ...]:
    """How tiles are numbered in bands along P, with the multipliers by which a kernel divides; see pieces/tile.cuh.j2."""
    tiles_p, tiles_q = config.tiles_p(problem), config.tiles_q(problem)
    group = min(config.group, tiles_p)
    divisors = (group * tiles_q, group, tiles_p % group or group)
    multipliers = (Scalar(dtype=ScalarType.U64, value=multiplier(divisor)) for divisor in divisors)
    return (*integers(tiles_p, tiles_q, group), *multipliers)


def multiplier(divisor: int) -> int:
    """By which a kernel divides numbers below 2^31: 2^63 / divisor, rounded up."""
    return -(-(1 << 63) // divisor)


def integers(*values: int) -> tuple[Scalar, ...]:
    """Parameters of type int."""
    return tuple(Scalar(dtype=ScalarType.I32, value=value) for value in values)


def one_tile_launch(config: KernelConfig, problem: Problem, name: str, arguments: tuple[Argument, ...]) -> Launch:
    """A launch of one CTA per tile and split."""
    return Launch(
        kernel=name,
        grid=(config.tiles_p(problem), config.tiles_q(problem), config.splits),
        block=(config.threads, 1, 1),
        cluster=(1, 1, config.splits) if config.split is Split.CLUSTER else None,
        dynamic_shared_bytes=config.shared_bytes,
        arguments=arguments,
    )


def _operand(buffer: Buffer, width: int, rows: int, k: int, config: KernelConfig, rows_are_p: bool) -> TensorMap:
    side, sharing = (config.bm, config.cluster_q) if rows_are_p else (config.bn, config.cluster_p)
    if config.store is Store.WIDE and not rows_are_p:
        # Row 8·b + 2·t + i of a group in shared memory is its row 8·t + 2·b + i in memory: i, then t, then b.
        return TensorMap(
            buffer=buffer,
            dims=(k, 2, 4, 4, rows // GROUP),
            strides_bytes=tuple(2 * k * each for each in (1, 8, 2, GROUP)),
            box=(64, 2, 4, 4, side // sharing // GROUP),
            swizzle=_swizzle(128),
            l2_promotion=PROMOTION,
        )
    return TensorMap(
        buffer=buffer,
        dims=(rows, k) if width else (k, rows),
        strides_bytes=(2 * (rows if width else k),),
        box=(width, config.bk // sharing) if width else (64, side // sharing),
        swizzle=_swizzle(2 * width if width else 128),
        l2_promotion=PROMOTION,
    )


def _swizzle(line_bytes: int) -> Swizzle:
    return {16: Swizzle.NONE, 32: Swizzle.B32, 64: Swizzle.B64, 128: Swizzle.B128}[line_bytes]
