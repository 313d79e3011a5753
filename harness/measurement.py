"""Measurement: one problem on one driver, from the first input to a Record. All judgements are made here, in the parent."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from harness.devices import MachineFault, WindowTime
from harness.drivers import Driver
from harness.messages import Choice, Draw, Inspection, Integrity, Prepare, Round, Select, Serve, ServeResult, StandIn
from harness.plan import Plan
from harness.problem import Problem
from harness.profiles import DeviceProfile
from harness.protocol import Protocol
from harness.record import (
    SUBMISSION,
    ContenderTiming,
    L2State,
    Measure,
    Mode,
    Reason,
    Record,
    Status,
    Timing,
    Verification,
)
from harness.run import SampleLine
from harness.seeds import derive
from harness.server_figures import gather
from harness.telemetry import Conditions
from harness.timing.offline import Rounds, score_rounds, speedups
from harness.timing.server import rate_for
from harness.timing.statistics import LOOKS, median_ns
from harness.verify.checks import Errors, judge
from harness.verify.inputs import InputKind, plan_draws
from harness.verify.reference import Projection

LIMIT_SLACK = 0.98
"""A time is impossible when it is below the device's limit times this."""
LONG_OPERATION_NS = 500_000
"""From this speed-of-light time on, rounds end at the first look: forty rounds would take most of a run's time."""
LONG_REQUEST_NS = 1_000_000
"""From this speed-of-light time on, a third of the requests is enough: such times vary little, and each costs much."""
SUSTAINED_FACTOR = 40
SUSTAINED_LIMIT_NS = 100_000


class Job(NamedTuple):
    """One problem to measure."""

    problem: Problem
    plan: Plan | StandIn
    artifacts: dict[str, str]
    attempt: int
    segment: int
    seed: str
    """32 hex digits."""
    rankable: bool


class Measured(NamedTuple):
    """A record with its raw samples."""

    record: Record
    samples: tuple[SampleLine, ...]


class Rejected(Exception):
    """The submission failed a check."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Measurement:
    """The procedure for one problem: prepare, verify, select, score."""

    def __init__(self, driver: Driver, protocol: Protocol, job: Job, known: dict[str, dict[str, str]]) -> None:
        self._driver = driver
        self._protocol = protocol
        self.job = job
        """What is measured."""
        self._known = known
        self._phase_is_submissions = False
        self._pools: dict[InputKind, Errors] = {}
        self._baselines: dict[str, Errors] = {}
        self._choices: dict[str, tuple[dict[str, Choice], str]] = {}
        self._repeatable: bool | None = None
        self._checked = self._projected = 0
        self._samples: list[SampleLine] = []
        self._conditions: Conditions | None = None

    @property
    def anchor(self) -> str:
        """The protocol's anchor among the baselines."""
        return self._protocol.anchor

    @property
    def blames_submission(self) -> bool:
        """Whether what runs now is the submission's, should the worker die or hang."""
        return self._phase_is_submissions

    def run(self) -> Measured:
        """Measure.

        Raises:
            SubmissionFault, MachineFault, WorkerTimeout, WorkerDied: from the driver.
        """
        started = time.monotonic()
        try:
            timings, inapplicable = self._measure()
        except Rejected as rejection:
            record = self._record(started, status=Status.REJECTED, reason=rejection.reason, detail=str(rejection))
            return Measured(record, ())
        record = self._record(started, status=Status.VERIFIED, timings=timings, not_applicable=inapplicable)
        return Measured(record, tuple(self._samples))

    def verification(self) -> Verification | None:
        """What was measured so far."""
        if not self._pools and not self._checked:
            return None
        normal = self._pools.get(InputKind.NORMAL)
        return Verification(
            draws=tuple(pool.stats() for pool in self._pools.values()),
            baselines={name: errors.stats() for name, errors in self._baselines.items()},
            timed_outputs_checked=self._checked,
            timed_outputs_projected=self._projected,
            precision_class=None if normal is None else normal.precision_class,
            bitwise_repeatable=self._repeatable,
        )

    def _record(self, started: float, **fields: object) -> Record:
        return Record.model_validate(
            {
                "problem": self.job.problem,
                "attempt": self.job.attempt,
                "segment": self.job.segment,
                "measures": self._protocol.measures,
                "baselines": self._protocol.baselines,
                "verification": self.verification(),
                "rankable": self.job.rankable,
                "plan_sha256": self.job.plan.sha256(),
                "seed": self.job.seed,
                "seconds": round(time.monotonic() - started, 3),
                **fields,
            }
        )

    def begin(self, sets: int | None = None) -> bool:
        """Lay the problem out and verify the submission on every kind of input.

        Args:
            sets: buffer sets that are needed; default is the bench's choice.

        Returns:
            Whether the warm measures apply.

        Raises:
            Rejected: a check failed.
        """
        job = self.job
        self._phase_is_submissions = True
        self._driver.deadline = time.monotonic() + self._protocol.deadline_s
        prepared = self._driver.prepare(
            Prepare(problem=job.problem, plan=job.plan, artifacts=job.artifacts, window_ns=self._window_ns(), sets=sets)
        )
        # A stand-in for the submission is a baseline, which is verified as one.
        for draw in () if isinstance(job.plan, StandIn) else plan_draws(job.problem):
            request = Draw(
                kind=draw.kind, draws=draw.sets, seed=self._seed(f"draw/{draw.kind}"), repeat=draw.kind is InputKind.NORMAL
            )
            self._accept(self._driver.draw(request), draw.kind)
        return prepared.warm_applies

    def choices(self) -> dict[str, Choice]:
        """What everybody chose for the cold offline measure, which server mode uses too."""
        return self._select(Measure())[0]

    def saturating_trace(self, contender: str, rate_per_s: float, requests: int) -> ServeResult:
        """One contender's answers to a trace with nothing between requests; outputs of the submission are verified.

        Raises:
            Rejected: they are wrong.
        """
        self._phase_is_submissions = contender == SUBMISSION
        self._driver.deadline = time.monotonic() + self._protocol.deadline_s
        seed = self._seed(f"saturation/{contender}/{rate_per_s}")
        result = self._driver.serve(
            Serve(
                contenders=(contender,), requests_each=requests, rate_per_s=rate_per_s, seed=seed, full=False, refreshed=False
            )
        )
        if result.inspection is not None:
            self._accept_timed(result.inspection)
        return result

    def _measure(self) -> tuple[tuple[Timing, ...], tuple[Measure, ...]]:
        warm_applies = self.begin()
        timings, inapplicable = [], []
        for measure in self._protocol.measures:
            if measure.l2_state is L2State.WARM and not warm_applies:
                inapplicable.append(measure)
                continue
            started = time.monotonic()
            timing = self._serve(measure) if measure.mode is Mode.SERVER else self._time(measure)
            timings.append(timing.model_copy(update={"seconds": round(time.monotonic() - started, 3)}))
        return tuple(timings), tuple(inapplicable)

    def _time(self, measure: Measure) -> Timing:
        choices, best = self._select(measure)
        launches = {name: choice.launches_per_window for name, choice in choices.items()}
        long = self._driver.profile.roof_ns(self.job.problem) >= LONG_OPERATION_NS

        def time_round(order: tuple[str, ...], number: int) -> Mapping[str, WindowTime]:
            request = Round(
                measure=measure,
                order=order,
                seed=self._seed(f"{measure}/round/{number}"),
                full=number == 1,
                readings=number in LOOKS,
            )
            result = self._driver.round(request)
            assert result.inspection is not None
            self._accept_timed(result.inspection)
            self._conditions = result.conditions or self._conditions
            return result.times

        self._phase_is_submissions = True
        seed = self._seed(f"{measure}/order")
        most = LOOKS[0] if long else LOOKS[-1]
        rounds = score_rounds(launches, time_round, self._protocol.target_half_width, seed, most)
        self._check_limits(rounds, choices, measure)
        self._keep_samples(rounds, choices, measure)
        return _timing(measure, rounds, choices, best).model_copy(update={"conditions": self._conditions})

    def _serve(self, measure: Measure) -> Timing:
        """Random arrivals, at a rate that no submission decides; the choices are those of the cold offline measure."""
        choices, best = self._select(Measure())
        anchor = choices[self._protocol.anchor]
        rate_per_s = rate_for(median_ns(anchor.selection_window_ns) / anchor.selection_launches)
        long = self._driver.profile.roof_ns(self.job.problem) >= LONG_REQUEST_NS
        wanted = max(8, self._protocol.server_requests // (3 if long else 1))
        self._phase_is_submissions = True

        def answer(number: int, requests_each: int, rate_per_s: float) -> ServeResult:
            request = Serve(
                contenders=tuple(sorted(choices)),
                requests_each=requests_each,
                rate_per_s=rate_per_s,
                seed=self._seed(f"{measure}/trace/{number}"),
                full=number == 0,
            )
            result = self._driver.serve(request)
            assert result.inspection is not None
            self._accept_timed(result.inspection)
            return result

        figures = gather(answer, wanted, rate_per_s)
        self._check_fastest({name: min(times) for name, times in figures.device_ns.items()}, measure)
        self._samples += figures.samples(self.job.problem, self.job.attempt, measure)
        return figures.timing(measure, choices, best)

    def _select(self, measure: Measure) -> tuple[dict[str, Choice], str]:
        if str(measure) not in self._choices:
            self._choices[str(measure)] = self._chosen(measure)
        return self._choices[str(measure)]

    def _chosen(self, measure: Measure) -> tuple[dict[str, Choice], str]:
        seed = self._seed(f"{measure}/select")
        known = self._known.setdefault(str(measure), {})
        self._phase_is_submissions = False
        # Baselines have a deadline of their own, so that neither side pays for what the other took.
        left = self._driver.deadline - time.monotonic()
        self._driver.deadline = time.monotonic() + self._protocol.deadline_s
        selected = self._driver.select(
            Select(measure=measure, contenders=self._protocol.baselines, keys=dict(known), seed=seed)
        )
        self._driver.deadline = time.monotonic() + left
        for name, choice in selected.choices.items():
            known[name] = choice.operation.key
            if choice.errors is None:
                continue
            self._baselines[name] = choice.errors
            finding = judge(choice.errors, self.job.problem.track)
            if finding is not None:
                raise MachineFault(Reason.BASELINE_ERROR, f"{name} is wrong for {self.job.problem}: {finding.detail}", False)
        self._phase_is_submissions = True
        mine = self._driver.select(Select(measure=measure, contenders=(SUBMISSION,), seed=seed + 1))
        return {**selected.choices, **mine.choices}, selected.best

    def _accept(self, inspection: Inspection, kind: InputKind) -> None:
        """Pool what a draw measured and judge it."""
        errors = inspection.errors
        assert errors is not None
        self._pools[kind] = self._pools[kind].merge(errors) if kind in self._pools else errors
        if inspection.repeatable is not None:
            self._repeatable = inspection.repeatable and self._repeatable is not False
        self._judge_integrity(inspection.integrity)
        self._judge(self._pools[kind])
        if inspection.projection is not None:
            self._judge(inspection.projection, " where C held an earlier result")
        deterministic = isinstance(self.job.plan, Plan) and self.job.plan.deterministic
        if deterministic and inspection.repeatable is False:
            detail = f"{kind} inputs gave different bits in two runs though the plan says deterministic"
            raise Rejected(Reason.NONDETERMINISTIC, detail)

    def _accept_timed(self, inspection: Inspection) -> None:
        """Judge the outputs of a timed window."""
        self._judge_integrity(inspection.integrity)
        if inspection.errors is not None:
            self._checked += inspection.errors.outputs
            self._judge(inspection.errors, " in a timed window")
        if inspection.projection is not None:
            self._projected += inspection.projection.outputs
            self._judge(inspection.projection, " in a timed window")

    def _judge(self, evidence: Errors | Projection, where: str = "") -> None:
        finding = judge(evidence, self.job.problem.track)
        if finding is not None:
            raise Rejected(finding.reason, finding.detail.rstrip(".") + where)

    def _judge_integrity(self, integrity: Integrity) -> None:
        if integrity.guards_changed:
            raise Rejected(Reason.OUT_OF_BOUNDS, "a guard band around a buffer was overwritten")
        if integrity.inputs_changed:
            raise Rejected(Reason.INPUT_MODIFIED, "A or B was changed by the operation")
        if integrity.workspace_dirty:
            detail = "the part of the workspace declared as zeroed was not zero after the operation"
            raise Rejected(Reason.WORKSPACE_NOT_RESTORED, detail)

    def _check_limits(self, rounds: Rounds, choices: dict[str, Choice], measure: Measure) -> None:
        fastest = {
            name: min(window.window_ns for window in windows) / choices[name].launches_per_window
            for name, windows in rounds.windows.items()
        }
        self._check_fastest(fastest, measure)

    def _check_fastest(self, fastest: Mapping[str, float], measure: Measure) -> None:
        """Reject times that the device cannot reach; a baseline below the limit is the machine's fault."""
        limit_ns = self._driver.profile.limit_ns(self.job.problem, cold=measure.l2_state is L2State.COLD)
        for name, fastest_ns in fastest.items():
            if fastest_ns >= limit_ns * LIMIT_SLACK:
                continue
            detail = f"{name} took {fastest_ns:.0f} ns where the device needs at least {limit_ns:.0f} ns"
            if name != SUBMISSION:
                raise MachineFault(Reason.BASELINE_ERROR, f"{detail}; its clock or profile is wrong", False)
            raise Rejected(Reason.TOO_FAST, detail)

    def _keep_samples(self, rounds: Rounds, choices: dict[str, Choice], measure: Measure) -> None:
        for name, windows in rounds.windows.items():
            line = SampleLine(
                problem=self.job.problem,
                attempt=self.job.attempt,
                measure=measure,
                contender=name,
                launches_per_window=choices[name].launches_per_window,
                window_ns=tuple(window.window_ns for window in windows),
                selection_launches=choices[name].selection_launches,
                selection_window_ns=choices[name].selection_window_ns,
            )
            self._samples.append(line)

    def _window_ns(self) -> int:
        profile: DeviceProfile = self._driver.profile
        compute_bound = profile.roof_ns(self.job.problem) >= SUSTAINED_LIMIT_NS
        return self._protocol.window_ns * (SUSTAINED_FACTOR if self._protocol.sustained and compute_bound else 1)

    def _seed(self, label: str) -> int:
        """A seed for one purpose, derived from the shape's."""
        return derive(bytes.fromhex(self.job.seed), label)


def _timing(measure: Measure, rounds: Rounds, choices: dict[str, Choice], best: str) -> Timing:
    contenders = {}
    for name, windows in rounds.windows.items():
        lengths = [window.window_ns for window in windows]
        clocks = [window.sm_clock_mhz for window in windows if window.sm_clock_mhz is not None]
        contenders[name] = ContenderTiming(
            layout=choices[name].operation.layout,
            description=choices[name].operation.description,
            workspace_limit_bytes=choices[name].operation.workspace_limit_bytes,
            launches_per_window=choices[name].launches_per_window,
            window_median_ns=median_ns(lengths),
            window_min_ns=min(lengths),
            window_max_ns=max(lengths),
            sm_clock_median_mhz=median_ns(clocks) if clocks else None,
        )
    launches = {name: choice.launches_per_window for name, choice in choices.items()}
    return Timing(
        measure=measure,
        rounds=len(rounds.windows[SUBMISSION]),
        repeated_rounds=rounds.repeated,
        stopped=rounds.stopped,
        contenders=contenders,
        speedups=speedups(rounds.windows, launches),
        best_baseline=best,
    )
