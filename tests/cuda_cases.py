"""Submissions for the tests on a CUDA device, written when needed: a kernel, how it is launched, what must come of it."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import cuda_kernels as kernels

from harness.build import Artifact, build_kernels
from harness.plan import Argument, Kernel, Launch, Layout, Memset, Plan, PlanFile, Pointer, Scalar, Struct, Table, TensorMap
from harness.problem import Problem
from harness.profiles import load_profile
from harness.record import Reason

MANIFEST = """\
name = "{name}"
version = "1.0.0"
authors = ["HGEMM Arena authors"]
license = "MIT"
description = "A test of the CUDA device."
track = "f32"
targets = ["sm_90a"]
kind = "device"
"""
SHAPES = ("64x64x64", "96x72x136", "128x256x512")
ZEROED_BYTES = 512
SPLITS = 4
DYNAMIC_BYTES = 96 << 10
A, B, C = (Pointer(buffer=name) for name in "ABC")
COUNTERS, SUMS = Pointer(buffer="workspace"), Pointer(buffer="workspace", offset_bytes=ZEROED_BYTES)


class Case(NamedTuple):
    """One submission."""

    name: str
    source: str
    plan: Callable[[Problem], Plan]
    reason: Reason | None = None
    """Why it must be rejected; None where it must be verified."""
    shapes: tuple[str, ...] = SHAPES
    suffix: str = "cu"

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The shapes that it is tried on."""
        return tuple(Problem.parse(shape) for shape in self.shapes)


def write(root: Path, case: Case) -> Path:
    """The directory of a case below `root`, with the plans of its shapes."""
    plans: dict[str, Plan] = {str(problem): case.plan(problem) for problem in case.problems}
    return write_files(root / case.name, PlanFile.collect({**plans}), {f"gemm.{case.suffix}": case.source})


def write_files(directory: Path, plans: PlanFile, sources: dict[str, str]) -> Path:
    """A submission of that directory's name."""
    (directory / "kernels").mkdir(parents=True)
    (directory / "submission.toml").write_text(MANIFEST.format(name=directory.name), encoding="utf-8")
    (directory / "plan.json").write_text(plans.model_dump_json(), encoding="utf-8")
    for name, text in sources.items():
        (directory / "kernels" / name).write_text(text, encoding="utf-8")
    return directory


def write_cubin(root: Path) -> Path:
    """The plain kernel built here and shipped as a cubin with its source."""
    case = Case("cubin", kernels.PLAIN, one(language="cubin", source="kernels/gemm.cubin", generated_from="kernels/gemm.cu"))
    directory = write(root, case)
    (built,) = build_kernels(directory, [kernel()], load_profile("h200")).values()
    assert isinstance(built, Artifact), built
    (directory / "kernels" / "gemm.cubin").write_bytes(built.path.read_bytes())
    return directory


def write_faulty(root: Path, name: str, source: str, problems: Iterable[Problem], faulty: Problem) -> Path:
    """The plain kernel on all problems but one, whose kernel is `source`."""
    plans: dict[str, Plan] = {}
    for problem in problems:
        bad = problem == faulty
        plan = one(name="bad", source="kernels/bad.cu") if bad else one()
        plans[str(problem)] = plan(problem)
    return write_files(root / name, PlanFile.collect({**plans}), {"gemm.cu": kernels.PLAIN, "bad.cu": source})


def kernel(**fields: object) -> Kernel:
    """The kernel of a case."""
    return Kernel.model_validate({"language": "cuda", "source": "kernels/gemm.cu", "entry": "gemm", **fields})


def sizes(problem: Problem) -> tuple[Scalar, ...]:
    """m, n and k as int."""
    return tuple(Scalar(dtype="i32", value=value) for value in (problem.m, problem.n, problem.k))


def launch(
    problem: Problem, name: str, arguments: tuple[Argument, ...], z: int = 1, x_factor: int = 1, **fields: object
) -> Launch:
    """A CTA of 16x16 threads for each 16x16 outputs, `z` times, and `x_factor` CTAs side by side."""
    grid = (x_factor * math.ceil(problem.n / 16), math.ceil(problem.m / 16), z)
    return Launch.model_validate({"kernel": name, "grid": grid, "block": (16, 16, 1), "arguments": arguments, **fields})


def one(
    name: str = "gemm", layout: Layout = Layout.NN, launching: dict[str, Any] | None = None, **of_kernel: object
) -> Callable[[Problem], Plan]:
    """A plan of one launch on (A, B, C, m, n, k)."""

    def plan(problem: Problem) -> Plan:
        step = launch(problem, name, (A, B, C, *sizes(problem)), **(launching or {}))
        return Plan(layout=layout, steps=(step,), kernels={name: kernel(**of_kernel)})

    return plan


def memset(problem: Problem) -> Plan:
    fill = Memset(buffer="C", size_bytes=problem.c_bytes)
    step = launch(problem, "gemm", (A, B, C, *sizes(problem)))
    return Plan(layout="NN", steps=(fill, step), kernels={"gemm": kernel()})


def memset_workspace(problem: Problem) -> Plan:
    """Counters of `COUNTERS` that a memset clears, rather than the kernel."""
    plan = counters(problem)
    clear = Memset(buffer="workspace", size_bytes=ZEROED_BYTES)
    held = {"gemm": kernel(defines={"KEEP": "1"})}
    return plan.model_copy(update={"steps": (clear, *plan.steps), "zeroed_bytes": 0, "kernels": held})


def by_value(problem: Problem) -> Plan:
    m, n, k = sizes(problem)
    number = {name: Scalar(dtype=dtype, value=value) for name, dtype, value in
              (("alpha", "f32", 0.5), ("addend", "f32", 0.0), ("beta", "f64", 2.0))}  # fmt: skip
    fields = Struct(fields=(A, m, n, k, B, number["alpha"], C, number["addend"], number["beta"]))
    step = launch(problem, "gemm", (fields, Scalar(dtype="i32", value=7)))
    return Plan(layout="NN", steps=(step,), kernels={"gemm": kernel()})


def table(problem: Problem) -> Plan:
    order = struct.pack(f"<{problem.m}i", *reversed(range(problem.m)))
    data = Table(data_base64=base64.b64encode(order).decode())
    step = launch(problem, "gemm", (A, B, C, data, *sizes(problem)))
    return Plan(layout="NN", steps=(step,), kernels={"gemm": kernel()})


def split(programmatic: bool) -> Callable[[Problem], Plan]:
    def plan(problem: Problem) -> Plan:
        sums = Pointer(buffer="workspace")
        m, n, _ = sizes(problem)
        steps = (
            launch(problem, "partial", (A, B, sums, *sizes(problem)), z=SPLITS),
            launch(problem, "reduce", (sums, C, m, n, Scalar(dtype="i32", value=SPLITS)), programmatic=programmatic),
        )
        defines = {"EARLY": "1"} if programmatic else {}
        held = {name: kernel(entry=name, defines=defines) for name in ("partial", "reduce")}
        return Plan(layout="NN", steps=steps, kernels=held, workspace_bytes=4 * SPLITS * problem.m * problem.n)

    return plan


def cooperative(problem: Problem) -> Plan:
    step = launch(problem, "gemm", (A, B, C, COUNTERS, SUMS, *sizes(problem)), cooperative=True)
    size = ZEROED_BYTES + 4 * problem.m * problem.n
    return Plan(layout="NN", steps=(step,), kernels={"gemm": kernel()}, workspace_bytes=size, zeroed_bytes=ZEROED_BYTES)


def counters(problem: Problem) -> Plan:
    step = launch(problem, "gemm", (A, B, C, COUNTERS, SUMS, *sizes(problem)), z=SPLITS)
    size = ZEROED_BYTES + 4 * SPLITS * problem.m * problem.n
    assert math.ceil(problem.m / 16) * math.ceil(problem.n / 16) * 4 <= ZEROED_BYTES
    return Plan(layout="NN", steps=(step,), kernels={"gemm": kernel()}, workspace_bytes=size, zeroed_bytes=ZEROED_BYTES)


def kept_counters(problem: Problem) -> Plan:
    return counters(problem).model_copy(update={"kernels": {"gemm": kernel(defines={"KEEP": "1"})}})


def tma(swizzled: bool) -> Callable[[Problem], Plan]:
    def plan(problem: Problem) -> Plan:
        a = TensorMap(
            buffer="A",
            dims=(problem.k, problem.m),
            strides_bytes=(2 * problem.k,),
            box=(64, 16),
            swizzle="128B" if swizzled else "none",
            l2_promotion="128B",
        )
        b = TensorMap(buffer="B", dims=(problem.n, problem.k), strides_bytes=(2 * problem.n,), box=(16, 64))
        step = launch(problem, "gemm", (a, b, C, *sizes(problem)))
        return Plan(layout="NN", steps=(step,), kernels={"gemm": kernel(defines={"SWIZZLED": "1"} if swizzled else {})})

    return plan


def cluster(ctas: int) -> Callable[[Problem], Plan]:
    return one(launching={"x_factor": ctas, "cluster": (ctas, 1, 1)}, defines={"CTAS": str(ctas)})


SHARED_DEFINES = {"BYTES": str(DYNAMIC_BYTES)}

VOCABULARY = (
    Case("one-launch", kernels.PLAIN, one()),
    Case("tn-layout", kernels.TRANSPOSED, one(layout=Layout.TN)),
    Case("carve-out", kernels.PLAIN, one(shared_carveout_percent=50)),
    Case("max-registers", kernels.PLAIN, one(max_registers=32)),
    Case("memset-c", kernels.ACCUMULATE, memset),
    Case("memset-workspace", kernels.COUNTERS, memset_workspace),
    Case("struct-by-value", kernels.STRUCT, by_value),
    Case("table", kernels.TABLE, table),
    Case("two-kernels", kernels.SPLIT, split(programmatic=False)),
    Case("programmatic", kernels.SPLIT, split(programmatic=True)),
    Case("cooperative", kernels.COOPERATIVE, cooperative),
    Case("zeroed-bytes", kernels.COUNTERS, counters),
    Case("cluster-2", kernels.CLUSTER, cluster(2)),
    Case("cluster-16", kernels.CLUSTER, cluster(16)),
    Case("dynamic-shared", kernels.SHARED, one(launching={"dynamic_shared_bytes": DYNAMIC_BYTES}, defines=SHARED_DEFINES)),
    Case("tensor-map", kernels.TMA, tma(swizzled=False)),
    Case("tensor-map-swizzled", kernels.TMA, tma(swizzled=True)),
    Case("ptx", kernels.PTX, one(language="ptx", source="kernels/gemm.ptx"), suffix="ptx"),
)
"""Everything that a plan can say, but for a cubin (`write_cubin`); all of it must be verified."""

TOO_MUCH_SHARED = {"dynamic_shared_bytes": 300 << 10}
MIDDLE = SHAPES[1:2]

FAULTS = (
    Case("past-c", kernels.PAST_C, one(), Reason.OUT_OF_BOUNDS, MIDDLE),
    Case("before-c", kernels.BEFORE_C, one(), Reason.OUT_OF_BOUNDS, MIDDLE),
    Case("writes-a", kernels.WRITES_A, one(), Reason.INPUT_MODIFIED, MIDDLE),
    Case("skips-tile", kernels.SKIPS_TILE, one(), Reason.UNWRITTEN, MIDDLE),
    # Arithmetic on the poison, a quiet NaN, gives the device's own NaN, whose bits no poison has.
    Case("adds-to-poison", kernels.ACCUMULATE, one(), Reason.NOT_FINITE, MIDDLE),
    Case("counter-not-restored", kernels.COUNTERS, kept_counters, Reason.WORKSPACE_NOT_RESTORED, MIDDLE),
    Case("gives-nan", kernels.GIVES_NAN, one(), Reason.NOT_FINITE, MIDDLE),
    Case("reads-b-transposed", kernels.PLAIN, one(layout=Layout.TN), Reason.WRONG_RESULT, MIDDLE),
    Case("too-much-shared", kernels.PLAIN, one(launching=TOO_MUCH_SHARED), Reason.LAUNCH_ERROR, MIDDLE),
    Case("no-such-entry", kernels.PLAIN, one(entry="hgemm"), Reason.BUILD_ERROR, MIDDLE),
    Case("by-the-clock", kernels.BY_THE_CLOCK, one(), Reason.NONDETERMINISTIC, ("256x512x1024",)),
)
"""Submissions with one fault each, and the reason that each must get."""
