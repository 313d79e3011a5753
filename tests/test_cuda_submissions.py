"""The CUDA submissions without a device: their plans cover every shape, and their kernels compile without spills."""

from __future__ import annotations

import functools
import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from harness.build import Artifact, build_kernels
from harness.plan import Kernel, Launch, Layout, Plan, Pointer, Scalar
from harness.planner import make_plans
from harness.problem import Problem
from harness.problem_sets import resolve_shapes
from harness.profiles import DeviceProfile, load_profile, profile_names
from harness.submission import Submission

ROOT = Path(__file__).resolve().parent.parent
MMA = ROOT / "submissions" / "cuda-mma"
TILED = ROOT / "submissions" / "cuda-tiled"
TEMPLATES = ROOT / "tests" / "submissions" / "cuda-mma-fp16acc"
GPUS = tuple(name for name in profile_names() if name != "cpu")
HARD = (
    "1x1x1",
    "1x8x16384",
    "7x3x9",
    "129x257x1000",
    "16385x8x64",
    "100000x8x8",
    "8x100000x8",
    "1x999999x2",
    "65x66x67",
    "4x12x20",
)


class Use(NamedTuple):
    """The launch of hgemm.cu in a plan, with its numbers by name."""

    launch: Launch
    kernel: Kernel
    extents: tuple[int, ...]
    k_per_split: int
    band: int

    def define(self, name: str) -> int:
        """A define of the kernel."""
        return int(self.kernel.defines[name])


def load_module(path: Path) -> ModuleType:
    """Run a Python file that lies in no package, leaving no bytecode beside it (a submission holds only its own files)."""
    spec = importlib.util.spec_from_loader(f"tested_{path.parent.name.replace('-', '_')}_{path.stem}", loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(path)
    sys.modules[spec.name] = module  # where typing.NamedTuple looks its annotations up
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), module.__dict__)
    return module


GENERATE = load_module(TEMPLATES / "generate.py")
FP16 = tuple(GENERATE.directory(name) for name in GENERATE.INTERVALS)


def problems(*names: str) -> tuple[Problem, ...]:
    """The problems of some sets, each once."""
    return tuple(dict.fromkeys(problem for name in names for problem in resolve_shapes(name).problems))


@functools.cache
def plans(directory: Path, profile: str, *names: str) -> dict[Problem, Plan]:
    """The plans of a submission, all of which must exist; the planner has checked them against the buffers."""
    outcomes = make_plans(Submission.read(directory), problems(*names), load_profile(profile))
    refused = {str(problem): outcome for problem, outcome in outcomes.items() if not isinstance(outcome, Plan)}
    assert refused == {}
    return {problem: outcome for problem, outcome in outcomes.items() if isinstance(outcome, Plan)}


def use_of(plan: Plan) -> Use:
    """The launch of hgemm.cu."""
    launch = plan.steps[0]
    assert isinstance(launch, Launch)
    values = [argument.value for argument in launch.arguments[4:] if isinstance(argument, Scalar)]
    m, n, k, k_per_split, band = (int(value) for value in values)
    return Use(launch, plan.kernels[launch.kernel], (m, n, k), k_per_split, band)


def check_cover(plan: Plan, problem: Problem, device: DeviceProfile) -> None:
    """The grid covers C once and K once, with the block and the memory that the kernel was compiled for."""
    use = use_of(plan)
    tile_m, tile_n, tile_k = (use.define(f"BLOCK_{axis}") for axis in "MNK")
    splits = use.launch.grid[2]
    assert use.extents == (problem.m, problem.n, problem.k)
    assert use.launch.grid[:2] == (math.ceil(problem.m / tile_m) * math.ceil(problem.n / tile_n), 1)
    assert use.k_per_split % tile_k == 0
    assert (splits - 1) * use.k_per_split < problem.k <= splits * use.k_per_split
    assert 1 <= use.band <= math.ceil(problem.m / tile_m)
    assert use.launch.block == (32 * use.define("WARPS_M") * use.define("WARPS_N") * use.define("WARPS_K"), 1, 1)
    assert use.launch.dynamic_shared_bytes == use.define("STAGES") * 2 * tile_k * (tile_m + tile_n)
    assert use.launch.dynamic_shared_bytes <= device.shared_bytes_per_block
    assert use.define("B_TRANSPOSED") == (plan.layout is Layout.TN)
    assert problem.k % use.define("A_VECTOR") == 0
    assert (problem.k if plan.layout is Layout.TN else problem.n) % use.define("B_VECTOR") == 0
    assert plan.deterministic


def check_reduction(plan: Plan, problem: Problem, device: DeviceProfile) -> None:
    """Several splits go through a workspace that holds exactly their sums, and a second kernel that covers C."""
    splits = use_of(plan).launch.grid[2]
    if splits == 1:
        assert len(plan.steps) == 1
        assert plan.workspace_bytes == 0
        return
    reduce = plan.steps[1]
    assert isinstance(reduce, Launch)
    quads = problem.m * math.ceil(problem.n / 4)
    assert plan.workspace_bytes == splits * quads * 4 * 4
    assert use_of(plan).launch.arguments[3] == reduce.arguments[0] == Pointer(buffer="workspace")
    assert [argument.value for argument in reduce.arguments[2:] if isinstance(argument, Scalar)] == [
        problem.m,
        problem.n,
        splits,
    ]
    assert (reduce.grid[0] - 1) * reduce.block[0] < quads <= reduce.grid[0] * reduce.block[0]
    assert reduce.programmatic == device.architecture.startswith("sm_9")


@pytest.mark.parametrize("profile", GPUS)
def test_mma_plans_cover_every_shape(profile: str) -> None:
    device = load_profile(profile)
    for problem, plan in plans(MMA, profile, "grid1000", "quick", "ragged", "llm", ",".join(HARD)).items():
        check_cover(plan, problem, device)
        check_reduction(plan, problem, device)


@pytest.mark.parametrize("profile", GPUS)
def test_mma_covers_the_grid_with_few_kernels(profile: str) -> None:
    kernels: dict[str, Kernel] = {}
    for plan in plans(MMA, profile, "grid1000").values():
        for name, kernel in plan.kernels.items():
            assert kernels.setdefault(name, kernel) == kernel
    assert 2 < len(kernels) <= 24


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("64x64x64", ("NN", 8, 8)),
        ("33x72x4096", ("NN", 8, 8)),
        ("64x63x64", ("TN", 8, 8)),
        ("64x64x63", ("NN", 1, 8)),
        ("64x62x66", ("NN", 2, 2)),
        ("64x63x66", ("TN", 2, 2)),
        ("63x63x63", ("NN", 1, 1)),
    ],
)
def test_mma_reads_the_better_aligned_layout(shape: str, expected: tuple[str, int, int]) -> None:
    (plan,) = plans(MMA, "h200", shape).values()
    use = use_of(plan)
    assert (plan.layout, use.define("A_VECTOR"), use.define("B_VECTOR")) == expected


def test_mma_splits_k_only_where_tiles_are_few() -> None:
    splits = {str(problem): use_of(plan).launch.grid[2] for problem, plan in plans(MMA, "h200", "grid1000").items()}
    assert splits["64x64x16384"] > 4
    assert [splits[shape] for shape in ("64x64x64", "4096x4096x4096", "16384x16384x64", "16384x16384x16384")] == [1, 1, 1, 1]


def check_builds(directory: Path, kernels: list[Kernel], profile: str) -> None:
    """Every kernel compiles without warnings, spills or stack, and as many CTAs fit the registers as its bounds promise."""
    device = load_profile(profile)
    built = build_kernels(directory, kernels, device)
    for kernel in kernels:
        result = built[kernel.sha256()]
        assert isinstance(result, Artifact), result
        report = result.report
        assert (report.spill_store_bytes, report.spill_load_bytes, report.stack_bytes, report.warnings) == (0, 0, 0, ())
        threads = math.prod(int(kernel.defines.get(f"WARPS_{axis}", 1)) for axis in "MNK") * 32
        together = int(kernel.defines.get("CTAS_PER_SM", 1))
        assert 0 < report.registers[kernel.entry] * threads * together <= device.registers_per_sm


def kernels_of(some: dict[Problem, Plan]) -> list[Kernel]:
    """The distinct kernels of plans."""
    return list({kernel.sha256(): kernel for plan in some.values() for kernel in plan.kernels.values()}.values())


@pytest.mark.parametrize(("profile", "sets"), [("h200", ("grid1000", "ragged", "llm")), ("a100", ("grid1000",))])
def test_mma_kernels_compile_without_spills(profile: str, sets: tuple[str, ...]) -> None:
    kernels = kernels_of(plans(MMA, profile, *sets))
    assert len(kernels) > 8
    check_builds(MMA, kernels, profile)


def test_tiled_covers_every_shape_with_one_kernel() -> None:
    some = plans(TILED, "h200", "grid1000", "ragged", ",".join(HARD))
    for problem, plan in some.items():
        (launch,) = plan.steps
        assert isinstance(launch, Launch)
        assert launch.grid == (math.ceil(problem.m / 64) * math.ceil(problem.n / 64), 1, 1)
        assert [argument.value for argument in launch.arguments[3:] if isinstance(argument, Scalar)] == [
            problem.m,
            problem.n,
            problem.k,
        ]
    (kernel,) = kernels_of(some)
    check_builds(TILED, [kernel], "h200")
    check_builds(TILED, [kernel], "a100")


@pytest.mark.parametrize("name", GENERATE.INTERVALS)
def test_fp16_variants_are_as_generated(name: str) -> None:
    expected = {path: text.encode() for path, text in GENERATE.files(name).items()}
    submission = Submission.read(GENERATE.directory(name))
    assert {file.name: file.data for file in submission.files} == expected
    shared = {file.name: file.data for file in Submission.read(MMA).files}
    assert {path for path, data in expected.items() if shared.get(path) == data} == {
        f"kernels/{part}" for part in ("hgemm.cu", "tile.cuh", "ptx.cuh")
    }


@pytest.mark.parametrize("name", GENERATE.INTERVALS)
def test_fp16_variants_plan_and_compile(name: str) -> None:
    device = load_profile("h200")
    some = plans(GENERATE.directory(name), "h200", "quick", "ragged", ",".join(HARD))
    for problem, plan in some.items():
        check_cover(plan, problem, device)
        check_reduction(plan, problem, device)
        assert use_of(plan).define("PROMOTE_EVERY") == GENERATE.INTERVALS[name]
    check_builds(GENERATE.directory(name), kernels_of(some), "h200")


def test_fp16_variants_differ_from_each_other() -> None:
    assert len({Submission.read(directory).code_sha256 for directory in FP16}) == len(FP16) == 4
