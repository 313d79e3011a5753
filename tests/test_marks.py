"""Marks: doing the work of many operations of a window in one of them shows, in either kind."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from fake_cuda import FakeCuda
from native_world import PROBLEM, FakeCudaDevice, NewWorld, RunLibrary, World, honest, maker, product, timed

from harness.devices import ArenaLayout, BufferSet, OperationInfo, Sets, SubmissionFault
from harness.devices.marks import Marks
from harness.plan import Layout
from harness.record import SUBMISSION, L2State, Reason
from harness.verify.checks import judge


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> NewWorld:
    return maker(monkeypatch)


def in_one() -> Any:
    """A library whose first operation of a window computes all of them, each time that the window runs."""
    known: list[BufferSet] = []

    def run(cuda: FakeCuda, buffers: BufferSet) -> int:
        nonlocal known
        first = not any(node.name == "gemm" for node in (cuda.capture.nodes if cuda.capture else ()))
        known = [buffers] if first else known
        mine = known
        if not first:
            mine.append(buffers)
        cuda.launch("gemm", lambda: [product(each) for each in mine if first])
        return 0

    return run


def test_doing_the_work_of_many_operations_in_one_shows(world: NewWorld) -> None:
    """Every output is right, and every time plausible: all operations take as long as before."""
    with pytest.raises(SubmissionFault, match="inputs as they are when it begins") as error:
        timed(world(in_one()))
    assert error.value.reason is Reason.FORBIDDEN


def test_without_marks_it_would_not(world: NewWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.devices.marks.Marks.show", lambda self, sets: True)
    (inspection,) = timed(world(in_one()))
    assert inspection.errors is not None
    assert judge(inspection.errors, PROBLEM.track) is None


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("in_a", [True, False])
def test_a_mark_lies_where_it_says_and_shows_in_what_depends_on_it(
    layout: Layout, in_a: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.devices.marks.random.SystemRandom", lambda: Fixed(0.0 if in_a else 0.9))
    arena = ArenaLayout.plan(PROBLEM, 4, 0, 0)
    memory = torch.zeros(arena.total_bytes, dtype=torch.uint8)
    sets = arena.sets(memory, layout)
    sets.a.normal_()
    sets.b.normal_()
    marks = Marks.draw(sets, (3, 1))
    before, kept = memory.clone(), marks.inputs(sets)
    for offset in marks.offsets_bytes:
        memory[offset : offset + 2].view(torch.int16).fill_(marks.bits - (1 << 16) if marks.bits >> 15 else marks.bits)
    assert marks.inputs(sets).isnan().all()
    assert int((sets.a if in_a else sets.b).isnan().sum()) == 2
    for slot in (3, 1):
        assert not marks.show(sets)
        sets.c[slot] = (sets.a[slot].float() @ sets.b[slot].float()).half()
    assert marks.show(sets)
    marks.restore(sets, kept)
    sets.c.zero_()
    assert torch.equal(memory, before)


class Fixed(random.Random):
    """Chance that chooses A or B as a test wants it."""

    def __init__(self, first: float) -> None:
        super().__init__(5)
        self._first = first

    def random(self) -> float:
        return self._first


def opened(found: World, run: RunLibrary) -> tuple[FakeCudaDevice, torch.Tensor, Sets]:
    """A trusted worker's device with a submission, and inputs in its memory."""
    device, arena = FakeCudaDevice(found), ArenaLayout.plan(PROBLEM, 6, 0, 0)
    memory = torch.zeros(arena.total_bytes, dtype=torch.uint8)
    device.use_memory(memory)
    device.open_problem(arena)
    info = OperationInfo(key=SUBMISSION, contender=SUBMISSION, layout=Layout.NN, description="under test")
    device.adopt(info, lambda buffers: run(found.cuda, buffers))
    sets = arena.sets(memory, Layout.NN)
    sets.a.normal_()
    sets.b.normal_()
    return device, memory, sets


def test_a_kernel_that_knows_the_arena_cannot_do_all_in_one_either(world: NewWorld) -> None:
    device, _, _ = opened(world(), in_one())
    device.window(SUBMISSION, (4, 0, 2, 5, 1), L2State.COLD, 2)
    with pytest.raises(SubmissionFault, match="inputs as they are when it begins") as error:
        device.examine((4, 0, 2, 5, 1), 2)
    assert error.value.reason is Reason.FORBIDDEN


@pytest.mark.parametrize("state", list(L2State))
def test_marks_leave_nothing_behind(world: NewWorld, state: L2State) -> None:
    found = world()
    device, memory, sets = opened(found, honest)
    slots = (4, 0, 2, 5, 1) if state is L2State.COLD else (0,) * 5
    inputs = sets.a.clone(), sets.b.clone()
    graphs = len(found.cuda.graphs)
    for _ in range(2):
        device.window(SUBMISSION, slots, state, 2)
        device.examine(slots, 2)
    assert torch.equal(sets.a, inputs[0])
    assert torch.equal(sets.b, inputs[1])
    assert not memory.view(torch.float16).isnan().any()
    for slot in set(slots):
        assert torch.equal(sets.c[slot], (sets.a[slot].float() @ sets.b[slot].float()).half())
    assert len(found.cuda.graphs) == graphs + 1  # the window; that with marks is released


def test_on_warm_data_an_operation_cannot_leave_its_work_to_the_first(world: NewWorld) -> None:
    done: list[int] = []

    def first_only(cuda: FakeCuda, buffers: BufferSet) -> int:
        first = not any(node.name == "gemm" for node in (cuda.capture.nodes if cuda.capture else ()))
        cuda.launch("gemm", lambda: product(buffers) if first else done.append(1))
        return 0

    device, _, _ = opened(world(), first_only)
    device.window(SUBMISSION, (0,) * 5, L2State.WARM, 2)
    with pytest.raises(SubmissionFault, match="inputs as they are when it begins"):
        device.examine((0,) * 5, 2)
    assert done
