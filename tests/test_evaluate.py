"""Who is blamed for a worker that dies, hangs or fails, how often a shape is tried, and when the harness gives up."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_device import KERNEL, FakeDevice, FakeDriver, plan

from harness import evaluate
from harness.artifacts import Artifact, BuildFailure, BuildReport
from harness.channel import WorkerDied, WorkerTimeout
from harness.devices import MachineFault, SubmissionFault
from harness.evaluate import MAX_ATTEMPTS, MAX_DEATHS, Evaluator, Prepared
from harness.model import DataError
from harness.plan import Unsupported
from harness.planner import PlanFailure, PlanOutcome
from harness.problem import Problem
from harness.protocol import CPU_BASELINES, Protocol
from harness.record import SUBMISSION, Measure, Mode, Reason, Record, Status
from harness.submission import Kind, Submission

ROOT = Path(__file__).resolve().parent.parent
PROTOCOL = Protocol(measures=(Measure(),), baselines=CPU_BASELINES, anchor=CPU_BASELINES[-1], window_ns=50_000)
PROBLEMS = [Problem(m=24, n=40, k=k) for k in range(1, 10)]
SEGFAULT, KILLED, BROKE = -signal.SIGSEGV, -signal.SIGKILL, None

Fault = Callable[[], Exception]


class Workers:
    """Opens drivers, and lets the requests of a phase fail as often as told."""

    def __init__(self) -> None:
        self.opened: list[FakeDriver] = []
        self.kinds: list[bool] = []
        """Whether each that was asked for was to be native."""
        self.faults: dict[str, list[Fault]] = {}
        self.refused = 0

    def open(self, device: str, native: bool) -> FakeDriver:
        self.kinds.append(native)
        if self.refused:
            self.refused -= 1
            raise WorkerDied(1, "no module named torch")
        driver = FakeDriver(FakeDevice())
        for phase in ("prepare", "draw", "select", "round"):
            setattr(driver, phase, self._faulty(phase, getattr(driver, phase)))
        self.opened.append(driver)
        return driver

    def fail(self, phase: str, *faults: Fault) -> None:
        """The next requests of this phase fail; `baselines` is their selection."""
        self.faults[phase] = list(faults)

    def _faulty(self, phase: str, answer: Callable[[object], object]) -> Callable[[object], object]:
        def request(message: object) -> object:
            of_baselines = getattr(message, "contenders", (SUBMISSION,)) != (SUBMISSION,)
            waiting = self.faults.get("baselines" if of_baselines else phase)
            if waiting:
                raise waiting.pop(0)()
            return answer(message)

        return request


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Workers:
    workers = Workers()
    monkeypatch.setattr(evaluate, "open_driver", workers.open)
    return workers


@pytest.fixture
def evaluator(workers: Workers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Evaluator]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with Evaluator("cpu", PROTOCOL) as evaluator:
        yield evaluator


def prepared(name: str = "cpu-naive", **outcomes: PlanOutcome) -> Prepared:
    """A submission whose plans are made and whose kernel is built, but for the outcomes given (by K, as in k3)."""
    submission = Submission.read(ROOT / "submissions" / name)
    artifact = Artifact(path=Path("kernel.so"), key="0" * 64, report=BuildReport(entries=("k",)), cached=True)
    planned: dict[Problem, PlanOutcome] = {problem: outcomes.get(f"k{problem.k}", plan()) for problem in PROBLEMS}
    return Prepared(submission, planned, {KERNEL.sha256(): artifact})


def tried(evaluator: Evaluator, problem: Problem = PROBLEMS[0], name: str = "cpu-naive") -> list[Record]:
    return [measured.record for measured in evaluator.attempts(prepared(name), problem)]


def outcome(records: list[Record]) -> list[tuple[Status, Reason | None]]:
    return [(record.status, record.reason) for record in records]


VERIFIED = (Status.VERIFIED, None)


def test_an_honest_submission_keeps_its_worker(evaluator: Evaluator, workers: Workers) -> None:
    records = [record for problem in PROBLEMS[:3] for record in tried(evaluator, problem)]
    assert outcome(records) == [VERIFIED] * 3
    assert len(workers.opened) == 1
    assert len({record.seed for record in records}) == 3
    assert not any(record.rankable for record in records)


def test_a_worker_is_replaced_for_the_other_kind(evaluator: Evaluator, workers: Workers) -> None:
    """As on a CUDA device, where the two kinds have workers of their own."""
    native = Submission.read(ROOT / "submissions" / "cpu-naive")
    device = native._replace(manifest=native.manifest.model_copy(update={"kind": Kind.DEVICE}))
    for submission in (native, native, device, device, native):
        evaluator.expect(submission)
        assert evaluator.info.name == "simulated"
    assert workers.kinds == [True, False, True]


def test_host_code_has_no_server_mode(workers: Workers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    server = PROTOCOL.model_copy(update={"measures": (Measure(mode=Mode.SERVER),)})
    with Evaluator("cpu", server) as evaluator, pytest.raises(DataError, match="kind device only; leave it out of --modes"):
        tried(evaluator)
    assert not workers.opened


@pytest.mark.parametrize("phase", ["prepare", "draw", "select", "round"])
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (lambda: WorkerDied(SEGFAULT, ""), Reason.CRASH),
        (lambda: WorkerDied(0, ""), Reason.CRASH),
        (lambda: WorkerDied(BROKE, "", "sent what is no answer"), Reason.CRASH),
        (lambda: WorkerTimeout("late"), Reason.DEADLINE),
        (lambda: SubmissionFault(Reason.ILLEGAL_ACCESS, "it trapped", fatal=True), Reason.ILLEGAL_ACCESS),
    ],
)
def test_a_submission_that_costs_its_worker_is_rejected_and_the_next_shape_has_a_fresh_one(
    evaluator: Evaluator, workers: Workers, phase: str, fault: Fault, reason: Reason
) -> None:
    workers.fail(phase, fault)
    (record,) = tried(evaluator)
    assert (record.status, record.reason) == (Status.REJECTED, reason)
    assert record.detail
    assert record.seed
    assert (record.verification is None) == (phase in {"prepare", "draw"})
    assert workers.opened[0].closed == 1
    (following,) = tried(evaluator, PROBLEMS[1])
    assert following.status is Status.VERIFIED
    assert (record.segment, following.segment) == (0, 1)
    assert len(workers.opened) == 2


def test_a_submission_that_is_refused_keeps_its_worker(evaluator: Evaluator, workers: Workers) -> None:
    workers.fail("prepare", lambda: SubmissionFault(Reason.LAUNCH_ERROR, "no such entry"))
    assert outcome(tried(evaluator)) == [(Status.REJECTED, Reason.LAUNCH_ERROR)]
    assert outcome(tried(evaluator, PROBLEMS[1])) == [VERIFIED]
    assert len(workers.opened) == 1


@pytest.mark.parametrize(
    ("phase", "fault", "reason", "lost"),
    [
        ("draw", lambda: WorkerDied(KILLED, ""), Reason.WORKER_LOST, True),
        ("round", lambda: WorkerDied(KILLED, ""), Reason.WORKER_LOST, True),
        ("baselines", lambda: WorkerDied(SEGFAULT, ""), Reason.WORKER_LOST, True),
        ("baselines", lambda: WorkerTimeout("late"), Reason.DEVICE_ERROR, True),
        ("draw", lambda: MachineFault(Reason.DEVICE_ERROR, "fell off the bus", fatal=True), Reason.DEVICE_ERROR, True),
        ("prepare", lambda: MachineFault(Reason.OUT_OF_MEMORY, "too large", fatal=False), Reason.OUT_OF_MEMORY, False),
    ],
)
def test_a_fault_of_the_machine_is_tried_again_and_never_blamed(
    evaluator: Evaluator, workers: Workers, phase: str, fault: Fault, reason: Reason, lost: bool
) -> None:
    workers.fail(phase, fault)
    records = tried(evaluator)
    assert outcome(records) == [(Status.INFRA_ERROR, reason), VERIFIED]
    assert [record.attempt for record in records] == [0, 1]
    assert records[0].seed != records[1].seed
    assert len(workers.opened) == 1 + lost

    workers.fail(phase, *[fault] * 100)
    records = tried(evaluator, PROBLEMS[1])
    assert outcome(records) == [(Status.INFRA_ERROR, reason)] * MAX_ATTEMPTS
    assert [record.attempt for record in records] == list(range(MAX_ATTEMPTS))
    for problem in PROBLEMS[2:4]:
        assert tried(evaluator, problem)[-1].reason is reason
    workers.fail(phase)
    assert outcome(tried(evaluator)) == [VERIFIED]


def test_after_five_deaths_the_rest_is_not_attempted(evaluator: Evaluator, workers: Workers) -> None:
    workers.fail("draw", *[lambda: WorkerDied(SEGFAULT, "")] * 100)
    records = [record for problem in PROBLEMS for record in tried(evaluator, problem)]
    given_up = [(Status.NOT_ATTEMPTED, Reason.GAVE_UP)] * (len(PROBLEMS) - MAX_DEATHS)
    assert outcome(records) == [(Status.REJECTED, Reason.CRASH)] * MAX_DEATHS + given_up
    assert len(workers.opened) == MAX_DEATHS == 5
    workers.fail("draw")
    other = [measured.record for measured in evaluator.attempts(_renamed(prepared()), PROBLEMS[0])]
    assert outcome(other) == [VERIFIED]


def _renamed(before: Prepared) -> Prepared:
    manifest = before.submission.manifest.model_copy(update={"name": "another"})
    return before._replace(submission=before.submission._replace(manifest=manifest))


def test_a_worker_that_does_not_start_is_the_machines_fault(evaluator: Evaluator, workers: Workers) -> None:
    workers.refused = 2
    records = tried(evaluator)
    assert outcome(records) == [(Status.INFRA_ERROR, Reason.WORKER_LOST)] * 2 + [VERIFIED]
    assert "did not start" in records[0].detail
    assert "no module named torch" in records[0].detail


def test_a_worker_that_ended_between_shapes_is_replaced_and_nobody_blamed(evaluator: Evaluator, workers: Workers) -> None:
    tried(evaluator)
    workers.opened[0].alive = False
    (record,) = tried(evaluator, PROBLEMS[1])
    assert (record.status, record.segment) == (Status.VERIFIED, 1)
    assert workers.opened[0].closed == 1


@pytest.mark.parametrize(
    ("made", "status", "reason", "says"),
    [
        (Unsupported(reason="too odd"), Status.UNSUPPORTED, Reason.DECLARED, "too odd"),
        (PlanFailure(reason=Reason.PLAN_LIMIT, detail="slow"), Status.REJECTED, Reason.PLAN_LIMIT, "slow"),
        (PlanFailure(reason=Reason.PLAN_ERROR, detail="line 3"), Status.REJECTED, Reason.PLAN_ERROR, "line 3"),
    ],
)
def test_what_has_no_plan_needs_no_worker(
    evaluator: Evaluator, workers: Workers, made: PlanOutcome, status: Status, reason: Reason, says: str
) -> None:
    (measured,) = evaluator.attempts(prepared(k1=made), PROBLEMS[0], 7)
    assert (measured.record.status, measured.record.reason, measured.record.detail) == (status, reason, says)
    assert measured.record.attempt == 7
    assert workers.opened == []


@pytest.mark.parametrize("reason", [Reason.BUILD_ERROR, Reason.BUILD_LIMIT, Reason.FORBIDDEN])
def test_what_was_not_built_is_rejected(evaluator: Evaluator, workers: Workers, reason: Reason) -> None:
    ready = prepared()._replace(builds={KERNEL.sha256(): BuildFailure(reason=reason, message="k.c:1: no")})
    (measured,) = evaluator.attempts(ready, PROBLEMS[0])
    assert (measured.record.status, measured.record.reason, measured.record.detail) == (Status.REJECTED, reason, "k.c:1: no")
    assert workers.opened == []


def test_leaving_ends_the_worker_and_gives_the_device_back(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with Evaluator("cpu", PROTOCOL) as evaluator:
        tried(evaluator)
    assert [driver.closed for driver in workers.opened] == [1]
    with Evaluator("cpu", PROTOCOL) as again:
        assert outcome(tried(again)) == [VERIFIED]


def test_host_code_never_shares_a_worker_with_another_submission(evaluator: Evaluator, workers: Workers) -> None:
    for name, opened in (("cpu-naive", 1), ("cpu-naive", 1), ("cpu-blocked", 2), ("cpu-naive", 3)):
        list(evaluator.attempts(prepared(name), PROBLEMS[0]))
        assert len(workers.opened) == opened
