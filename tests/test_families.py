"""Plans and sources of the kernel families, the analytic model's choices, and the submissions made of them."""

from __future__ import annotations

import functools
import json
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest
from family_cases import BASIC
from hypothesis import given
from hypothesis.strategies import integers
from sanitized_families import mechanisms

from agents.analytic import best, estimate_ns, ranked, ranked_all
from agents.config import MOST_WRITTEN, Family, KernelConfig, Split, Store
from agents.effort import Effort
from agents.export import Title, choose, cover, export
from agents.families import common, output, splitk, ws_persistent
from agents.space import Space, broken_rules, kernels_for, loads_by_tma, plan_for, sources_for
from harness.model import DataError
from harness.plan import Launch, Layout, Plan, Pointer, Scalar, TensorMap
from harness.planner import make_plans
from harness.problem import Problem, Track
from harness.problem_sets import resolve_shapes
from harness.profiles import load_profile
from harness.submission import Submission

ROOT = Path(__file__).resolve().parent.parent
HOPPER_ANALYTIC = ROOT / "submissions" / "hopper-analytic"
H200 = load_profile("h200")
PERSISTENT = (Family.WS_PERSISTENT, Family.OUTPUT)


@functools.cache
def space() -> Space:
    return Space(H200)


def problems(*names: str) -> tuple[Problem, ...]:
    return tuple(dict.fromkeys(problem for name in names for problem in resolve_shapes(name).problems))


@functools.cache
def samples(seed: int, each: int) -> tuple[tuple[KernelConfig, Problem], ...]:
    """Problems of all sets, with legal configurations of each."""
    rng = random.Random(seed)
    chosen = [*problems("quick", "ragged"), *rng.sample(problems("llm"), 20), *rng.sample(problems("grid1000"), 20)]
    found = []
    for problem in chosen:
        legal = space().legal(problem)
        found += [(config, problem) for config in rng.sample(legal, min(each, len(legal)))]
    return tuple(found)


class Raster(NamedTuple):
    """How pieces/tile.cuh.j2 numbers tiles, from the parameters of a launch."""

    tiles_p: int
    tiles_q: int
    group: int
    multipliers: tuple[int, ...] = ()

    @classmethod
    def of(cls, launch: Launch) -> Self:
        """Of a persistent kernel's: its last three integers, and what it divides by after them."""
        values = [int(argument.value) for argument in launch.arguments if isinstance(argument, Scalar)]
        return cls(*values[-6:-3], tuple(values[-3:]))

    def place(self, index: int) -> tuple[int, int]:
        """Of a tile, in tiles."""
        by_band, by_group, by_rest = self.multipliers
        band = 2 * index * by_band >> 64
        within = index - band * self.group * self.tiles_q
        height = min(self.group, self.tiles_p - band * self.group)
        column = 2 * within * (by_group if height == self.group else by_rest) >> 64
        return band * self.group + within - column * height, column


class Walk(NamedTuple):
    """How output.cu.j2 shares tiles among CTAs, from the parameters of a launch."""

    tiles_p: int
    by_strip: int
    share: int
    longer: int

    @classmethod
    def of(cls, launch: Launch) -> Self:
        """Its last four numbers."""
        return cls(*[int(argument.value) for argument in launch.arguments if isinstance(argument, Scalar)][-4:])

    def places(self, cta: int) -> list[tuple[int, int]]:
        """Of a CTA's tiles, in tiles."""
        first = cta * self.share + min(cta, self.longer)
        q = 2 * first * self.by_strip >> 64
        numbers = range(first - q * self.tiles_p, first - q * self.tiles_p + self.share + (cta < self.longer))
        return [(number % self.tiles_p, q + number // self.tiles_p) for number in numbers]


def check_cover(config: KernelConfig, problem: Problem, launch: Launch) -> None:
    """The tiles cover C and no tile is outside it; the grid is as many CTAs as the kernel counts on."""
    tiles_p, tiles_q, splits = launch.grid
    if config.family is Family.OUTPUT:
        walk = Walk.of(launch)
        tiles_p, tiles_q = walk.tiles_p, (walk.share * launch.grid[0] + walk.longer) // walk.tiles_p
        places = Counter(place for cta in range(launch.grid[0]) for place in walk.places(cta))
        assert places == Counter((p, q) for p in range(tiles_p) for q in range(tiles_q))
    elif config.family is Family.WS_PERSISTENT:
        tiles_p, tiles_q, group, _ = Raster.of(launch)
        assert 1 <= group <= tiles_p
    elif config.family is Family.UNALIGNED:
        tiles_p, tiles_q, _ = (int(argument.value) for argument in launch.arguments[-3:] if isinstance(argument, Scalar))
        assert launch.grid == (tiles_p * tiles_q, 1, 1)
    else:
        assert splits == config.splits
    rows, columns = (problem.n, problem.m) if config.swapped else (problem.m, problem.n)
    assert (tiles_p - 1) * config.bm * config.cluster_p < rows <= tiles_p * config.bm * config.cluster_p
    assert (tiles_q - 1) * config.bn * config.cluster_q < columns <= tiles_q * config.bn * config.cluster_q
    if config.family in PERSISTENT:
        assert launch.grid[0] <= H200.sm_count * config.ctas_per_sm
        assert launch.grid[0] <= tiles_p * tiles_q * config.cluster_ctas or config.split is Split.STREAM
        assert launch.grid[0] % config.cluster_ctas == 0
    assert launch.dynamic_shared_bytes <= H200.shared_bytes_per_block


def check_maps(config: KernelConfig, problem: Problem, launch: Launch) -> None:
    """A stage's boxes are its bytes, and lie inside the widths that the kernel was generated for."""
    maps = [argument for argument in launch.arguments if isinstance(argument, TensorMap)]
    if config.family in (Family.REGISTERS, Family.UNALIGNED):
        assert maps == []
        return
    assert len(maps) == (3 if config.store is Store.TMA else 2)
    sides = ((config.bm, config.p_width, config.cluster_q), (config.bn, config.q_width, config.cluster_p))
    for tensor_map, (side, width, sharing) in zip(maps, sides, strict=False):
        boxes = side // width if width else config.bk // 64
        assert math.prod(tensor_map.box) * boxes * sharing == side * config.bk
        assert tensor_map.dims[1 if width else 0] == problem.k
    if config.store is Store.TMA:
        assert maps[2].dims == (problem.n, problem.m)
        tile, written = 64 * config.blocks * config.bn, math.prod(maps[2].box) * config.panels
        assert tile <= written <= MOST_WRITTEN * tile


def test_plans_are_valid_and_cover_c() -> None:
    for config, problem in samples(1, 12):
        plan = plan_for(config, problem, H200)
        plan.check_bounds(problem)
        launch = plan.steps[0]
        assert isinstance(launch, Launch)
        check_cover(config, problem, launch)
        check_maps(config, problem, launch)
        assert plan.layout is config.layout
        assert plan.deterministic == (config.split is not Split.ATOMIC)
        assert set(kernels_for(config, problem)) == set(plan.kernels)
        assert {kernel.source for kernel in plan.kernels.values()} == {s.path for s in sources_for(config, problem)}


def test_split_plans_have_room_for_every_sum() -> None:
    seen = set()
    for config, problem in samples(2, 40):
        plan = plan_for(config, problem, H200)
        seen.add(config.split)
        sums = 4 * config.bm * config.bn * config.tiles(problem) * config.splits
        if config.split in (Split.NONE, Split.CLUSTER):
            assert plan.workspace_bytes == plan.zeroed_bytes == 0
            continue
        if config.split is Split.STREAM:
            (launch,) = plan.steps
            assert isinstance(launch, Launch)
            assert plan.workspace_bytes == plan.zeroed_bytes + 4 * config.bm * config.bn * launch.grid[0]
            assert plan.zeroed_bytes >= 4 * launch.grid[0]
            continue
        if config.split is Split.ATOMIC:
            assert plan.workspace_bytes == plan.zeroed_bytes == splitk.counter_bytes(config, problem) + sums // config.splits
        else:
            assert plan.workspace_bytes == splitk.counter_bytes(config, problem) + sums
            assert plan.zeroed_bytes == splitk.counter_bytes(config, problem)
        assert (plan.zeroed_bytes >= 4 * config.tiles(problem)) == (config.split is not Split.KERNEL)
        if config.split is Split.KERNEL:
            reduce = plan.steps[1]
            assert isinstance(reduce, Launch)
            assert reduce.programmatic
            assert reduce.arguments[0] == Pointer(buffer="workspace")
            assert math.prod(reduce.grid) * math.prod(reduce.block) * 4 == config.tiles(problem) * config.bm * config.bn
    assert seen == set(Split)


def test_streamed_tiles_are_shared_evenly_by_all() -> None:
    """What `Work` of persistent.cu.j2 does: every stage once, ranges alike to a stage, and a tile in few of them."""
    config = next(c for c in space().configs if c.split is Split.STREAM and (c.bm, c.bn, c.cluster_ctas) == (128, 256, 1))
    for shape in ("2048x2048x4096", "4096x4096x4096", "1024x1024x192", "128x256x64", "4224x2048x1024"):
        problem = Problem.parse(shape)
        clusters, tiles = ws_persistent.stream(config, problem, H200)
        stages, whole = config.k_stages(problem), config.tiles(problem) - tiles
        assert whole % clusters == 0
        assert tiles == 0 or tiles < 2 * clusters
        share, longer = divmod(tiles * stages, clusters)
        assert share >= 1 or tiles == 0
        starts = [each * share + min(each, longer) for each in range(clusters + 1)]
        assert starts[-1] == tiles * stages
        for tile in range(tiles):
            covering = [c for c in range(clusters) if starts[c] < (tile + 1) * stages and starts[c + 1] > tile * stages]
            assert len(covering) <= max(3, 1 + math.isqrt(problem.k // ws_persistent.EXCHANGED_K))


def test_fp16_sums_are_for_their_track_and_exported_on_it(tmp_path: Path) -> None:
    problem = Problem.parse("8192x8192x8192", Track.F16)
    legal = [config for config in space().legal(problem) if config.accumulator is Track.F16]
    assert {(config.bm, config.bn) for config in legal} >= {(256, 256), (128, 128)}
    assert all(".f16.f16.f16 {" in sources_for(config, problem)[0].text for config in legal[:10])
    assert not any(config.accumulator is Track.F16 for config in space().legal(Problem.parse("8192x8192x8192")))
    submission = export({problem: legal[0]}, H200, tmp_path / "halves", Title("halves", "1.0.0", "Of a test."))
    assert submission.manifest.track is Track.F16
    both = {problem: legal[0], Problem.parse("8192x8192x8192"): legal[0]}
    with pytest.raises(DataError, match="one track"):
        export(both, H200, tmp_path / "both", Title("both", "1.0.0", "Of a test."))


def test_what_is_not_deterministic_says_so() -> None:
    for split in (Split.ATOMIC, Split.WORKSPACE):
        config = next(c for c in space().configs if c.split is split)
        assert ("// Not deterministic:" in common.render(splitk.TEMPLATE, config).text) == (split is Split.ATOMIC)


@pytest.mark.parametrize(("tiles_p", "tiles_q", "group"), [(1, 1, 4), (7, 5, 8), (8, 3, 8), (13, 1, 4), (37, 9, 16)])
def test_the_raster_visits_every_tile_once(tiles_p: int, tiles_q: int, group: int) -> None:
    config = next(c for c in space().configs if c.family is Family.WS_PERSISTENT and (c.bm, c.bn, c.group) == (128, 256, group))
    m, n = tiles_p * 128 * config.cluster_p, tiles_q * 256 * config.cluster_q
    (launch,) = plan_for(config, Problem(m=n, n=m, k=64) if config.swapped else Problem(m=m, n=n, k=64), H200).steps
    assert isinstance(launch, Launch)
    found = Raster.of(launch)
    assert found[:3] == (tiles_p, tiles_q, min(group, tiles_p))
    visited = [found.place(index) for index in range(tiles_p * tiles_q)]
    assert sorted(visited) == [(p, q) for p in range(tiles_p) for q in range(tiles_q)]
    assert {row for row, _ in visited[: found.group * tiles_q]} == set(range(found.group))


@given(n=integers(0, (1 << 31) - 1), divisor=integers(1, (1 << 31) - 1))
def test_kernels_divide_as_integers_do(n: int, divisor: int) -> None:
    multiplier = common.multiplier(divisor)
    assert multiplier < 1 << 64
    assert 2 * n * multiplier >> 64 == n // divisor


def test_sources_are_equal_exactly_when_their_names_are() -> None:
    texts: dict[str, str] = {}
    for config, problem in samples(3, 12):
        for source in sources_for(config, problem):
            assert texts.setdefault(source.name, source.text) == source.text
            assert source.text.startswith("// Generated from agents/templates/")
            assert "{{" not in source.text
            assert "{%" not in source.text
    assert len(set(texts.values())) == len(texts) > 100


def test_what_a_launch_decides_does_not_change_the_kernel() -> None:
    config = next(c for c in space().configs if c.split is Split.WORKSPACE)
    other = config.model_copy(update={"splits": config.splits + 1, "group": 3})
    first, second = (common.render(splitk.TEMPLATE, each) for each in (config, other))
    assert first == second


def test_deepest_ring_is_the_last_that_fits() -> None:
    for config in space().configs:
        if config.family is Family.WS_PERSISTENT and config.stages < common.MOST_STAGES:
            deeper = config.model_copy(update={"stages": config.stages + 1})
            assert deeper.shared_bytes > H200.shared_bytes_per_block


def test_unaligned_problems_get_the_kernels_without_tma() -> None:
    for problem in problems("ragged"):
        families = {config.family for config in space().legal(problem)}
        by_tma = any(loads_by_tma(problem, layout) for layout in Layout)
        assert (families == {Family.UNALIGNED}) == (not by_tma)


def test_estimates_grow_with_the_work() -> None:
    config = next(c for c in space().configs if c.family is Family.WS_PERSISTENT and (c.bm, c.bn) == (128, 256))
    times = [estimate_ns(config, Problem.parse(f"4096x4096x{k}"), H200) for k in (512, 1024, 4096, 16384)]
    assert times == sorted(times)
    for shape in ("64x64x64", "8192x8192x8192", "64x16384x16384"):
        problem = Problem.parse(shape)
        assert estimate_ns(best(space(), problem), problem, H200) > H200.limit_ns(problem, cold=True)


def test_ranking_is_by_estimate() -> None:
    problem = Problem.parse("1024x1024x4096")
    found = ranked(space(), problem, 20)
    estimates = [estimate_ns(config, problem, H200) for config in found]
    assert len(found) == len(set(found)) == 20
    assert estimates == sorted(estimates)
    assert min(estimate_ns(config, problem, H200) for config in space().legal(problem)) == estimates[0]
    assert best(space(), problem) == found[0]


@pytest.mark.parametrize(
    ("shape", "track", "splits"),
    [
        ("256x256x16384", Track.F32, {Split.ATOMIC, Split.WORKSPACE, Split.KERNEL, Split.CLUSTER}),
        ("4096x4096x4096", Track.F32, {Split.NONE, Split.STREAM}),
        ("4224x2048x4096", Track.F16, {Split.NONE, Split.STREAM}),
    ],
)
def test_every_promising_mechanism_is_among_the_candidates_of_a_search(shape: str, track: Track, splits: set[Split]) -> None:
    found = ranked(space(), Problem.parse(shape, track), Effort().candidates)
    assert splits <= {config.split for config in found}
    assert (Track.F16 in {config.accumulator for config in found}) == (track is Track.F16)


def test_many_problems_are_ranked_as_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    several = problems("quick")[:4]
    alone = ranked_all(space(), several, 5)
    monkeypatch.setattr("agents.analytic.WORTH_PROCESSES", 1)
    assert ranked_all(space(), several, 5) == alone == {problem: ranked(space(), problem, 5) for problem in several}


def test_the_model_uses_the_families_where_they_belong() -> None:
    families = {shape: best(space(), Problem.parse(shape)) for shape in ("64x64x64", "64x64x16384", "8192x8192x8192")}
    assert families["64x64x64"].family in (Family.LATENCY, Family.REGISTERS)
    assert families["64x64x16384"].split is not Split.NONE
    assert families["8192x8192x8192"].family is Family.WS_PERSISTENT
    assert families["8192x8192x8192"].sums_per_thread >= 64


def test_cover_names_few_kernels() -> None:
    first, second, third = space().configs[:3]
    one, two = Problem.parse("64x64x64"), Problem.parse("64x64x128")
    options: dict[Problem, dict[tuple[str, ...], KernelConfig]] = {
        one: {("a",): first, ("b",): second},
        two: {("c",): third, ("b",): second},
    }
    assert cover(options) == {one: second, two: second}


def test_export_writes_a_submission_whose_plans_are_the_chosen_ones(tmp_path: Path) -> None:
    chosen = choose(space(), problems("ragged")[:6] + problems("quick")[:6])
    directory = tmp_path / "some-kernels"
    for _ in range(2):
        submission = export(chosen, H200, directory, Title("some-kernels", "1.2.3", "Of a test."))
    assert submission.manifest.version == "1.2.3"
    assert submission.manifest.targets == ("sm_90a",)
    outcomes = make_plans(submission, list(chosen), H200)
    assert outcomes == {problem: plan_for(config, problem, H200) for problem, config in chosen.items()}
    (directory / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="something else"):
        export(chosen, H200, directory, Title("some-kernels", "1.2.3", "Of a test."))


def test_hopper_analytic_plans_the_whole_grid_with_few_kernels() -> None:
    submission = Submission.read(HOPPER_ANALYTIC)
    outcomes = make_plans(submission, problems("grid1000"), H200)
    assert len(outcomes) == 1000
    assert all(isinstance(outcome, Plan) for outcome in outcomes.values())
    used = {kernel.source for plan in outcomes.values() if isinstance(plan, Plan) for kernel in plan.kernels.values()}
    held = {file.name for file in submission.files if file.name.startswith("kernels/")}
    assert used == held
    assert len(held) <= 64


@pytest.mark.parametrize("path", sorted(HOPPER_ANALYTIC.glob("kernels/*.cu")), ids=lambda path: path.stem)
def test_hopper_analytic_is_what_the_templates_give(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    fields: dict[str, Any] = json.loads(text.splitlines()[1].removeprefix("// "))
    config = KernelConfig.model_validate(fields)
    assert text == sources_for(config, Problem.parse("64x64x64"))[0].text


def test_ctas_have_whole_strips_where_nearly_as_many_can() -> None:
    """Else as few as there may be without another round."""
    config = next(
        c for c in space().configs if c.held == 1 and not c.swapped and (c.bm, c.bn, c.ping_pong) == (128, 256, False)
    )
    ctas = {
        shape: output.ctas(config, Problem.parse(shape), H200)
        for shape in ("16384x16384x64", "2048x8192x64", "12288x12288x64", "128x256x64")
    }
    assert ctas == {"16384x16384x64": 128, "2048x8192x64": 128, "12288x12288x64": 132, "128x256x64": 1}


def test_the_sanitizer_sees_every_mechanism_on_a_shape_that_it_is_made_for() -> None:
    found = mechanisms()
    assert [each.name for each in found] == [name for name, (fields, _) in BASIC.items() if fields.get("accumulator") != "f16"]
    assert {each.name: reasons for each in found if (reasons := broken_rules(each.config, H200, each.problem))} == {}
    assert len({each.problem for each in found}) == len(found)
