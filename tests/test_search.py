"""The search over configurations, with a device that a test makes up: order, failures, resuming, and who wins."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from factories import make_record
from fake_device import Contender, FakeDevice, FakeDriver, plan

from agents.analytic import estimate_ns, ranked
from agents.config import KernelConfig, Split
from agents.effort import Effort
from agents.export import Title, export
from agents.journal import Final, Heat, Journal, Segment, read_journal
from agents.measuring import Candidate, Failed, HeatTime, Screener
from agents.search import Search, speedup, winners
from agents.space import Space, kernels_for, plan_for
from harness.devices import BufferSet, SubmissionFault
from harness.model import DataError, InfraError
from harness.plan import Plan
from harness.planner import make_plans
from harness.problem import Problem
from harness.profiles import load_profile
from harness.protocol import Purpose, protocol_for
from harness.record import Reason, Record, Status
from harness.run import DeviceInfo

H200 = load_profile("h200")
PROTOCOL = protocol_for(H200, Purpose.SCREEN)
PROBLEMS = (Problem.parse("64x64x64"), Problem.parse("512x512x512"))
CONFIG = KernelConfig.model_validate({"family": "latency", "layout": "TN", "bm": 64, "bn": 64, "stages": 2})
EFFORT = Effort(candidates=6, variants=0, transfers=0, batch=2, finalists=2, margin=2.0)


@pytest.fixture(scope="module")
def space() -> Space:
    return Space(H200)


class FakeScreener:
    """Times come from `times` by the plan's grid and kernel; what is in `wrong`, `failing` or `fatal` is not right."""

    def __init__(self) -> None:
        self.info = DeviceInfo(profile="h200", name="simulated", uuid="0", driver="0", libraries={}, timer="none")
        self.protocol = PROTOCOL
        self.heated: list[tuple[Problem, str]] = []
        self.measured: list[tuple[Problem, str]] = []
        self.fatal: set[str] = set()
        self.wrong: set[str] = set()
        self.abandoned = False

    def abandon(self) -> None:
        self.abandoned = True

    def heat(self, candidate: Candidate) -> HeatTime:
        name = next(iter(candidate.plan.kernels))
        self.heated.append((candidate.problem, name))
        if name in self.fatal:
            raise Failed("crash", fatal=True, machine=False)
        count = len(self.heated)
        return HeatTime(1000.0 + count, (10_000 + 10 * count,), 10)

    def measure(self, candidate: Candidate) -> Record:
        name = next(iter(candidate.plan.kernels))
        self.measured.append((candidate.problem, name))
        baselines = {"cublaslt_autotuned": 1.0 + 0.1 * len(self.measured)}
        status = Status.REJECTED if name in self.wrong else Status.VERIFIED
        return make_record(candidate.problem, status, baselines)


def search_in(tmp_path: Path, space: Space, screener: Any, effort: Effort = EFFORT) -> Search:
    with Journal(tmp_path / "search.jsonl") as journal:
        search = Search(space, PROBLEMS, journal, effort)
        search.artifacts = {name: tmp_path / name for name in names(search)}
        search.run([screener], None)
    return search


def names(search: Search) -> set[str]:
    """Kernels of every candidate, as if all were built."""
    return {name for problem, configs in search._candidates.items() for c in configs for name in kernels_for(c, problem)}


def test_every_problem_has_its_turn_and_the_fastest_are_verified(tmp_path: Path, space: Space) -> None:
    screener = FakeScreener()
    search = search_in(tmp_path, space, screener)
    assert [problem for problem, _ in screener.heated[:4]] == [PROBLEMS[0]] * 2 + [PROBLEMS[1]] * 2
    assert len(screener.heated) == 12
    assert [problem for problem, _ in screener.measured] == list(PROBLEMS) * 2
    assert [screener.heated[0], screener.heated[2]] == screener.measured[:2]
    best = search.best()
    assert {problem: speedup(final) for problem, final in best.items()} == pytest.approx(
        {
            PROBLEMS[0]: 1.3 * 0.995012,
            PROBLEMS[1]: 1.4 * 0.995012,
        }
    )
    lines = list(read_journal(tmp_path / "search.jsonl"))
    assert [type(line) for line in lines] == [Segment] + [Heat] * 12 + [Final] * 4
    assert winners(lines) == {problem: final.config for problem, final in best.items()}


def test_after_every_way_to_divide_a_problem_the_variants_of_the_fastest_are_timed(tmp_path: Path, space: Space) -> None:
    def timed(effort: Effort) -> list[KernelConfig]:
        screener = FakeScreener()
        with Journal(tmp_path / "search.jsonl") as journal:
            search = Search(space, PROBLEMS[1:], journal, effort)
            possible = (each for first in search._candidates[PROBLEMS[1]] for each in space.variants(first, PROBLEMS[1]))
            search.artifacts = {name: tmp_path / name for config in possible for name in kernels_for(config, PROBLEMS[1])}
            search.run([screener], None)
        return list(search._heats[PROBLEMS[1]])

    effort = EFFORT._replace(variants=3, leaders=6)
    found = timed(effort)
    firsts, variants = found[:6], found[6:]
    assert len({space.designs[space.index[config]] for config in firsts}) == 6
    # The simulated times rise from one heat to the next, so with six leaders the order is that of the model.
    siblings = {each for leader in firsts for each in space.variants(leader, PROBLEMS[1])} - set(firsts)
    order = sorted((estimate_ns(each, PROBLEMS[1], H200), space.index[each], each) for each in siblings)
    assert len(order) > 3
    assert [estimate_ns(each, PROBLEMS[1], H200) for each in variants] == [estimate for estimate, *_ in order[:3]]
    assert set(variants) < siblings
    assert timed(effort) == found


def test_what_is_fastest_for_shapes_like_it_is_timed_too(tmp_path: Path, space: Space) -> None:
    """Of the nearest shape first, and of a transpose with P and Q in each other's place."""
    tall, wide, other = (Problem.parse(shape) for shape in ("1024x512x512", "512x1024x512", "64x64x64"))
    flipped = {config: config.model_copy(update={"swapped": not config.swapped}) for config in ranked(space, wide, 40)}
    fastest = [config for config, other_way in flipped.items() if space.is_legal(other_way, tall)][-1]
    far = next(config for config in space.legal(other) if space.is_legal(config, tall) and config != fastest)
    expected = flipped[fastest]
    with Journal(tmp_path / "search.jsonl") as journal:
        for problem, config in ((other, far), (wide, fastest)):
            journal.append(Heat(problem=problem, config=config, launch_ns=1000.0))
        search = Search(space, [tall], journal, EFFORT._replace(candidates=1, transfers=2))
        search.artifacts = {name: tmp_path / name for config in space.legal(tall) for name in kernels_for(config, tall)}
        assert set(search._buildable()) >= {(wide, fastest), (other, far)}
        search.run([FakeScreener()], None)
    timed = list(search._heats[tall])
    assert expected not in timed[:1]
    assert timed[1] == expected
    assert set(timed[2:]) <= {far, far.model_copy(update={"swapped": not far.swapped}), fastest}


class Paired(FakeScreener):
    """Its first heat begins when another device's does."""

    def __init__(self, together: threading.Barrier) -> None:
        super().__init__()
        self.together = together

    def heat(self, candidate: Candidate) -> HeatTime:
        if not self.heated:
            self.together.wait(30)
        return super().heat(candidate)


def on_two_devices(tmp_path: Path, space: Space, screeners: list[Any]) -> list[Heat | Final]:
    with Journal(tmp_path / "search.jsonl") as journal:
        search = Search(space, PROBLEMS, journal, EFFORT)
        search.artifacts = {name: tmp_path / name for name in names(search)}
        search.run(screeners, None)
    return [line for line in read_journal(tmp_path / "search.jsonl") if not isinstance(line, Segment)]


def test_two_devices_share_the_candidates(tmp_path: Path, space: Space) -> None:
    together = threading.Barrier(2)
    first, second = Paired(together), Paired(together)
    lines = on_two_devices(tmp_path, space, [first, second])
    assert first.heated
    assert second.heated
    heats = [line for line in lines if isinstance(line, Heat)]
    assert len(heats) == len({(line.problem, line.config) for line in heats}) == 12
    finals = [line for line in lines if isinstance(line, Final)]
    assert len(finals) == len({(line.problem, line.config) for line in finals}) == 4


def test_a_device_that_fails_ends_the_search_of_all(tmp_path: Path, space: Space) -> None:
    class Full(Paired):
        def heat(self, candidate: Candidate) -> HeatTime:
            self.together.wait(30)
            raise InfraError("the disk is full, or so it seems.")

    together = threading.Barrier(2)
    other = Full(together)
    with pytest.raises(InfraError, match="the disk is full"):
        on_two_devices(tmp_path, space, [Paired(together), other])
    assert other.abandoned
    assert len(list(read_journal(tmp_path / "search.jsonl"))) < 2 + 12 + 4


def test_going_on_repeats_nothing(tmp_path: Path, space: Space) -> None:
    search_in(tmp_path, space, FakeScreener())
    path = tmp_path / "search.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:6]) + whole[6][:50])
    again = FakeScreener()
    search_in(tmp_path, space, again)
    assert len(again.heated) == 12 - 5
    lines = list(read_journal(path))
    assert len({(line.problem, line.config) for line in lines if isinstance(line, Heat)}) == 12
    idle = FakeScreener()
    search_in(tmp_path, space, idle)
    assert (idle.heated, idle.measured) == ([], [])


def test_a_kernel_that_costs_the_worker_is_not_tried_again(tmp_path: Path, space: Space) -> None:
    first = FakeScreener()
    search_in(tmp_path / "a", space, first)
    screener = FakeScreener()
    screener.fatal = {first.heated[0][1]}
    search_in(tmp_path / "b", space, screener)
    assert [name for _, name in screener.heated].count(first.heated[0][1]) == 1
    assert first.heated[0][1] not in {name for _, name in screener.measured}
    failed = [line for line in read_journal(tmp_path / "b" / "search.jsonl") if isinstance(line, Heat) and line.fatal]
    assert [line.launch_ns for line in failed] == [None]


def test_what_is_wrong_never_wins_and_makes_room(tmp_path: Path, space: Space) -> None:
    first = FakeScreener()
    search_in(tmp_path / "a", space, first, EFFORT._replace(finalists=1))
    screener = FakeScreener()
    screener.wrong = {name for _, name in first.measured}
    search_in(tmp_path / "b", space, screener, EFFORT._replace(finalists=2))
    won = winners(list(read_journal(tmp_path / "b" / "search.jsonl")))
    assert len(won) == 2
    assert not {name for problem, config in won.items() for name in kernels_for(config, problem)} & screener.wrong


def test_the_budget_ends_heats_and_finals(tmp_path: Path, space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr("agents.search.time.monotonic", lambda: float(next(clock)))
    screener = FakeScreener()
    with Journal(tmp_path / "search.jsonl") as journal:
        search = Search(space, PROBLEMS, journal, EFFORT)
        search.artifacts = {name: tmp_path / name for name in names(search)}
        search.run([screener], 10.0)
    assert 0 < len(screener.heated) < 8
    assert 0 < len(screener.measured) <= 4


def test_build_leaves_out_what_spills_and_fills_the_cache(tmp_path: Path, space: Space) -> None:
    with Journal(tmp_path / "search.jsonl") as journal:
        search = Search(space, PROBLEMS[:1], journal, Effort(candidates=3))
        search.build(tmp_path / "sources")
    assert set(search.artifacts) >= names(search)
    variants = {each for first in search._candidates[PROBLEMS[0]] for each in space.variants(first, PROBLEMS[0])}
    assert set(search.artifacts) == {name for config in variants for name in kernels_for(config, PROBLEMS[0])}
    assert all(path.is_file() for path in search.artifacts.values())


def test_without_finals_the_fastest_heat_wins_unless_its_kernel_was_wrong_elsewhere(tmp_path: Path, space: Space) -> None:
    screener = FakeScreener()
    search_in(tmp_path, space, screener, EFFORT._replace(finalists=0))
    lines = list(read_journal(tmp_path / "search.jsonl"))
    heats = [line for line in lines if isinstance(line, Heat) and line.problem == PROBLEMS[0]]
    assert winners(lines)[PROBLEMS[0]] == heats[0].config
    record = make_record(PROBLEMS[1], Status.REJECTED, {"cublaslt_autotuned": 1.0})
    names_of_first = kernels_for(heats[0].config, PROBLEMS[0])
    lines.append(Final(problem=PROBLEMS[1], config=heats[0].config, record=record))
    right = [heat for heat in heats if kernels_for(heat.config, PROBLEMS[0]) != names_of_first]
    assert winners(lines)[PROBLEMS[0]] == right[0].config


class Partial(FakeScreener):
    """Finds one way to add up sums fast."""

    def __init__(self, zeroed: bool, deterministic: bool) -> None:
        super().__init__()
        self.liked = (zeroed, deterministic)

    def heat(self, candidate: Candidate) -> HeatTime:
        timed = super().heat(candidate)
        liked = (candidate.plan.zeroed_bytes > 0, candidate.plan.deterministic) == self.liked
        return timed._replace(launch_ns=timed.launch_ns / 10) if liked else timed


@pytest.mark.parametrize(
    ("shape", "split", "deterministic"),
    [("64x64x16384", Split.ATOMIC, False), ("4096x4096x4096", Split.STREAM, True)],
)
def test_the_usual_effort_finds_and_exports_every_way_to_share_tiles(
    tmp_path: Path, space: Space, shape: str, split: Split, deterministic: bool
) -> None:
    problem = Problem.parse(shape)
    with Journal(tmp_path / "search.jsonl") as journal:
        search = Search(space, (problem,), journal, Effort(finalists=1))
        search.artifacts = {name: tmp_path / name for name in names(search)}
        search.run([Partial(zeroed=True, deterministic=deterministic)], None)  # type: ignore[arg-type]
    won = winners(list(read_journal(tmp_path / "search.jsonl")))
    assert won[problem].split is split
    submission = export(won, H200, tmp_path / "won", Title("won", "1.0.0", "Of a test."))
    plan = make_plans(submission, [problem], H200)[problem]
    assert plan == plan_for(won[problem], problem, H200)
    assert isinstance(plan, Plan)
    assert plan.deterministic == deterministic
    assert 0 < plan.zeroed_bytes <= plan.workspace_bytes


class Workshop:
    """A Screener over simulated devices, a fresh one for every worker that it costs."""

    def __init__(self, patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        patch.setattr("agents.measuring.open_driver", self.open)
        self.contender = Contender(launch_ns=7_000)
        self.drivers: list[FakeDriver] = []

    def open(self, device: str) -> FakeDriver:
        assert device == "cpu"
        self.drivers.append(FakeDriver(FakeDevice(self.contender)))
        return self.drivers[-1]


@pytest.fixture
def workshop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Workshop:
    return Workshop(monkeypatch, tmp_path)


CANDIDATE = Candidate(Problem.parse("33x20x17"), plan(), {"k": Path("k.so")})


def test_the_screener_times_and_verifies_with_the_harness(workshop: Workshop) -> None:
    with Screener("cpu") as screener:
        heat = screener.heat(CANDIDATE)
        assert heat.launch_ns == 7_000
        assert {ns / heat.launches for ns in heat.window_ns} == {7_000.0}
        record = screener.measure(CANDIDATE)
    assert record.status is Status.VERIFIED
    assert not record.rankable
    assert record.timings[0].speedups["torch_matmul_fp32"].value == pytest.approx(15 / 7)
    assert (len(workshop.drivers), workshop.drivers[0].closed) == (1, 1)


def test_a_wrong_candidate_is_rejected_however_fast(workshop: Workshop) -> None:
    workshop.contender = Contender(run=lambda buffers: buffers.c.zero_(), launch_ns=1)
    with Screener("cpu") as screener:
        record = screener.measure(CANDIDATE)
    assert record.status is Status.REJECTED
    assert speedup(Final(problem=CANDIDATE.problem, config=CONFIG, record=record)) is None


def test_a_candidate_that_costs_the_worker_fails_and_the_next_has_a_fresh_one(workshop: Workshop) -> None:
    def crash(buffers: BufferSet) -> None:
        raise SubmissionFault(Reason.ILLEGAL_ACCESS, "it went wrong", fatal=True)

    workshop.contender = Contender(run=crash)
    with Screener("cpu") as screener:
        for action in (screener.heat, screener.measure):
            with pytest.raises(Failed, match="it went wrong") as caught:
                action(CANDIDATE)
            assert (caught.value.fatal, caught.value.machine) == (True, False)
        workshop.contender = Contender(launch_ns=9_000)
        assert screener.heat(CANDIDATE).launch_ns == 9_000
    assert len(workshop.drivers) == 3


def test_a_journal_names_its_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "search.jsonl"
    path.write_text('{"type": "heat"}\n')
    with pytest.raises(DataError, match=r"search\.jsonl:1 is not valid"):
        list(read_journal(path))
    path.write_text("nonsense\n")
    with pytest.raises(DataError, match="not one JSON object"):
        list(read_journal(path))
    heat = Heat(problem=PROBLEMS[0], config=CONFIG, launch_ns=1.5, window_ns=(3,), launches=2)
    path.write_text(heat.model_dump_json(exclude_none=True) + "\n")
    assert list(read_journal(path)) == [heat]
