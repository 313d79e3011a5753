"""The arena of buffers, and the facts that a Bench reports of operations that do what they must not."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from fake_device import PROFILE, Contender, FakeDevice, Run, honest, plan
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bench import Bench
from harness.devices import (
    ALIGNMENT_BYTES,
    GUARD_BITS,
    GUARD_BYTES,
    UNSCORED_OPERATIONS,
    ArenaLayout,
    BufferSet,
    poison,
)
from harness.messages import Draw, Inspection, Prepare, Round, Select
from harness.plan import Layout, Plan
from harness.problem import Problem, Track
from harness.record import SUBMISSION, L2State, Measure, Reason
from harness.verify.checks import judge
from harness.verify.inputs import InputKind

PROBLEM = Problem(m=24, n=40, k=20)
COLD, WARM = Measure(), Measure(l2_state=L2State.WARM)
sides = st.integers(1, 70)


@settings(max_examples=60)
@given(sides, sides, sides, st.integers(1, 5), st.integers(0, 300_000), st.integers(0, 9_000))
def test_buffers_are_apart_aligned_and_guarded_on_every_side(
    m: int, n: int, k: int, slots: int, span_bytes: int, workspace_bytes: int
) -> None:
    layout = ArenaLayout.plan(Problem(m=m, n=n, k=k), slots, span_bytes, workspace_bytes)
    memory = torch.zeros(layout.total_bytes, dtype=torch.uint8)
    assert layout.slots * layout.stride_bytes >= span_bytes - slots * ALIGNMENT_BYTES
    owned = [layout.workspace(memory)]
    for slot in range(slots):
        mine = layout.buffers(memory, slot, Layout.NN)
        owned += [mine.a, mine.b, mine.c]
        assert (tuple(mine.a.shape), tuple(mine.b.shape), tuple(mine.c.shape)) == ((m, k), (k, n), (m, n))
        assert layout.addresses(memory.data_ptr(), slot) == tuple(buffer.data_ptr() for buffer in mine)
        assert layout.buffers(memory, slot, Layout.TN).b.data_ptr() == mine.b.data_ptr()
    assert len({buffer.storage_offset() * buffer.element_size() % ALIGNMENT_BYTES for buffer in owned}) == 1
    for buffer in owned:
        if buffer.numel():
            assert buffer.is_contiguous()
            buffer.view(torch.uint8).add_(1)
    assert memory.max() <= 1
    buffers = memory.clone()
    for guard in layout.guards(memory):
        assert guard.shape[1] * 2 >= GUARD_BYTES - ALIGNMENT_BYTES * (guard.shape[0] == 0)
        guard.fill_(0x0202)
    assert torch.equal(buffers == 1, memory == 1)
    # All that lies inside a slot, or around the workspace, is a buffer or a guard; but a byte beside an odd workspace.
    end = layout.guards(memory)[3]
    slot_bytes = 2 * (end.storage_offset() + end.shape[1])
    free = memory[: slots * layout.stride_bytes].view(slots, layout.stride_bytes)[:, :slot_bytes] == 0
    assert not free.any()
    assert int((memory[layout.workspace_offset - GUARD_BYTES :] == 0).sum()) == workspace_bytes % 2


def test_both_layouts_of_b_are_views_of_the_same_bytes() -> None:
    layout = ArenaLayout.plan(PROBLEM, 2, 0, 0)
    memory = torch.zeros(layout.total_bytes, dtype=torch.uint8)
    rows, columns = layout.sets(memory, Layout.NN).b, layout.sets(memory, Layout.TN).b
    assert rows.shape == columns.shape == (2, 20, 40)
    assert rows[1].is_contiguous()
    assert columns[1].T.is_contiguous()
    assert rows.data_ptr() == columns.data_ptr()


def test_poison_is_a_nan_and_never_the_guards() -> None:
    seen = {poison(value) for value in range(1 << 16)}
    assert len(seen) >= 128
    assert GUARD_BITS not in seen
    assert all(bits & 0x7E00 == 0x7E00 and bits & 0x1FF for bits in seen)


def opened(run: Contender | Run = honest, the_plan: Plan | None = None, problem: Problem = PROBLEM) -> tuple[Bench, FakeDevice]:
    device = FakeDevice(run)
    bench = Bench(device)
    request = Prepare(problem=problem, plan=the_plan or plan(), artifacts={}, window_ns=50_000)
    assert bench.prepare(request).warm_applies
    return bench, device


def drawn(
    run: Run, kind: InputKind = InputKind.NORMAL, the_plan: Plan | None = None, problem: Problem = PROBLEM, draws: int = 3
) -> Inspection:
    bench, _ = opened(run, the_plan, problem)
    return bench.draw(Draw(kind=kind, draws=draws, seed=1, repeat=True))


def reason(inspection: Inspection, track: Track = Track.F32) -> Reason | None:
    """What the parent would say of the outputs."""
    assert inspection.errors is not None
    finding = judge(inspection.errors, track)
    return None if finding is None else finding.reason


def facts(inspection: Inspection) -> set[str]:
    return {name for name, value in dict(inspection.integrity).items() if value}


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("kind", list(InputKind))
@pytest.mark.parametrize("problem", [PROBLEM, Problem(m=1, n=1, k=1), Problem(m=65, n=13, k=129)])
def test_an_honest_operation_has_nothing_against_it(layout: Layout, kind: InputKind, problem: Problem) -> None:
    inspection = drawn(honest, kind, plan(layout=layout, workspace_bytes=300, zeroed_bytes=100), problem)
    assert reason(inspection) is None
    assert facts(inspection) == set()
    assert inspection.repeatable
    assert inspection.errors is not None
    assert inspection.errors.outputs == 2 * 3 * problem.m * problem.n


def beside(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """The element that many places behind the start of a buffer."""
    return tensor.as_strided((1,), (1,), tensor.storage_offset() + offset)


def after(act: Callable[[BufferSet], object]) -> Run:
    """An operation that is right, and then does something else."""

    def run(buffers: BufferSet) -> None:
        honest(buffers)
        act(buffers)

    return run


WORKSPACE = plan(workspace_bytes=512, zeroed_bytes=256)
SIZE = PROBLEM.m * PROBLEM.n


@pytest.mark.parametrize(
    ("act", "fact"),
    [
        (lambda b: beside(b.c, SIZE).fill_(1), "guards_changed"),
        (lambda b: beside(b.c, SIZE + GUARD_BYTES // 2 - 1).fill_(1), "guards_changed"),
        (lambda b: beside(b.c, -1).fill_(1), "guards_changed"),
        (lambda b: beside(b.a, -1).fill_(0), "guards_changed"),
        (lambda b: beside(b.a, -GUARD_BYTES // 2).fill_(0), "guards_changed"),
        (lambda b: beside(b.a, b.a.numel()).fill_(0), "guards_changed"),
        (lambda b: beside(b.b, b.b.numel()).fill_(0), "guards_changed"),
        (lambda b: beside(b.workspace, -1).fill_(0), "guards_changed"),
        (lambda b: beside(b.workspace, 512).fill_(0), "guards_changed"),
        (lambda b: b.a[0, 0].add_(1), "inputs_changed"),
        (lambda b: b.a[-1, -1].neg_(), "inputs_changed"),
        (lambda b: b.b[-1, -1].add_(1), "inputs_changed"),
        (lambda b: b.workspace[0].fill_(1), "workspace_dirty"),
        (lambda b: b.workspace[255].fill_(128), "workspace_dirty"),
    ],
)
def test_what_it_does_beside_writing_c_is_a_fact(act: Callable[[BufferSet], object], fact: str) -> None:
    inspection = drawn(after(act), the_plan=WORKSPACE)
    assert facts(inspection) == {fact}
    assert (reason(inspection) is None) == (fact != "inputs_changed")


def test_a_fact_of_the_repetition_counts_too() -> None:
    calls = itertools.count()
    inspection = drawn(after(lambda b: beside(b.c, SIZE).fill_(1) if next(calls) == 5 else None))
    assert facts(inspection) == {"guards_changed"}


def test_the_rest_of_the_workspace_is_the_operations_own() -> None:
    inspection = drawn(after(lambda b: b.workspace[256:].fill_(7)), the_plan=WORKSPACE)
    assert facts(inspection) == set()


def reads_workspace(buffers: BufferSet) -> None:
    honest(buffers)
    buffers.c.add_(buffers.workspace[256:].view(torch.float16)[0])


def accumulates(buffers: BufferSet) -> None:
    buffers.c.add_((buffers.a.float() @ buffers.b.float()).half())


def reads_past_a(buffers: BufferSet) -> None:
    honest(buffers)
    buffers.c.add_(0 * beside(buffers.a, buffers.a.numel()))


def counted(every: int, act: Callable[[BufferSet], object]) -> Run:
    """Right, but for each so many-th call."""
    calls = itertools.count(1)

    def run(buffers: BufferSet) -> None:
        if next(calls) % every:
            honest(buffers)
        else:
            act(buffers)

    return run


WRONG: list[tuple[str, Run, set[Reason]]] = [
    ("writes nothing", lambda b: None, {Reason.UNWRITTEN}),
    (
        "skips the last output",
        lambda b: b.c.view(-1)[:-1].copy_((b.a.float() @ b.b.float()).half().view(-1)[:-1]),
        {Reason.UNWRITTEN},
    ),
    ("skips a row", lambda b: b.c[:-1].copy_((b.a[:-1].float() @ b.b.float()).half()), {Reason.UNWRITTEN}),
    ("skips every third", counted(3, lambda b: None), {Reason.UNWRITTEN}),
    ("accumulates", accumulates, {Reason.UNWRITTEN, Reason.NOT_FINITE}),
    ("zeros", lambda b: b.c.zero_(), {Reason.WRONG_RESULT}),
    ("constant", lambda b: b.c.fill_(1), {Reason.WRONG_RESULT}),
    ("NaN", after(lambda b: b.c[0, 0].fill_(float("nan"))), {Reason.NOT_FINITE}),
    ("infinity", after(lambda b: b.c[-1, -1].fill_(float("inf"))), {Reason.NOT_FINITE}),
    ("negated", after(lambda b: b.c.neg_()), {Reason.WRONG_RESULT}),
    ("one output off", after(lambda b: b.c[3, 3].add_(1)), {Reason.WRONG_RESULT}),
    ("without the last term", lambda b: b.c.copy_((b.a[:, :-1].float() @ b.b[:-1].float()).half()), {Reason.WRONG_RESULT}),
    ("rows swapped", lambda b: b.c.copy_((b.a.flip(0).float() @ b.b.float()).half()), {Reason.WRONG_RESULT}),
    ("reads past A", reads_past_a, {Reason.NOT_FINITE}),
    ("reads the workspace", reads_workspace, {Reason.WRONG_RESULT, Reason.NOT_FINITE, Reason.PRECISION_CLASS}),
    ("one ulp too large", after(lambda b: b.c.view(torch.int16).add_(1)), {Reason.WRONG_RESULT, Reason.PRECISION_CLASS}),
    ("every second is zero", counted(2, lambda b: b.c.zero_()), {Reason.WRONG_RESULT}),
]


@pytest.mark.parametrize(("run", "reasons"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_a_wrong_output_has_its_reason(run: Run, reasons: set[Reason]) -> None:
    found = reason(drawn(run, the_plan=WORKSPACE, draws=6))
    assert found in reasons


def test_outputs_that_depend_on_chance_are_not_repeatable() -> None:
    calls = itertools.count()

    def run(buffers: BufferSet) -> None:
        honest(buffers)
        if next(calls) == 0:
            buffers.c[0, 0] = torch.nextafter(buffers.c[0, 0].float(), torch.tensor(float("inf")))
            buffers.c.view(torch.int16)[0, 0].add_(1)

    inspection = drawn(run)
    assert inspection.repeatable is False


def test_the_second_run_has_other_poison() -> None:
    seen: list[tuple[int, int]] = []

    def run(buffers: BufferSet) -> None:
        seen.append((int(buffers.c.view(torch.int16)[0, 0]), int(buffers.workspace[300])))
        honest(buffers)

    drawn(run, the_plan=WORKSPACE)
    assert len(set(seen[:3])) == len(set(seen[3:6])) == 1
    assert seen[0][0] != seen[3][0]
    assert seen[0][1] != seen[3][1]
    assert all(workspace >= 128 for _, workspace in seen)


def test_outputs_of_other_inputs_are_not_taken_for_done() -> None:
    def run(buffers: BufferSet) -> None:
        if bool(buffers.c.isnan().any()):
            honest(buffers)

    inspection = drawn(run)
    assert judge(inspection.errors, Track.F32) is None
    assert inspection.projection is not None
    found = judge(inspection.projection, Track.F32)
    assert found is not None
    assert found.reason is Reason.WRONG_RESULT


BASELINE_NAMES = ("torch_matmul", "torch_matmul_fp32")


def selected(run: Contender | Run = honest, measure: Measure = COLD) -> tuple[Bench, FakeDevice]:
    bench, device = opened(run)
    chosen = bench.select(Select(measure=measure, contenders=BASELINE_NAMES, seed=1))
    assert chosen.best == "torch_matmul"
    assert chosen.choices["torch_matmul"].operation.key == "torch_matmul/fast"
    bench.select(Select(measure=measure, contenders=(SUBMISSION,), seed=2))
    return bench, device


ORDER = ("torch_matmul", SUBMISSION, "torch_matmul_fp32")


def test_a_selection_sizes_windows_and_verifies_baselines() -> None:
    bench, _ = opened()
    chosen = bench.select(Select(measure=COLD, contenders=BASELINE_NAMES, seed=1))
    assert {name: choice.launches_per_window for name, choice in chosen.choices.items()} == {
        "torch_matmul": 6,
        "torch_matmul_fp32": 4,
    }
    for choice in chosen.choices.values():
        assert choice.errors is not None
        assert judge(choice.errors, Track.F32) is None
    again = bench.select(Select(measure=WARM, contenders=BASELINE_NAMES, keys={"torch_matmul": "torch_matmul/slow"}, seed=1))
    assert again.choices["torch_matmul"].operation.key == "torch_matmul/slow"
    # Another choice is verified like the first; the same one is not verified twice.
    assert {name: choice.errors is None for name, choice in again.choices.items()} == {
        "torch_matmul": False,
        "torch_matmul_fp32": True,
    }


@pytest.mark.parametrize("measure", [COLD, WARM])
def test_a_round_times_everybody_in_order_on_data_in_the_measures_state(measure: Measure) -> None:
    bench, device = selected(measure=measure)
    device.windows.clear()
    result = bench.round(Round(measure=measure, order=ORDER, seed=5, full=True))
    assert {name: time.window_ns for name, time in result.times.items()} == {
        "torch_matmul": 6 * 10_000,
        "torch_matmul_fp32": 4 * 15_000,
        SUBMISSION: 11 * 5_000,
    }
    assert [key.split("/")[0] for key, *_ in device.windows] == list(ORDER)
    for _, slots, l2_state, unscored in device.windows:
        assert (l2_state, unscored) == (measure.l2_state, UNSCORED_OPERATIONS)
        assert len(set(slots)) == (len(slots) if measure is COLD else 1)
        assert max(slots) < device.layout.slots
    inspection = result.inspection
    assert inspection is not None
    assert facts(inspection) == set()
    assert reason(inspection) is None
    assert inspection.errors is not None
    assert inspection.errors.outputs == SIZE * (13 if measure is COLD else 1)


def test_inputs_of_every_window_are_fresh_and_drawn_for_the_submission_alone() -> None:
    inputs: list[bytes] = []
    bench, _ = selected(lambda b: (inputs.append(b.a.numpy().tobytes() + b.b.numpy().tobytes()), honest(b)))
    inputs.clear()
    for number in range(3):
        bench.round(Round(measure=COLD, order=ORDER, seed=number, full=True))
    assert Counter(inputs).most_common(1)[0][1] == 1


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("order", [ORDER, (SUBMISSION, "torch_matmul", "torch_matmul_fp32")])
def test_outputs_of_a_timed_window_are_looked_at(full: bool, order: tuple[str, ...]) -> None:
    for wrong, fact, reasons in (
        (lambda b: None, set(), {Reason.UNWRITTEN}),
        (lambda b: b.c.fill_(1), set(), {Reason.WRONG_RESULT}),
        (after(lambda b: b.c[0, 0].fill_(float("nan"))), set(), {Reason.NOT_FINITE}),
        (after(lambda b: b.c[2, 2].add_(2)), set(), {Reason.WRONG_RESULT}),
        (after(lambda b: beside(b.c, SIZE).fill_(1)), {"guards_changed"}, {None}),
        (after(lambda b: b.b[0, 0].add_(1)), {"inputs_changed"}, {None}),
        (after(lambda b: b.a[0, 0].add_(1)), {"inputs_changed"}, {None}),
    ):
        bench, device = selected()
        device._operations[SUBMISSION] = Contender(wrong)
        inspection = bench.round(Round(measure=COLD, order=order, seed=3, full=full)).inspection
        assert inspection is not None
        evidence = inspection.errors if full else inspection.projection
        assert evidence is not None
        assert (inspection.errors is None) != full
        timed = next((slots, unscored) for key, slots, _, unscored in reversed(device.windows) if key == SUBMISSION)
        assert device.examined == ([timed] if full else [])
        finding = judge(evidence, Track.F32)
        changed = "inputs_changed" in fact
        assert facts(inspection) == fact
        assert changed or (finding.reason if finding else None) in reasons


def test_outputs_that_appear_after_the_window_do_not_count() -> None:
    """Host code can go on in the background: here it copies what a baseline computes later from the same inputs."""
    bench, device = selected()
    latest: list[BufferSet] = []
    device._operations[SUBMISSION] = Contender(latest.append)
    device._operations["torch_matmul_fp32/only"] = Contender(lambda b: (honest(b), [honest(late) for late in latest]))
    result = bench.round(Round(measure=COLD, order=ORDER, seed=3, full=True))
    assert latest
    assert result.inspection is not None
    assert reason(result.inspection) is Reason.UNWRITTEN


def test_warm_data_must_fit_in_the_cache() -> None:
    bench = Bench(FakeDevice())
    inside = Problem(m=256, n=256, k=256)
    beyond = Problem(m=256, n=256, k=512)
    assert inside.bytes_total <= PROFILE.l2_bytes / 2 < beyond.bytes_total
    for problem, applies in ((inside, True), (beyond, False)):
        assert bench.prepare(Prepare(problem=problem, plan=plan(), artifacts={}, window_ns=1)).warm_applies is applies
