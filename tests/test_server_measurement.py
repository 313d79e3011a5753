"""Server mode through Bench and Measurement over a device in this process: what it records, and what it does not fall for."""

from __future__ import annotations

import math

import pytest
from fake_device import BASELINES, Contender, FakeDevice, FakeDriver, FakePort, Run, honest, plan

from harness.bench import Bench
from harness.devices import BufferSet, SubmissionFault, WindowTime
from harness.measurement import Job, Measured, Measurement
from harness.messages import Prepare, Round, Select, Serve, ServeResult, StandIn
from harness.plan import Layout
from harness.problem import Problem
from harness.protocol import protocol_for
from harness.record import SUBMISSION, L2State, Measure, Mode, Reason, Status, StopReason
from harness.saturation import BISECTIONS, MIN_REQUESTS, STEP, RatePoint, point_of, saturate, search
from harness.server_figures import gather
from harness.timing.server import CLEAN_SHARE, MAX_RATE_PER_S, trace
from harness.timing.statistics import median_ratio

SERVER = Measure(mode=Mode.SERVER, l2_state=L2State.COLD)
PROBLEM = Problem(m=16, n=24, k=40)


def measured(submission: Contender | Run = honest, requests: int = 24) -> tuple[Measured, FakeDevice]:
    device = FakeDevice(submission)
    protocol = protocol_for(device.profile).model_copy(
        update={"measures": (SERVER,), "server_requests": requests, "window_ns": 200_000}
    )
    job = Job(PROBLEM, plan(), {}, 0, 0, "00" * 16, rankable=True)
    return Measurement(FakeDriver(device), protocol, job, {}).run(), device


def test_a_server_record_holds_medians_rates_and_every_request() -> None:
    result, _ = measured(Contender(launch_ns=5_000))
    assert result.record.status is Status.VERIFIED, result.record.detail
    (timing,) = result.record.timings
    assert timing.measure == SERVER
    assert timing.stopped is StopReason.SIZED
    assert timing.rounds == 24
    assert {name: contender.launch_ns for name, contender in timing.contenders.items()} == {
        SUBMISSION: 5_000,
        "torch_matmul": 10_000,
        "torch_matmul_fp32": 15_000,
    }
    assert timing.speedups["torch_matmul"].value == pytest.approx(2.0)
    assert timing.best_baseline == "torch_matmul"
    assert timing.requests is not None
    assert timing.requests.rate_per_s == MAX_RATE_PER_S
    assert timing.requests.disturbed == 0
    assert timing.requests.device_p90_ns == {}
    lines = {line.contender: line for line in result.samples}
    assert {len(line.window_ns) for line in lines.values()} == {24}
    assert {len(line.latency_ns) for line in lines.values()} == {24}
    assert all(latency >= 5_000 for latency in lines[SUBMISSION].latency_ns)


def test_p90_is_given_from_64_samples_on() -> None:
    result, _ = measured(requests=64)
    (timing,) = result.record.timings
    assert timing.requests is not None
    assert timing.requests.device_p90_ns == {SUBMISSION: 5_000, "torch_matmul": 10_000, "torch_matmul_fp32": 15_000}


def test_the_rate_leaves_time_to_clean_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakePort, "clean_ns", 400_000)
    result, device = measured()
    (timing,) = result.record.timings
    assert timing.requests is not None
    assert timing.requests.rate_per_s == pytest.approx(CLEAN_SHARE / 400e-6, rel=0.01)
    # One port to measure clean-ups with, and one trace, unless some requests were disturbed and had to be made up for.
    assert len(device.ports) == 2 + (timing.requests.disturbed > 0)


class Traces:
    """Answers as a device would on which each request of the first few traces is disturbed with some probability."""

    def __init__(self, disturbed: tuple[int, ...]) -> None:
        self._disturbed = disturbed
        self.asked: list[tuple[int, int, float]] = []

    def __call__(self, number: int, requests_each: int, rate_per_s: float) -> ServeResult:
        self.asked.append((number, requests_each, rate_per_s))
        lost = self._disturbed[number] if number < len(self._disturbed) else 0
        return ServeResult(
            rate_per_s=rate_per_s,
            device_ns={SUBMISSION: (5,) * (requests_each - lost), "cublas": (7,) * requests_each},
            latency_ns={SUBMISSION: (9,) * requests_each, "cublas": (9,) * requests_each},
            disturbed=lost,
            poll_resolution_ns=1,
            conditions=None,
            inspection=None,
        )


def test_disturbed_requests_are_made_up_for() -> None:
    answer = Traces((2,))
    figures = gather(answer, 20, 1000.0)
    assert answer.asked == [(0, 20, 1000.0), (1, 2, 1000.0)]
    assert {name: len(times) for name, times in figures.device_ns.items()} == {SUBMISSION: 20, "cublas": 22}


def test_many_disturbed_requests_lower_the_rate_and_all_is_measured_again() -> None:
    answer = Traces((5, 6))
    figures = gather(answer, 20, 1000.0)
    assert answer.asked == [(0, 20, 1000.0), (1, 20, 500.0), (2, 20, 250.0)]
    assert {name: len(times) for name, times in figures.device_ns.items()} == {SUBMISSION: 20, "cublas": 20}


def test_what_a_measure_chose_stays_bound_when_another_measure_chooses_otherwise() -> None:
    class Turncoat(FakeDevice):
        """Its fastest operation on cold data is its slowest on warm data."""

        def window(self, key: str, slots: tuple[int, ...], l2_state: L2State, unscored: int) -> WindowTime:
            time = super().window(key, slots, l2_state, unscored)
            slow = (key == "torch_matmul/fast") == (l2_state is L2State.WARM)
            return time.model_copy(update={"window_ns": time.window_ns * (10 if slow else 1)})

    bench = Bench(Turncoat())
    bench.prepare(Prepare(problem=PROBLEM, plan=plan(), artifacts={}, window_ns=200_000))
    for measure in (Measure(), Measure(l2_state=L2State.WARM)):
        for contenders in (tuple(BASELINES), (SUBMISSION,)):
            chosen = bench.select(Select(measure=measure, contenders=contenders, keys={}, seed=1))
        assert chosen.best == SUBMISSION
    result = bench.round(Round(measure=Measure(), order=(SUBMISSION, *tuple(BASELINES)), seed=1, full=True))
    assert set(result.times) == {SUBMISSION, *tuple(BASELINES)}


def test_a_stand_in_is_served_as_it_was_chosen_on_cold_data() -> None:
    class Turned(FakeDevice):
        """The baseline that stands in reads B one way on cold data, the other way on warm data."""

        def window(self, key: str, slots: tuple[int, ...], l2_state: L2State, unscored: int) -> WindowTime:
            time = super().window(key, slots, l2_state, unscored)
            slow = l2_state is L2State.WARM and self._operations[key].layout is Layout.TN
            return time.model_copy(update={"window_ns": time.window_ns * (10 if slow else 1)})

    either = {"plain": Contender(launch_ns=10_100), "across": Contender(launch_ns=10_000, layout=Layout.TN)}
    device = Turned(baselines={**BASELINES, "torch_matmul": either})
    measures = (Measure(), Measure(l2_state=L2State.WARM), SERVER)
    update = {"measures": measures, "server_requests": 8, "window_ns": 200_000, "target_half_width": 0.9}
    protocol = protocol_for(device.profile).model_copy(update=update)
    job = Job(PROBLEM, StandIn(baseline="torch_matmul"), {}, 0, 0, "00" * 16, rankable=False)
    record = Measurement(FakeDriver(device), protocol, job, {}).run().record
    assert (record.status, record.detail) == (Status.VERIFIED, "")
    layouts = [timing.contenders[SUBMISSION].layout for timing in record.timings]
    assert layouts == [Layout.TN, Layout.NN, Layout.TN]
    assert record.timings[2].speedups["torch_matmul"].value == 1.0


def all_at_once() -> Run:
    """Computes every request's output in the first one, and nothing in those that follow."""
    calls = [0]

    def run(buffers: BufferSet) -> None:
        calls[0] += 1
        if calls[0] <= 60 or calls[0] % 24 == 1:
            honest(buffers)

    return run


def one_late() -> Run:
    """Leaves its output unwritten, and writes that of the request before: all is there when the trace ends."""
    before: list[BufferSet] = []
    calls = [0]

    def run(buffers: BufferSet) -> None:
        calls[0] += 1
        if calls[0] < 90:
            honest(buffers)
            return
        if before:
            honest(before.pop())
        before.append(buffers)

    return run


def changes_inputs() -> Run:
    calls = [0]

    def run(buffers: BufferSet) -> None:
        calls[0] += 1
        if calls[0] > 90:
            buffers.a.zero_()
        honest(buffers)

    return run


@pytest.mark.parametrize(
    ("cheat", "reason"),
    [(all_at_once, Reason.UNWRITTEN), (one_late, Reason.UNWRITTEN), (changes_inputs, Reason.INPUT_MODIFIED)],
)
def test_a_request_is_answered_in_its_own_time_or_not_at_all(cheat: object, reason: Reason) -> None:
    result, _ = measured(cheat(), requests=48)  # type: ignore[operator]
    assert (result.record.status, result.record.reason) == (Status.REJECTED, reason), result.record.detail


def test_every_request_finds_inputs_just_drawn_and_outputs_poisoned_on_the_set_of_the_submissions_next_one() -> None:
    seen: list[tuple[str, int, bytes, bool]] = []

    def watching(name: str) -> Run:
        def run(buffers: BufferSet) -> None:
            inputs = buffers.a.numpy().tobytes() + buffers.b.contiguous().numpy().tobytes()
            seen.append((name, buffers.c.data_ptr(), inputs, bool(buffers.c.isnan().all())))
            honest(buffers)

        return run

    device = FakeDevice(watching(SUBMISSION), baselines={name: {"only": Contender(watching(name))} for name in BASELINES})
    bench = Bench(device)
    bench.prepare(Prepare(problem=PROBLEM, plan=plan(), artifacts={}, window_ns=200_000))
    for contenders in (tuple(BASELINES), (SUBMISSION,)):
        bench.select(Select(measure=Measure(), contenders=contenders, keys={}, seed=1))
    seen.clear()
    served = bench.serve(Serve(contenders=(SUBMISSION, *BASELINES), requests_each=6, rate_per_s=500.0, seed=2, full=True))
    assert served.inspection is not None
    assert all(poisoned for _, _, _, poisoned in seen)
    assert len({inputs for _, _, inputs, _ in seen}) == len(seen) == 6 * (1 + len(BASELINES))
    places = [place for name, place, _, _ in seen if name == SUBMISSION]
    assert len(set(places)) == 6
    for index, (_, place, _, _) in enumerate(seen):
        following = sum(name == SUBMISSION for name, _, _, _ in seen[:index])
        assert following == 6 or place == places[following]


def test_a_layout_of_its_own_is_served_as_such() -> None:
    result, _ = measured(Contender(layout=Layout.NN, launch_ns=20_000))
    (timing,) = result.record.timings
    assert timing.speedups["torch_matmul"].value == pytest.approx(0.5)


def test_the_interval_of_a_ratio_of_medians() -> None:
    # 100 samples 1..100: the median is 50, its order statistics are the 41st and the 60th sample.
    values = list(range(1, 101))
    found = median_ratio([10 * value for value in values], values)
    assert found.value == pytest.approx(10.0, rel=0.02)
    half = (2 * ((math.log(60 / 41) / 2) ** 2)) ** 0.5
    assert math.log(found.high / found.value) == pytest.approx(half, rel=0.05)
    with pytest.raises(ValueError, match="8 samples"):
        median_ratio([1] * 7, [1] * 8)


def test_saturation_finds_the_rate_that_keeps_p99_within_the_bound() -> None:
    # A simulated M/D/1 queue: 10 µs of service, so p99 within 100 µs holds up to some 85 % of 100,000 requests a second.
    def answer(rate_per_s: float) -> RatePoint:
        arrivals = trace(("a",), 20_000, rate_per_s, seed=7, owner="a")
        free_ns, latencies = 0, []
        for arrival in arrivals:
            free_ns = max(free_ns, arrival.at_ns) + 10_000
            latencies.append(free_ns - arrival.at_ns)
        result = ServeResult(
            rate_per_s=1.0,
            device_ns={"a": (10_000,)},
            latency_ns={"a": tuple(latencies)},
            disturbed=0,
            poll_resolution_ns=1,
            conditions=None,
            inspection=None,
        )
        return point_of(result, "a", rate_per_s, 100_000)

    points = search(answer, 100_000.0)
    assert [point.rate_per_s for point in points] == sorted(point.rate_per_s for point in points)
    highest = max(point.rate_per_s for point in points if point.meets_bound)
    lowest = min(point.rate_per_s for point in points if not point.meets_bound)
    assert 70_000 < highest < lowest < 95_000
    assert lowest / highest < STEP ** (1 / 2**BISECTIONS) * 1.001
    assert points[0].p50_ns == 10_000


def test_saturation_of_a_submission_and_its_baselines() -> None:
    device = FakeDevice(Contender(launch_ns=5_000))
    protocol = protocol_for(device.profile).model_copy(update={"measures": (SERVER,), "window_ns": 200_000})
    job = Job(PROBLEM, plan(), {}, 0, 0, "00" * 16, rankable=False)
    measurement = Measurement(FakeDriver(device), protocol, job, {})
    told: list[str] = []
    found = saturate(measurement, (SUBMISSION, "torch_matmul"), None, MIN_REQUESTS, told.append)
    assert found.bound_ns == 10 * 15_000
    rates = {curve.contender: curve.highest_rate_per_s for curve in found.curves}
    assert rates[SUBMISSION] > 1.5 * rates["torch_matmul"] > 0
    assert len(told) == sum(len(curve.points) for curve in found.curves)


def test_saturation_pays_no_wrong_submission() -> None:
    calls = [0]

    def run(buffers: BufferSet) -> None:
        calls[0] += 1
        if calls[0] < 80:
            honest(buffers)

    device = FakeDevice(run)
    protocol = protocol_for(device.profile).model_copy(update={"measures": (SERVER,), "window_ns": 200_000})
    measurement = Measurement(FakeDriver(device), protocol, Job(PROBLEM, plan(), {}, 0, 0, "00" * 16, rankable=False), {})
    with pytest.raises(SubmissionFault, match="poison"):
        saturate(measurement, (SUBMISSION,), None, MIN_REQUESTS, lambda _: None)
