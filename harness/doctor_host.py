"""What `hgemm doctor` looks at on every machine, and the test of the CPU's instrument."""

from __future__ import annotations

import os
import platform
import random
import secrets
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from harness import isolation
from harness.cache import Cache
from harness.compilers import compiler_for
from harness.devices import UNSCORED_OPERATIONS, ArenaLayout, OperationInfo, WindowTime
from harness.diagnosis import Check, Outcome
from harness.installation import DISTRIBUTION, extras, strangers
from harness.machine import DeviceLock, choose_device, cuda_cards
from harness.model import InfraError
from harness.plan import Language
from harness.problem import Problem
from harness.profiles import profile_names
from harness.protocol import protocol_for
from harness.record import SUBMISSION, Interval, L2State

if TYPE_CHECKING:
    from harness.devices.cpu import CpuDevice

AA_SHAPES = ("64x64x64", "33x129x257", "256x256x256")
"""Shapes of the A/A test: windows of many launches, of some, and of few."""
AA_SLOTS = 34
AA_TOLERANCE = 0.05
"""How far from 1 the geometric mean of A/A may be: the half-width at which the CPU's protocol stops."""

_KIB = 1024


def host_checks() -> Iterator[Check]:
    """Everything that needs no device, one by one as it is found."""
    yield Check(
        name="python",
        outcome=Outcome.OK,
        detail=f"{platform.python_version()} on {platform.system()}, {len(os.sched_getaffinity(0))} processors",
    )
    yield _packages()
    yield from _extras()
    yield from _compilers()
    yield _cache()
    yield _isolation()
    yield _devices()


def cpu_checks() -> Iterator[Check]:
    """The instrument of the CPU device, and what it is worth."""
    yield _instrument()
    yield Check(
        name="ranking", outcome=Outcome.OK, detail="results of this device are not ranked: a CPU only exercises the pipeline"
    )


def aa_ratio(device: CpuDevice, problem: Problem) -> Interval:
    """One operation timed under two names by the windows, rounds and intervals of a run: the truth is 1."""
    from harness.baselines.torch_matmul import NAME_FP32
    from harness.timing.offline import score_rounds, speedups
    from harness.verify.inputs import InputKind, fill

    protocol = protocol_for(device.profile)
    layout = ArenaLayout.plan(problem, AA_SLOTS, device.profile.l2_bytes, 0)
    memory = device.memory(layout.total_bytes)
    device.open_problem(layout)
    operation: OperationInfo = device.bind_baselines((NAME_FP32,), None)[0]
    sets = layout.sets(memory, operation.layout)
    fill(InputKind.NORMAL, sets.a, sets.b, secrets.randbits(62))
    rng = random.Random(secrets.randbits(62))

    def window(launches: int) -> WindowTime:
        slots = tuple(rng.sample(range(AA_SLOTS), launches + UNSCORED_OPERATIONS))
        return device.window(operation.key, slots, L2State.COLD, UNSCORED_OPERATIONS)

    launches = max(1, min(AA_SLOTS - UNSCORED_OPERATIONS, protocol.window_ns // window(1).window_ns))

    def time_round(order: tuple[str, ...], number: int) -> Mapping[str, WindowTime]:
        return {name: window(launches) for name in order}

    twice = {SUBMISSION: launches, "again": launches}
    rounds = score_rounds(twice, time_round, protocol.target_half_width, rng.getrandbits(62))
    return speedups(rounds.windows, twice)["again"]


def _packages() -> Check:
    others = strangers()
    if not others:
        return Check(name="packages", outcome=Outcome.OK, detail=f"{DISTRIBUTION} alone provides its packages")
    named = "; ".join(f"{package} is also installed by {', '.join(names)}" for package, names in others.items())
    mend = f"install {DISTRIBUTION} in an environment of its own"
    return Check(name="packages", outcome=Outcome.FAIL, detail=f"{named}, which breaks both", mend=mend)


def _extras() -> Iterator[Check]:
    found = {extra.name: extra for extra in extras()}
    has_gpu = bool(cuda_cards())
    for name, extra in found.items():
        if name == "gpu-cu12" and not (has_gpu and found["gpu"].missing):
            continue
        if not extra.missing:
            detail = ", ".join(f"{distribution} {number}" for distribution, number in extra.present.items())
            yield Check(name=f"extra {name}", outcome=Outcome.OK, detail=detail)
            continue
        needed = name == "build" or (name == "gpu" and has_gpu)
        outcome = Outcome.WARN if needed else Outcome.OK
        detail = f"not installed: {', '.join(extra.missing)}"
        yield Check(name=f"extra {name}", outcome=outcome, detail=detail, mend=extra.mend)


def _compilers() -> Iterator[Check]:
    wanted = (
        ("c compiler", Language.C, "nvrtc", Outcome.FAIL),
        ("cuda compiler", Language.CUDA, "nvrtc", Outcome.WARN),
        ("ptx compiler", Language.PTX, "nvrtc", Outcome.WARN),
        ("nvcc", Language.CUDA, "nvcc", Outcome.OK),
    )
    for name, language, choice, otherwise in wanted:
        try:
            compiler = compiler_for(language, choice)
        except InfraError as error:
            needed = "; only --compiler nvcc needs it" if name == "nvcc" else ""
            yield Check(name=name, outcome=otherwise, detail=f"absent{needed}", mend=str(error))
            continue
        assert compiler is not None
        place = getattr(compiler, "path", "")
        yield Check(name=name, outcome=Outcome.OK, detail=f"{compiler.identity.splitlines()[0]} {place}".rstrip())


def _cache() -> Check:
    cache = Cache.default()
    try:
        info = cache.info()
        with cache.staging():  # which makes it where this is the first command here
            free_gib = cache.free_bytes() / _KIB**3
    except InfraError as error:
        return Check(name="cache", outcome=Outcome.FAIL, detail=f"{cache.directory} cannot be used", mend=str(error))
    held = f"{info.entries} built kernels, {info.size_bytes / _KIB**2:.1f} MiB"
    return Check(name="cache", outcome=Outcome.OK, detail=f"{info.directory}: {held}, {free_gib:.1f} GiB free")


def _isolation() -> Check:
    lacking = isolation.missing()
    taken = lacking or "plan.py and native code run without network, and cannot trace the harness or read its memory"
    mend = "install util-linux, or run where user namespaces are allowed" if lacking else ""
    detail = f"{taken}; {isolation.NOT_TAKEN_AWAY}"
    return Check(name="isolation", outcome=Outcome.WARN if lacking else Outcome.OK, detail=detail, mend=mend)


def _devices() -> Check:
    cards = cuda_cards()
    found = ", ".join(f"{card.name} ({card.profile.name})" for card in cards) or "no CUDA device with a profile"
    planned = f"plans and builds also for {', '.join(name for name in profile_names() if name != 'cpu')}"
    return Check(name="devices", outcome=Outcome.OK, detail=f"cpu, {found}; {planned}")


def _instrument() -> Check:
    from harness.devices.cpu import CpuDevice
    from harness.timing.statistics import agreement

    lock = DeviceLock(choose_device("cpu").uuid)
    try:
        lock.acquire()
    except InfraError as error:
        return Check(name="instrument", outcome=Outcome.WARN, detail="not tested", mend=str(error))
    try:
        device = CpuDevice()
        try:
            found = agreement([aa_ratio(device, Problem.parse(shape)) for shape in AA_SHAPES])
        finally:
            device.kill()
    finally:
        lock.release()
    detail = (
        f"the same operation under two names reads {found.geomean:.3f} over {found.intervals} shapes, "
        f"{found.coverage:.0%} of the intervals hold 1, median half-width {found.median_half_width:.1%}"
    )
    right = 1 - AA_TOLERANCE <= found.geomean <= 1 + AA_TOLERANCE
    mend = "" if right else "end what else runs on this machine and measure again"
    return Check(name="instrument", outcome=Outcome.OK if right else Outcome.WARN, detail=detail, mend=mend)
