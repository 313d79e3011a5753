"""The kernel families on a CPU: their sources compiled for an emulated Hopper (tests/emulator) and run as their plans say.

What the instructions of `pieces/ptx.cuh.j2` and `wgmma` do is modelled: boxes and swizzles of TMA, barriers, clusters, matrix
descriptors, and when asynchronous units read and write. Wrong use, and waiting for ever, raises `EmulationError`.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.config import KernelConfig
from agents.space import plan_for, sources_for
from harness.plan import Launch, Layout, Plan, Pointer, Scalar, ScalarType, Swizzle, TensorMap
from harness.plan_arguments import Argument, Buffer
from harness.problem import Problem
from harness.profiles import load_profile

DIRECTORY = Path(__file__).resolve().parent / "emulator"
PTX = (DIRECTORY.parents[1] / "agents" / "templates" / "pieces" / "ptx.cuh.j2").read_text(encoding="utf-8")
WGMMA = re.compile(
    r'asm volatile\(\s*"\{\\n.*?wgmma\.mma_async\.sync\.aligned\.m64n(?P<columns>\d+)k16\.(?P<sums>f32|f16)\.f16\.f16 '
    r'.*?add, 1, 1, (?P<p>[01])(?:, (?P<q>[01]));.*?"r"\(add\)\);',
    re.DOTALL,
)
KEEP = re.compile(r'asm volatile\(""[^;]*;')
COMPILER = ("g++", "-std=c++20", "-O1", "-fPIC", "-fno-strict-aliasing", "-w")
OF_MACHINE = ("-O2", "-fno-semantic-interposition", "-U_FORTIFY_SOURCE", "-shared")
"""Fortified, longjmp would refuse to go from one thread's stack to another's."""
MACHINE = "machine.so"
GUARD = 4096
"""Numbers around C, and around the workspace, that must stay as they were."""
SMALL = load_profile("h200").model_copy(update={"sm_count": 6})
"""An H200 with few multiprocessors, so that small problems go through several waves."""
LINE_BYTES = {Swizzle.NONE: 0, Swizzle.B32: 32, Swizzle.B64: 64, Swizzle.B128: 128}


class EmulationError(Exception):
    """A kernel did what a Hopper does not allow, or never ended."""


class _Options(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint * 3) for name in ("grid", "block", "cluster")),
        *((name, ctypes.c_uint) for name in ("shared_bytes", "resident", "late")),
        ("seed", ctypes.c_uint64),
    )


class _Map(ctypes.Structure):
    _fields_ = (("words", ctypes.c_uint64 * 16),)


class Operands(NamedTuple):
    """Inputs as the tests have them: rows of A, rows of the transpose of B."""

    a: NDArray[np.float16]
    b: NDArray[np.float16]

    @classmethod
    def draw(cls, problem: Problem, seed: int) -> Operands:
        """Small integers, whose products add up exactly in fp32 and mostly in fp16."""
        rng = np.random.default_rng(seed)
        shapes = ((problem.m, problem.k), (problem.n, problem.k))
        a, b = (rng.choice(np.array([-1, 0, 0, 1, 2], dtype=np.float16), size=shape) for shape in shapes)
        return cls(a, b)

    def product(self) -> NDArray[np.float16]:
        """What C must be."""
        return (self.a.astype(np.float32) @ self.b.astype(np.float32).T).astype(np.float16)


class Guarded:
    """Memory between two bands that must stay as they are."""

    def __init__(self, size_bytes: int) -> None:
        self.words = np.full(2 * GUARD + math.ceil(size_bytes / 256) * 128, 0xFFFF, dtype=np.uint16)
        self.inside = self.words[GUARD : GUARD + math.ceil(size_bytes / 2)]

    @property
    def address(self) -> int:
        """Of the first byte inside."""
        return self.inside.ctypes.data

    def check(self, name: str) -> None:
        """Raises if a band changed."""
        if not (np.all(self.words[:GUARD] == 0xFFFF) and np.all(self.words[GUARD + len(self.inside) :] == 0xFFFF)):
            raise EmulationError(f"memory beside {name} was written")


class How(NamedTuple):
    """Circumstances of an emulated run."""

    seed: int = 1
    """Of inputs and of the order of everything."""
    late: bool = True
    """Whether asynchronous units read and write as late as they may, or at once."""
    mutation: tuple[str, str] | None = None
    """A piece of source and what stands in its place: a fault that should be found."""


def verify(config: KernelConfig, problem: Problem, how: How) -> None:
    """Runs what a configuration plans for a problem; see `verify_plan`."""
    texts = tuple(source.text for source in sources_for(config, problem))
    verify_plan(plan_for(config, problem, SMALL), texts, problem, how)


def verify_plan(plan: Plan, texts: tuple[str, ...], problem: Problem, how: How) -> None:
    """Runs a plan twice over the same workspace.

    Raises:
        EmulationError: C is wrong, a kernel misused the machine, or it changed what must stay.
    """
    operands = Operands.draw(problem, how.seed)
    b = operands.b if plan.layout is Layout.TN else np.ascontiguousarray(operands.b.T)
    c, workspace = Guarded(2 * problem.m * problem.n), Guarded(plan.workspace_bytes)
    workspace.inside[: plan.zeroed_bytes // 2] = 0
    addresses = {
        Buffer.A: operands.a.ctypes.data,
        Buffer.B: b.ctypes.data,
        Buffer.C: c.address,
        Buffer.WORKSPACE: workspace.address,
    }
    kernels = _load(texts, how.mutation)
    for repeat in range(2):
        c.inside[:] = 0xFFFF
        for step in plan.steps:
            assert isinstance(step, Launch)
            _run(kernels, plan, step, addresses, how._replace(seed=2 * how.seed + repeat))
        c.check("C")
        workspace.check("the workspace")
        if workspace.inside[: plan.zeroed_bytes // 2].any():
            raise EmulationError("the workspace that is kept zero was left dirty")
        wrong = np.count_nonzero(c.inside.view(np.float16).reshape(problem.m, problem.n) != operands.product())
        if wrong:
            raise EmulationError(f"{wrong} numbers of C are wrong")


def _run(kernels: ctypes.CDLL, plan: Plan, step: Launch, addresses: dict[Buffer, int], how: How) -> None:
    values = [_parameter(argument, addresses) for argument in step.arguments]
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    clusters = math.prod(step.cluster or (1, 1, 1))
    # Kernels without dynamic shared memory keep theirs in static variables, of which there is one.
    resident = max(1, SMALL.sm_count * 2 // clusters) if step.dynamic_shared_bytes else 1
    shape = (step.grid, step.block, step.cluster or (1, 1, 1), step.dynamic_shared_bytes)
    options = _Options(*shape, resident, how.late, how.seed)
    kernels.emulate.restype = ctypes.c_char_p
    call = getattr(kernels, f"call_{plan.kernels[step.kernel].entry}")
    failure = kernels.emulate(call, pointers, ctypes.byref(options)).decode()
    if failure:
        raise EmulationError(failure)


def _parameter(argument: Argument, addresses: dict[Buffer, int]) -> ctypes.Structure | ctypes.c_int | ctypes.c_uint64:
    if isinstance(argument, Scalar):
        kind = {ScalarType.I32: ctypes.c_int, ScalarType.U64: ctypes.c_uint64}[argument.dtype]
        return kind(int(argument.value))
    if isinstance(argument, Pointer):
        return ctypes.c_uint64(addresses[argument.buffer] + argument.offset_bytes)
    assert isinstance(argument, TensorMap)
    missing = 5 - len(argument.dims)
    sides = (*argument.dims, *(1,) * missing, *argument.strides_bytes, *(0,) * missing, *argument.box, *(1,) * missing)
    return _Map((ctypes.c_uint64 * 16)(addresses[argument.buffer], *sides, LINE_BYTES[argument.swizzle]))


@functools.cache
def _load(texts: Sequence[str], mutation: tuple[str, str] | None) -> ctypes.CDLL:
    """The kernels of a plan, as a library that is linked with the machine's."""
    text = "\n".join(texts)
    if mutation is not None:
        assert text.count(mutation[0]) == 1, mutation
        text = text.replace(*mutation)
    directory = _directory()
    library = directory / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.so"
    source = library.with_suffix(".cpp")
    source.write_text(translate(text), encoding="utf-8")
    _compile("-shared", f"-I{DIRECTORY}", str(source), str(directory / MACHINE), "-o", str(library))
    return ctypes.CDLL(str(library))


def translate(text: str) -> str:
    """A kernel's source with the instructions of a Hopper replaced by calls of the emulator.

    Raises:
        EmulationError: an instruction is left.
    """
    text = text.replace(PTX.strip(), '#include "ptx.hpp"')
    text = WGMMA.sub(_call, text)
    text = KEEP.sub(";", text)
    if "asm" in text:
        raise EmulationError(f"the emulator does not know {text[text.index('asm') :][:200]}")
    entries = re.findall(r'extern "C" __global__ void __launch_bounds__\([^)]*\)\s*(\w+)\(', text)
    return text + "".join(f"\nEMULATED({entry})" for entry in entries)


def _call(match: re.Match[str]) -> str:
    halves = str(match["sums"] == "f16").lower()
    return f"emulator::multiply({{sums, {match['columns']}, {halves}, p, q, add != 0, {match['p']} != 0, {match['q']} != 0}});"


@functools.cache
def _directory() -> Path:
    """Holds the machine and the header that every kernel includes, compiled once."""
    holder = tempfile.TemporaryDirectory(prefix="hgemm-emulator-")
    _HELD.append(holder)
    directory = Path(holder.name)
    _compile(*OF_MACHINE, str(DIRECTORY / "machine.cpp"), "-o", str(directory / MACHINE))
    _compile("-x", "c++-header", str(DIRECTORY / "ptx.hpp"), "-o", str(directory / "ptx.hpp.gch"))
    return directory


_HELD: list[tempfile.TemporaryDirectory[str]] = []
"""Kept until the process ends."""


def _compile(*arguments: str) -> None:
    if shutil.which(COMPILER[0]) is None:
        raise EmulationError("no C++ compiler was found: g++ is not on PATH; install g++.")
    done = subprocess.run((*COMPILER, *arguments), capture_output=True, text=True, check=False)
    if done.returncode:
        raise EmulationError(f"g++ failed: {done.stderr[:2000]}")
