"""From facts to a record: what verifies, what is rejected and why, and whose fault it is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace

import pytest
from fake_device import BASELINES, PROFILE, Contender, FakeDevice, FakeDriver, Run, honest, plan
from test_bench import after, beside, counted

from harness import measurement
from harness.devices import BufferSet, MachineFault
from harness.measurement import Job, Measured, Measurement
from harness.messages import Select, Selected
from harness.model import DataError, InfraError
from harness.plan import Layout, Plan
from harness.problem import Problem
from harness.profiles import load_profile
from harness.protocol import CPU_BASELINES, Protocol, Purpose, parse_modes, protocol_for
from harness.record import SUBMISSION, L2State, Measure, Reason, Status, StopReason
from harness.seeds import derive, shape_seed
from harness.verify.inputs import InputKind, plan_draws

PROBLEM = Problem(m=24, n=40, k=20)
COLD, WARM = Measure(), Measure(l2_state=L2State.WARM)
PROTOCOL = Protocol(measures=(COLD, WARM), baselines=CPU_BASELINES, anchor=CPU_BASELINES[-1], window_ns=50_000)
# Normal inputs run twice with two poisons, and once more over old outputs.
VERIFYING_CALLS = sum(draw.sets * (3 if draw.kind is InputKind.NORMAL else 1) for draw in plan_draws(PROBLEM))


def job(the_plan: Plan | None = None, problem: Problem = PROBLEM) -> Job:
    return Job(problem, the_plan or plan(), artifacts={}, attempt=0, segment=0, seed="0" * 32, rankable=True)


def measured(
    run: Contender | Run = honest,
    the_plan: Plan | None = None,
    *,
    protocol: Protocol = PROTOCOL,
    problem: Problem = PROBLEM,
    baselines: Mapping[str, Mapping[str, Contender]] = BASELINES,
) -> Measured:
    driver = FakeDriver(FakeDevice(run, baselines))
    return Measurement(driver, protocol, job(the_plan, problem), {}).run()


def test_an_honest_submission_is_verified_and_timed() -> None:
    record, samples = measured()
    assert (record.status, record.reason, record.detail) == (Status.VERIFIED, None, "")
    assert [timing.measure for timing in record.timings] == [COLD, WARM]
    for timing in record.timings:
        assert (timing.rounds, timing.stopped) == (10, StopReason.PRECISE)
        assert timing.best_baseline == "torch_matmul"
        assert timing.speedups["torch_matmul"].value == pytest.approx(2)
        assert timing.speedups["torch_matmul_fp32"].value == pytest.approx(3)
        fast = timing.contenders["torch_matmul"]
        assert (fast.launch_ns, fast.launches_per_window, fast.layout) == (10_000, 6, Layout.TN)
    assert len(samples) == 2 * 3
    for line in samples:
        assert len(line.window_ns) == 10
        assert len(line.selection_window_ns) == 5
        assert line.problem == PROBLEM
    assert record.plan_sha256 == plan().sha256()


def test_verification_says_what_was_looked_at() -> None:
    verification = measured().record.verification
    assert verification is not None
    assert [stats.inputs for stats in verification.draws] == [draw.kind for draw in plan_draws(PROBLEM)]
    normal = verification.draws[0]
    assert normal.outputs >= 4096
    assert normal.rms_relative == pytest.approx(2.1e-4, rel=0.1)
    assert verification.precision_class == "fp32_accumulate"
    assert verification.bitwise_repeatable
    # Of each measure one window is compared in full and all others are projected: 13 sets of cold data, one of warm data.
    assert verification.timed_outputs_checked == (13 + 1) * 24 * 40
    assert verification.timed_outputs_projected % ((13 + 1) * 24 * 40) == 0
    assert verification.timed_outputs_projected >= 9 * (13 + 1) * 24 * 40
    assert set(verification.baselines) == set(CPU_BASELINES)


def rejected(run: Run, the_plan: Plan | None = None, protocol: Protocol = PROTOCOL) -> tuple[Reason | None, str]:
    record, samples = measured(run, the_plan, protocol=protocol)
    assert record.status is Status.REJECTED, record
    assert samples == ()
    assert record.detail
    return record.reason, record.detail


def late(act: Callable[[BufferSet], object], calls: int = VERIFYING_CALLS) -> Run:
    """Right for as many calls as verification makes, and the act afterwards."""
    count = itertools.count()
    return lambda buffers: honest(buffers) if next(count) < calls else act(buffers)


CHEATS: list[tuple[Callable[[BufferSet], object], Reason]] = [
    (lambda b: None, Reason.UNWRITTEN),
    (after(lambda b: b.c[0, 0].fill_(float("nan"))), Reason.NOT_FINITE),
    (lambda b: b.c.fill_(3), Reason.WRONG_RESULT),
    (after(lambda b: beside(b.c, 24 * 40).fill_(1)), Reason.OUT_OF_BOUNDS),
    (after(lambda b: b.a[0, 0].add_(1)), Reason.INPUT_MODIFIED),
    (after(lambda b: b.b[3, 3].add_(1)), Reason.INPUT_MODIFIED),
    (after(lambda b: b.workspace[7].fill_(1)), Reason.WORKSPACE_NOT_RESTORED),
]


@pytest.mark.parametrize(("act", "reason"), CHEATS)
def test_what_is_wrong_at_once_is_rejected(act: Run, reason: Reason) -> None:
    found, detail = rejected(act, plan(workspace_bytes=64, zeroed_bytes=64))
    assert found is reason
    assert "timed window" not in detail


@pytest.mark.parametrize(("act", "reason"), CHEATS)
def test_what_is_wrong_only_when_it_is_timed_is_rejected(act: Run, reason: Reason) -> None:
    found, detail = rejected(late(act), plan(workspace_bytes=64, zeroed_bytes=64))
    assert found is reason
    assert ("timed window" in detail) == (reason in {Reason.UNWRITTEN, Reason.NOT_FINITE, Reason.WRONG_RESULT})


def test_what_is_wrong_only_in_the_last_windows_is_rejected() -> None:
    total = itertools.count()
    measured(after(lambda b: next(total)))
    assert rejected(late(lambda b: b.c.fill_(3), next(total) - 2))[0] is Reason.WRONG_RESULT


def test_a_cached_result_is_wrong_for_the_next_inputs() -> None:
    cache: dict[int, object] = {}

    def run(buffers: BufferSet) -> None:
        if buffers.c.data_ptr() in cache:
            buffers.c.copy_(cache[buffers.c.data_ptr()])
        else:
            honest(buffers)
            cache[buffers.c.data_ptr()] = buffers.c.clone()

    assert rejected(run)[0] in {Reason.WRONG_RESULT, Reason.INEXACT}


def test_right_on_every_second_call_is_wrong() -> None:
    assert rejected(counted(2, lambda b: b.c.zero_()))[0] is Reason.WRONG_RESULT


def jitters() -> Run:
    """In some calls sums are so little larger that only a few outputs round the other way, as in another order of summation."""
    calls = itertools.count()

    def run(buffers: BufferSet) -> None:
        factor = 1 + 2.0**-18 if next(calls) % 7 == 0 else 1
        buffers.c.copy_((buffers.a.float() @ buffers.b.float() * factor).half())

    return run


def test_chance_is_rejected_where_the_plan_denies_it_and_recorded_where_not() -> None:
    reason, detail = rejected(jitters())
    assert reason is Reason.NONDETERMINISTIC
    assert "deterministic" in detail
    record = measured(jitters(), plan(deterministic=False)).record
    assert record.status is Status.VERIFIED
    assert record.verification is not None
    assert record.verification.bitwise_repeatable is False


def test_a_time_below_the_devices_limit_is_rejected() -> None:
    limit = PROFILE.limit_ns(PROBLEM, cold=True)
    assert 2 < limit < 10
    assert measured(Contender(launch_ns=math.ceil(limit))).record.status is Status.VERIFIED
    record = measured(Contender(launch_ns=2)).record
    assert (record.status, record.reason) == (Status.REJECTED, Reason.TOO_FAST)
    assert "submission took 2 ns" in record.detail


def baselines(**changes: Contender) -> dict[str, dict[str, Contender]]:
    return {name: {"only": changes.get(name, Contender())} for name in CPU_BASELINES}


@pytest.mark.parametrize("bad", [Contender(launch_ns=1), Contender(lambda b: b.c.fill_(1)), Contender(lambda b: None)])
@pytest.mark.parametrize("name", CPU_BASELINES)
def test_a_bad_baseline_is_the_machines_fault(bad: Contender, name: str) -> None:
    with pytest.raises(MachineFault) as error:
        measured(baselines=baselines(**{name: bad}))
    assert (error.value.reason, error.value.fatal) == (Reason.BASELINE_ERROR, False)
    assert name in str(error.value)


def test_warm_data_that_do_not_fit_are_not_applicable() -> None:
    record = measured(problem=Problem(m=256, n=256, k=512), protocol=PROTOCOL.model_copy(update={"window_ns": 1})).record
    assert record.status is Status.VERIFIED
    assert record.not_applicable == (WARM,)
    assert [timing.measure for timing in record.timings] == [COLD]


def test_checking_times_nothing_and_screening_one_anchor() -> None:
    check = measured(protocol=protocol_for(PROFILE, Purpose.CHECK))
    assert (check.record.status, check.record.timings, check.samples) == (Status.VERIFIED, (), ())
    screen = protocol_for(PROFILE, Purpose.SCREEN).model_copy(update={"window_ns": 50_000})
    (timing,) = measured(protocol=screen).record.timings
    assert timing.measure == COLD
    assert set(timing.speedups) == {screen.anchor}


def test_a_rejected_record_keeps_what_was_measured_until_then() -> None:
    verification = measured(late(lambda b: b.c.zero_(), 11)).record.verification
    assert verification is not None
    kinds = [stats.inputs for stats in verification.draws]
    assert 1 <= len(kinds) < len(plan_draws(PROBLEM))
    assert verification.timed_outputs_checked == 0


def test_choices_of_baselines_are_kept_for_the_next_submission() -> None:
    known: dict[str, dict[str, str]] = {}
    for _ in range(2):
        device = FakeDevice()
        Measurement(FakeDriver(device), PROTOCOL, job(), known).run()
    assert known == {
        str(measure): {"torch_matmul": "torch_matmul/fast", "torch_matmul_fp32": "torch_matmul_fp32/only"}
        for measure in (COLD, WARM)
    }
    assert "torch_matmul/slow" not in {key for key, *_ in device.windows}


def test_baselines_have_a_deadline_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one side takes is not taken from the other: 50 of 60 s each, and nobody is late."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(measurement, "time", SimpleNamespace(monotonic=lambda: clock.now))
    driver = FakeDriver(FakeDevice())
    select, prepare = driver.select, driver.prepare
    left: list[float] = []

    def slow_select(request: Select) -> Selected:
        left.append(driver.deadline - clock.now)
        if request.contenders != (SUBMISSION,):
            clock.now += 50
        return select(request)

    def slow_prepare(request: measurement.Prepare) -> object:
        clock.now += 50
        return prepare(request)

    driver.select, driver.prepare = slow_select, slow_prepare  # type: ignore[assignment]
    Measurement(driver, PROTOCOL.model_copy(update={"measures": (COLD,)}), job(), {}).run()
    assert left == [60, 10]


def test_seeds_follow_from_the_secret_and_from_nothing_less() -> None:
    first, second = Problem(m=1, n=2, k=3), Problem(m=1, n=2, k=4)
    seeds = {
        shape_seed(secret, problem, attempt) for secret in (b"a", b"b") for problem in (first, second) for attempt in (0, 1)
    }
    assert len(seeds) == 8
    assert shape_seed(b"a", first, 0) == shape_seed(b"a", first, 0)
    labels = {derive(b"a", label) for label in ("draw/normal", "draw/uniform", "offline/cold/round/1", "offline/cold/round/11")}
    assert len(labels) == 4
    assert all(0 <= value < 1 << 62 for value in labels)


def test_modes_are_named_whole_or_with_one_state_of_the_cache() -> None:
    offline = ("offline/cold", "offline/warm")
    for text, measures in (
        ("offline", offline),
        ("offline/cold", offline[:1]),
        ("server, offline/warm", ("server/cold", "offline/warm")),
        ("offline/cold,offline", offline),
    ):
        assert tuple(map(str, parse_modes(text))) == measures
    for text in ("", "online", "server/warm", "cold"):
        with pytest.raises(DataError, match="offline/cold, offline/warm, server/cold"):
            parse_modes(text)
    with pytest.raises(InfraError, match="server mode, random arrivals, needs a CUDA device"):
        protocol_for(load_profile("cpu"), measures=parse_modes("server"))
