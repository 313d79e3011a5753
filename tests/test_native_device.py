"""Kind `native` on a CUDA device, on a card of fake CUDA: who does what, and what a library must not do."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from fake_cuda import FakeCard, FakeCuda
from native_world import COLD, ORDER, PROBLEM, WINDOW_NS, NewWorld, World, honest, maker, plan, product, timed

from harness import messages
from harness.bench import Bench
from harness.devices import BufferSet, MachineFault, SubmissionFault
from harness.devices.cuda_graph import Node, Span, check_nodes
from harness.devices.cuda_native import LEVELS
from harness.diagnosis import Outcome
from harness.doctor import _native_check
from harness.messages import Draw, Inspection, Prepare, Round, Select, Selected, StandIn
from harness.plan import Layout
from harness.problem import Problem
from harness.record import SUBMISSION, Reason
from harness.verify.checks import judge
from harness.verify.inputs import InputKind, plan_draws


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> NewWorld:
    return maker(monkeypatch)


def drawn(found: World, kind: InputKind = InputKind.NORMAL) -> Inspection:
    return found.bench().draw(Draw(kind=kind, draws=2, seed=5, repeat=kind is InputKind.NORMAL))


def fault(found: World) -> SubmissionFault:
    """What the first draw ends with."""
    with pytest.raises(SubmissionFault) as error:
        drawn(found)
    return error.value


def test_an_honest_library_is_right_on_every_kind_of_input(world: NewWorld) -> None:
    found = world()
    bench = found.bench()
    for draw in plan_draws(PROBLEM):
        inspection = bench.draw(Draw(kind=draw.kind, draws=draw.sets, seed=9, repeat=draw.kind is InputKind.NORMAL))
        assert inspection.errors is not None
        assert judge(inspection.errors, PROBLEM.track) is None
        assert not any((inspection.integrity.guards_changed, inspection.integrity.inputs_changed))
        assert inspection.projection is None or judge(inspection.projection, PROBLEM.track) is None
    assert Counter(found.workers[0].requests)["capture_window"] == len({draw.sets for draw in plan_draws(PROBLEM)})
    # The first call ever may load code.
    assert found.cuda.modes[0] == "Relaxed"
    assert set(found.cuda.modes[1:]) == {"Global"}


def test_an_honest_library_is_timed_beside_a_baseline(world: NewWorld) -> None:
    found = world()
    bench = found.bench()
    theirs = bench.select(Select(measure=COLD, contenders=("cublas",), seed=1))
    mine = bench.select(Select(measure=COLD, contenders=(SUBMISSION,), seed=2))
    assert theirs.choices["cublas"].errors is not None
    assert judge(theirs.choices["cublas"].errors, PROBLEM.track) is None
    assert mine.choices[SUBMISSION].operation.description.startswith("hgemm_run (native, loaded and created in ")
    result = bench.round(Round(measure=COLD, order=ORDER, seed=3, full=True))
    launches = {name: choice.launches_per_window for name, choice in (theirs.choices | mine.choices).items()}
    launch_ns = {name: time.window_ns / launches[name] for name, time in result.times.items()}
    assert launch_ns == {"cublas": 7_000, SUBMISSION: 5_000}
    assert result.inspection is not None
    assert result.inspection.errors is not None
    assert judge(result.inspection.errors, PROBLEM.track) is None
    # The library is called under strict rules, the libraries of baselines as they need it.
    assert set(found.cuda.modes) == {"Global", "Relaxed"}


def test_the_library_is_called_again_for_no_window_that_it_has_seen(world: NewWorld) -> None:
    calls = []

    def run(cuda: FakeCuda, buffers: BufferSet) -> int:
        calls[-1] += 1
        return honest(cuda, buffers)

    for rounds in (1, 4):
        calls.append(0)
        assert len(timed(world(run), rounds)) == rounds
    assert calls[0] == calls[1]


def at_once(cuda: FakeCuda, buffers: BufferSet) -> int:
    """It computes while it is called, on a stream of its own, and leaves an empty kernel in the graph."""
    cuda.at_once(lambda: product(buffers))
    cuda.launch("gemm", lambda: None)
    return 0


def aside(cuda: FakeCuda, buffers: BufferSet) -> int:
    """It computes into memory of its own while it is called, and leaves a copy in the graph."""
    kept = (buffers.a.float() @ buffers.b.float()).half()
    cuda.launch("gemm", lambda: buffers.c.copy_(kept))
    return 0


@pytest.mark.parametrize("run", [at_once, aside])
def test_what_is_computed_before_the_window_is_of_no_use(world: NewWorld, run: Any) -> None:
    inspection = drawn(world(run), InputKind.PERMUTATION)
    assert inspection.errors is not None
    finding = judge(inspection.errors, PROBLEM.track)
    assert finding is not None
    assert finding.reason in (Reason.UNWRITTEN, Reason.WRONG_RESULT, Reason.NOT_FINITE)


def test_without_inverted_memory_it_would_be_of_use(world: NewWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    found = world(at_once)
    monkeypatch.setattr(torch.Tensor, "bitwise_not_", lambda self: self)
    errors = drawn(found, InputKind.PERMUTATION).errors
    assert errors is not None
    assert judge(errors, PROBLEM.track) is None


def allocates(cuda: FakeCuda, buffers: BufferSet) -> int:
    return cuda.unsafe("cudaMalloc") or honest(cuda, buffers)


def synchronises(cuda: FakeCuda, buffers: BufferSet) -> int:
    honest(cuda, buffers)
    cuda.unsafe("cudaDeviceSynchronize")
    return 0


def allocates_unseen(cuda: FakeCuda, buffers: BufferSet) -> int:
    cuda.free_bytes -= 2 << 20
    return honest(cuda, buffers)


def changes_a_limit(cuda: FakeCuda, buffers: BufferSet) -> int:
    cuda.limits["cudaLimitStackSize"] += 1
    return honest(cuda, buffers)


def launches_another(cuda: FakeCuda, buffers: BufferSet) -> int:
    cuda.launch("ampere_h1688", lambda: product(buffers))
    return 0


def copies(cuda: FakeCuda, buffers: BufferSet) -> int:
    cuda.copy()
    return honest(cuda, buffers)


def fills_its_input(cuda: FakeCuda, buffers: BufferSet) -> int:
    honest(cuda, buffers)
    cuda.fill(buffers.a, 0)
    return 0


def overlaps(cuda: FakeCuda, buffers: BufferSet) -> int:
    first = not cuda.capture or not cuda.capture.nodes
    cuda.launch("gemm", lambda: product(buffers), programmatic=not first)
    return 0


def fails(cuda: FakeCuda, buffers: BufferSet) -> int:
    return 7


@pytest.mark.parametrize(
    ("run", "reason", "says"),
    [
        (allocates, Reason.FORBIDDEN, "allocates memory"),
        (synchronises, Reason.FORBIDDEN, "no capture allows"),
        (allocates_unseen, Reason.FORBIDDEN, "allocates memory"),
        (changes_a_limit, Reason.FORBIDDEN, "changes limits"),
        (launches_another, Reason.FORBIDDEN, "launches ampere_h1688"),
        (copies, Reason.FORBIDDEN, "enqueues a memcpy"),
        (fills_its_input, Reason.FORBIDDEN, "outside C and the workspace"),
        (overlaps, Reason.FORBIDDEN, "next operation start before it ends"),
        (fails, Reason.LAUNCH_ERROR, "hgemm_run returned 7"),
    ],
)
def test_what_hgemm_run_must_not_do_is_said(world: NewWorld, run: Any, reason: Reason, says: str) -> None:
    error = fault(world(run))
    assert (error.reason, says in str(error)) == (reason, True), str(error)
    # What changes the device for whoever comes next costs the worker.
    assert error.fatal == (says == "changes limits")


def test_work_of_the_first_call_alone_is_refused(world: NewWorld) -> None:
    calls = []

    def tunes(cuda: FakeCuda, buffers: BufferSet) -> int:
        for _ in range(1 if calls else 3):
            cuda.launch("gemm", lambda: product(buffers))
        calls.append(1)
        return 0

    assert "the same work every time" in str(fault(world(tunes)))


def test_code_may_be_loaded_by_the_first_launch(world: NewWorld) -> None:
    calls = []

    def lazy(cuda: FakeCuda, buffers: BufferSet) -> int:
        cuda.free_bytes -= 0 if calls else 2 << 20
        calls.append(1)
        return honest(cuda, buffers)

    errors = drawn(world(lazy)).errors
    assert errors is not None
    assert judge(errors, PROBLEM.track) is None


def test_a_library_may_fill_c_and_its_workspace_and_launch_several_kernels(world: NewWorld) -> None:
    def run(cuda: FakeCuda, buffers: BufferSet) -> int:
        cuda.fill(buffers.c, 0)
        cuda.fill(buffers.workspace, 1)
        cuda.launch("other", lambda: None)
        return honest(cuda, buffers)

    found = world(run)
    errors = (
        found.bench(the_plan=plan(workspace_bytes=4096)).draw(Draw(kind=InputKind.NORMAL, draws=2, seed=1, repeat=True)).errors
    )
    assert errors is not None
    assert judge(errors, PROBLEM.track) is None


def test_create_may_not_change_limits(world: NewWorld) -> None:
    found = world()
    found.create = lambda: found.cuda.limits.update({"cudaLimitPersistingL2CacheSize": 1 << 20})
    with pytest.raises(SubmissionFault, match="hgemm_create changes limits") as error:
        found.bench()
    assert (error.value.reason, error.value.fatal) == (Reason.FORBIDDEN, True)


def test_nodes_are_judged_by_kind_and_reach() -> None:
    writable = frozenset({Span(1000, 2000)})
    fine = (Node("kernel", "mine"), Node("kernel", "probe"), Node("event_record"), Node("memset", start=1000, size_bytes=1000))
    check_nodes(fine, frozenset({"mine"}), writable)
    for node, says in (
        (Node("kernel", "yours"), "launches yours"),
        (Node("memset", start=999, size_bytes=2), "outside C"),
        (Node("memset", start=1999, size_bytes=2), "outside C"),
        *((Node(kind), kind.replace("_", " ")) for kind in ("memcpy", "host", "graph", "mem_alloc", "wait_event", "empty")),
    ):
        with pytest.raises(SubmissionFault, match=says) as error:
            check_nodes((*fine, node), frozenset({"mine"}), writable)
        assert error.value.reason is Reason.FORBIDDEN


@pytest.mark.parametrize("overhead_ns", [0, 400_000])
@pytest.mark.parametrize(("shortened", "accepted"), [(1.0, True), (0.5, False)])
def test_the_parents_clock_bounds_what_the_worker_reports(
    world: NewWorld, monkeypatch: pytest.MonkeyPatch, shortened: float, accepted: bool, overhead_ns: int
) -> None:
    """Whatever passes beside the operations, as long as the baselines show it too."""
    monkeypatch.setattr("harness.devices.cuda_native.CLOCK_SLACK_NS", 0)
    monkeypatch.setattr("harness.devices.cuda_native.CLOCK_SLACK_SHARE", 0.0)
    found = world()
    found.overhead_ns = overhead_ns

    def select(bench: Bench, request: Select) -> Selected:
        found.shortened = shortened if request.contenders == (SUBMISSION,) else 1.0
        return chosen(bench, request)

    chosen = Bench.select
    monkeypatch.setattr(Bench, "select", select)
    if accepted:
        assert timed(found)
        return
    with pytest.raises(SubmissionFault, match="by the parent's clock") as error:
        timed(found)
    assert error.value.reason is Reason.CLOCK_MISMATCH


def test_work_may_not_move_from_timed_operations_to_unscored_ones(world: NewWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first operation of a graph computes everything, so that the timed ones have nothing left to do."""
    monkeypatch.setattr("harness.devices.cuda_native.CLOCK_SLACK_NS", 0)

    def moved(cuda: FakeCuda, buffers: BufferSet) -> int:
        nodes = cuda.capture.nodes if cuda.capture else []
        cuda.launch("gemm", lambda: product(buffers), 100 if any(node.name == "probe" for node in nodes) else 20_000)
        return 0

    with pytest.raises(SubmissionFault) as error:
        timed(world(moved))
    assert error.value.reason is Reason.CLOCK_MISMATCH


def test_memory_grows_only_once_the_worker_let_go_of_it(world: NewWorld) -> None:
    found = world()
    bench = found.bench()
    large = Problem(m=512, n=512, k=512)
    bench.prepare(Prepare(problem=large, plan=plan(), artifacts={"k": "k.so"}, window_ns=WINDOW_NS, sets=6))
    errors = bench.draw(Draw(kind=InputKind.NORMAL, draws=1, seed=1, repeat=True)).errors
    assert errors is not None
    assert judge(errors, large.track) is None
    assert len(found.cuda.mapped) == 1
    assert found.states == [f"{PROBLEM} NN destroyed", f"{large} NN"]


def test_a_worker_that_cannot_map_memory_gets_fewer_namespaces(world: NewWorld) -> None:
    found = world(honest, LEVELS[1:])
    device = found.device()
    assert [(worker.namespaces, worker.alive) for worker in found.workers] == [(LEVELS[0], False), (LEVELS[1], True)]
    assert "ipc" not in device.info.conditions["isolation"]
    # What did not work once is not tried again.
    found.device()
    assert [worker.namespaces for worker in found.workers] == [LEVELS[0], LEVELS[1], LEVELS[1]]
    alone = world(honest, LEVELS[2:]).device()
    assert alone.info.conditions["isolation"] == "none: what is needed does not work in namespaces"
    assert alone.info.conditions["ecc"] == "1"


def test_where_nothing_can_map_memory_the_machine_is_at_fault(world: NewWorld) -> None:
    with pytest.raises(MachineFault, match="MapBufferObjectFailed"):
        world(honest, ()).device()


def test_a_baseline_can_stand_in_for_the_submission(world: NewWorld) -> None:
    found = world()
    bench = found.bench()
    bench.prepare(
        Prepare(problem=PROBLEM, plan=StandIn(baseline="cublas"), artifacts={}, window_ns=WINDOW_NS, sets=6)
    )  # fmt: skip
    bench.select(Select(measure=COLD, contenders=("cublas",), seed=1))
    bench.select(Select(measure=COLD, contenders=(SUBMISSION,), seed=2))
    result = bench.round(Round(measure=COLD, order=ORDER, seed=3, full=True))
    assert result.times[SUBMISSION] == result.times["cublas"]
    assert found.states == [f"{PROBLEM} NN destroyed"]


def test_a_worker_cannot_pass_off_other_operations_as_candidates(world: NewWorld) -> None:
    found = world()
    device = found.bench().device
    (chosen,) = device.bind_baselines(("cublas",), (f"cublas/{Layout.TN}",))
    assert chosen.layout is Layout.TN
    stranger = chosen.model_copy(update={"contender": "torch_matmul"})
    found.workers[0].call = lambda request, reply, timeout_s: messages.Bound(operations=(stranger,))  # type: ignore[method-assign]
    with pytest.raises(SubmissionFault, match="nobody asked for"):
        device.bind_baselines(("cublas",), None)


def test_losers_are_forgotten_in_the_worker(world: NewWorld) -> None:
    found = world()
    timed(found)
    assert "drop" in found.workers[0].requests


def test_server_mode_is_refused_in_a_sentence(world: NewWorld) -> None:
    with pytest.raises(MachineFault, match="server mode needs a CUDA device and kind device"):
        world().device().port({}, 1, None)


@pytest.mark.parametrize(
    ("levels", "outcome", "says"),
    [
        (LEVELS, Outcome.OK, "it runs on this device; isolation: namespaces of its own"),
        (LEVELS[2:], Outcome.WARN, "it runs on this device; isolation: none: what is needed does not work in namespaces"),
        ((), Outcome.WARN, "it cannot run on this device: CUDA failed"),
    ],
)
def test_doctor_says_what_is_taken_away(
    world: NewWorld, monkeypatch: pytest.MonkeyPatch, levels: tuple[tuple[str, ...], ...], outcome: Outcome, says: str
) -> None:
    found = world(honest, levels)
    monkeypatch.setattr("harness.isolation._prefix", lambda whole, namespaces: ("unshare", *namespaces))
    monkeypatch.setattr("harness.devices.cuda_native.open_card", lambda index: FakeCard(found.cuda))
    check = _native_check("cuda:0")
    assert (check.outcome, says in check.detail) == (outcome, True), check.detail
    assert not any(worker.alive for worker in found.workers)
