"""Whole run directories for tests: written through Run, with figures that follow from their raw samples."""

from __future__ import annotations

import hashlib
import json
import math
import random
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from factories import make_record

from harness.plan import Layout
from harness.problem import Problem, Track
from harness.problem_sets import ShapeSet, resolve_shapes
from harness.profiles import load_profile
from harness.protocol import CPU_BASELINES, Protocol, protocol_for
from harness.record import SUBMISSION, ContenderTiming, L2State, Measure, Record, Status, StopReason, Timing, Verification
from harness.run import DeviceInfo, Header, Run, SampleLine, writing
from harness.seeds import shape_seed
from harness.submission import Submission
from harness.timing.statistics import median_ns, speedup

SECRET = b"a secret that only tests know..."
H200 = DeviceInfo(
    profile="h200",
    name="NVIDIA H200",
    uuid="GPU-00000000-0000-0000-0000-000000000001",
    driver="580.159.03",
    libraries={"torch": "2.11.0", "cublasLt": "130100"},
    timer="events of one graph",
)
CPU = DeviceInfo(
    profile="cpu", name="a processor", uuid="host-1", driver="6.1.0-13", libraries={"torch": "2.13.0"}, timer="perf_counter_ns"
)
COLD = Measure()
WARM = Measure(l2_state=L2State.WARM)
SPEEDUPS = {"torch_matmul": 1.20, "cublas": 1.15, "cublaslt_heuristic": 1.12, "cublaslt_autotuned": 1.10}
WORKSPACES = {"cublas": 32 << 20, "cublaslt_heuristic": 32 << 20, "cublaslt_autotuned": 256 << 20}


@dataclass(frozen=True)
class Recipe:
    """What a test wants of a run; `replace(recipe, …)` or `recipe.but(…)` varies it."""

    name: str = "kernel"
    version: str = "1.0.0"
    author: str = "Ada"
    description: str = "made by a test"
    kind: str = "device"
    track: str = "f32"
    code: str = "// code\n"
    device: DeviceInfo = H200
    shapes: str = "64x64x64,128x64x64,64x128x64,64x64x128,512x512x512,4096x4096x64"
    speedup: float = 1.0
    """Factor on every baseline's time over the submission's."""
    by_shape: Mapping[str, float] = field(default_factory=dict)
    """Factor of single shapes."""
    speedups: Mapping[str, float] = field(default_factory=lambda: SPEEDUPS)
    statuses: Mapping[str, Status] = field(default_factory=dict)
    measures: tuple[Measure, ...] = (COLD,)
    noise: float = 0.002
    rounds: int = 10
    seed: int = 1
    stamp: str = "20261101T000000Z"
    not_rankable: str = ""
    protocol: Protocol | None = None

    def but(self, **changes: object) -> Recipe:
        return replace(self, **changes)  # type: ignore[arg-type]

    @cached_property
    def shape_set(self) -> ShapeSet:
        return resolve_shapes(self.shapes)

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(problem.model_copy(update={"track": Track(self.track)}) for problem in self.shape_set.problems)


def write_submission(root: Path, recipe: Recipe) -> Submission:
    """A submission directory that reads as valid; nothing of it is ever built."""
    root.mkdir(parents=True)
    target = "cpu" if recipe.device.profile == "cpu" else "sm_90a"
    (root / "submission.toml").write_text(
        f'name = "{recipe.name}"\nversion = "{recipe.version}"\nauthors = [{_toml(recipe.author)}]\nlicense = "MIT"\n'
        f'description = {_toml(recipe.description)}\ntrack = "{recipe.track}"\ntargets = ["{target}"]\n'
        f'kind = "{recipe.kind}"\n',
        encoding="utf-8",
    )
    (root / "plan.py").write_text("def plan(problem, device): ...\n", encoding="utf-8")
    (root / "kernels").mkdir()
    suffix = "c" if target == "cpu" else "cu"
    (root / "kernels" / f"k.{suffix}").write_text(recipe.code, encoding="utf-8")
    return Submission.read(root)


def cpu_recipe(**changes: object) -> Recipe:
    speedups = dict.fromkeys(CPU_BASELINES, 1.5)
    return Recipe(device=CPU, kind="native", speedups=speedups, not_rankable="a CPU only exercises the pipeline").but(**changes)


def begin_run(parent: Path, recipe: Recipe) -> Run:
    """A run with its segment and no record yet."""
    with tempfile.TemporaryDirectory() as scratch:
        return _begin_run(parent, recipe, write_submission(Path(scratch) / recipe.name, recipe))


def _begin_run(parent: Path, recipe: Recipe, submission: Submission) -> Run:
    profile = load_profile(recipe.device.profile)
    protocol = recipe.protocol or protocol_for(profile).model_copy(update={"measures": recipe.measures})
    header = Header(
        name=f"{recipe.name}-{profile.name}-{recipe.stamp}-{submission.tree_sha256[:8]}",
        created_utc=_iso(recipe.stamp),
        harness_version="0.1.0",
        command=("hgemm", "run", recipe.name),
        submission=submission.reference(),
        device=recipe.device,
        protocol=protocol,
        shape_set=recipe.shape_set.name,
        shapes_sha256=recipe.shape_set.sha256,
        shapes=tuple(str(problem) for problem in recipe.problems),
    )
    run = Run.create(parent, submission, header)
    run.begin_segment(recipe.device, SECRET, recipe.not_rankable)
    return run


def make_run(parent: Path, recipe: Recipe = Recipe()) -> Path:
    """A finished run below `parent`."""
    run = begin_run(parent, recipe)
    rng = random.Random(recipe.seed)
    for problem in recipe.problems:
        run.append(*measured(run, recipe, problem, rng))
    finish(run)
    run.close()
    return run.path


def finish(run: Run) -> None:
    """End the run at the time that its name says, so that equal recipes give equal runs."""
    end = run.finish()
    stamp = run.header.created_utc
    with writing(run.path):
        (run.path / "end.json").write_text(end.model_copy(update={"ended_utc": stamp}).model_dump_json(), encoding="utf-8")


def measured(run: Run, recipe: Recipe, problem: Problem, rng: random.Random) -> tuple[Record, list[SampleLine]]:
    """A record with samples that it follows from."""
    protocol = run.header.protocol
    status = recipe.statuses.get(str(problem), Status.VERIFIED)
    fields = {"measures": protocol.measures, "baselines": protocol.baselines, "rankable": not recipe.not_rankable}
    blank = make_record(problem, status if status is not Status.VERIFIED else Status.REJECTED).model_copy(update=fields)
    if status is not Status.VERIFIED:
        return blank, []
    timings, lines = [], []
    for measure in protocol.measures:
        windows = _windows(recipe, problem, rng, protocol)
        lines += [line.model_copy(update={"problem": problem, "measure": measure}) for line in windows.values()]
        timings.append(timing_of(measure, windows))
    record = Record(
        problem=problem,
        segment=0,
        status=Status.VERIFIED,
        verification=_verification(problem, protocol),
        timings=tuple(timings),
        seed=shape_seed(SECRET, problem, 0),
        plan_sha256="0" * 64,
        seconds=0.1,
        **fields,
    )
    return record, lines


def _verification(problem: Problem, protocol: Protocol) -> Verification:
    found = make_record(problem).verification
    assert found is not None
    return found.model_copy(update={"baselines": dict.fromkeys(protocol.baselines, found.draws[0])})


def timing_of(measure: Measure, lines: Mapping[str, SampleLine]) -> Timing:
    """The figures that follow from samples."""
    mine = lines[SUBMISSION]
    rates = {name: median_ns(line.selection_window_ns) for name, line in lines.items() if name != SUBMISSION}
    return Timing(
        measure=measure,
        rounds=len(mine.window_ns),
        stopped=StopReason.PRECISE,
        contenders={
            name: ContenderTiming(
                layout=Layout.NN,
                description=f"{name}, B nn",
                workspace_limit_bytes=WORKSPACES.get(name),
                launches_per_window=line.launches_per_window,
                window_median_ns=median_ns(line.window_ns),
                window_min_ns=min(line.window_ns),
                window_max_ns=max(line.window_ns),
                sm_clock_median_mhz=1980,
            )
            for name, line in lines.items()
        },
        speedups={
            name: speedup(line.window_ns, line.launches_per_window, mine.window_ns, mine.launches_per_window)
            for name, line in lines.items()
            if name != SUBMISSION
        },
        best_baseline=min(rates, key=rates.__getitem__),
    )


def _windows(recipe: Recipe, problem: Problem, rng: random.Random, protocol: Protocol) -> dict[str, SampleLine]:
    """Samples by contender. Times are those of the baselines; the submission's speedup makes it faster."""
    base_ns = 1_000_000 * (1 + problem.k / 4096)
    factor = recipe.speedup * recipe.by_shape.get(str(problem), 1.0)
    names = {name: recipe.speedups[name] for name in protocol.baselines} | {SUBMISSION: 1 / factor}
    lines = {}
    for name, slowness in names.items():
        lines[name] = SampleLine(
            problem=problem,
            attempt=0,
            measure=COLD,
            contender=name,
            launches_per_window=100,
            window_ns=tuple(_noisy(base_ns * slowness, recipe.noise, rng) for _ in range(recipe.rounds)),
            selection_launches=20,
            selection_window_ns=() if name == SUBMISSION else tuple(round(base_ns * slowness / 5) for _ in range(5)),
        )
    return lines


def _noisy(value: float, noise: float, rng: random.Random) -> int:
    return round(value * math.exp(noise * rng.gauss(0, 1)))


def _iso(stamp: str) -> str:
    return f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]}T{stamp[9:11]}:{stamp[11:13]}:{stamp[13:15]}Z"


def _toml(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def reseal(path: Path) -> None:
    """Make the hashes of end.json fit again, as one would who edits a run with care."""
    end = json.loads((path / "end.json").read_text())
    names = [each for each in path.rglob("*") if each.is_file() and each.name != "end.json"]
    end["files_sha256"] = {each.relative_to(path).as_posix(): hashlib.sha256(each.read_bytes()).hexdigest() for each in names}
    (path / "end.json").write_text(json.dumps(end))
