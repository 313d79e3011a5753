"""The instrument test of a CUDA device: does what a run reports hold on this very card?"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from harness.channel import WorkerDied, WorkerTimeout
from harness.devices import MachineFault, SubmissionFault
from harness.devices.cuda_instrument import Examination, Reading
from harness.diagnosis import Check, Outcome
from harness.drivers import RemoteDriver, open_driver
from harness.machine import DeviceLock, choose_device, why_not_rankable
from harness.measurement import LONG_REQUEST_NS, Job, Measurement
from harness.messages import StandIn
from harness.model import InfraError
from harness.problem_sets import resolve_shapes
from harness.protocol import Protocol, protocol_for
from harness.record import Interval, Measure, Mode, Record, Status
from harness.scores import regime
from harness.timing.statistics import Agreement, agreement

if TYPE_CHECKING:
    from harness.problem import Problem
    from harness.profiles import DeviceProfile

AA_BASELINE = "cublaslt_autotuned"
AA_GEOMEAN_TOLERANCE = {Mode.OFFLINE: 0.003, Mode.SERVER: 0.005}
SHORT_NS = 30_000
"""Requests of shapes whose speed-of-light time is below this vary most, and are cheap."""
SERVER_DEADLINE_S = 300.0
"""Seconds for one shape of the A/A test in server mode."""
AA_COVERAGE = (0.90, 0.99)
LENGTH_TOLERANCE = 0.01
DELAY_TOLERANCE = 0.005
COPY_SHARE = 0.8
MATRIX_SHARE = 0.8
"""Below these shares of the profile's rates something is wrong with the card, or the profile is another card's."""


def gpu_checks(device: str, aa_shapes: int, measures: tuple[Measure, ...], requests: int) -> Iterator[Check]:
    """What `hgemm doctor` measures on a CUDA device, one by one as it is found.

    Args:
        device: `cuda:N`.
        aa_shapes: shapes of the A/A test, the same number from each regime of the grid.
        measures: what the A/A test times.
        requests: requests of each contender in server mode, on shapes whose speed-of-light time is below `SHORT_NS`; an
            eighth of them on others.
    """
    choice = choose_device(device)
    lock = DeviceLock(choice.uuid)
    lock.acquire()
    try:
        yield from _trusted_checks(device, aa_shapes, measures, requests)
        yield _native_check(device)
    finally:
        lock.release()


def _trusted_checks(device: str, aa_shapes: int, measures: tuple[Measure, ...], requests: int) -> Iterator[Check]:
    driver = RemoteDriver(device)
    try:
        reason = why_not_rankable(driver.info)
        outcome = Outcome.WARN if reason else Outcome.OK
        detail = f"results of this machine cannot be ranked: {reason}" if reason else "results of this machine can be ranked"
        yield Check(name="ranking", outcome=outcome, detail=detail)
        yield from _examination_checks(driver.examine(), driver.profile)
        for mode in dict.fromkeys(measure.mode for measure in measures):
            yield from _agreement_checks(driver, aa_shapes, tuple(each for each in measures if each.mode is mode), requests)
    except (MachineFault, WorkerDied, WorkerTimeout) as error:
        yield Check(name="instrument", outcome=Outcome.FAIL, detail=f"the test ended early: {error}")
    finally:
        driver.close()


def _native_check(device: str) -> Check:
    """Whether host code of submissions can run on the device, and what is taken away from it."""
    try:
        driver = open_driver(device, native=True)
    except (InfraError, WorkerDied, WorkerTimeout) as error:
        return Check(name="kind native", outcome=Outcome.WARN, detail=f"it cannot run on this device: {error}")
    driver.kill()
    isolation = driver.info.conditions["isolation"]
    outcome = Outcome.WARN if isolation.startswith("none") else Outcome.OK
    return Check(name="kind native", outcome=outcome, detail=f"it runs on this device; isolation: {isolation}")


class Agreements(NamedTuple):
    """The autotuned choice in the submission's place, over some shapes."""

    records: tuple[Record, ...]
    by_measure: dict[str, Agreement]
    """Against itself, by measure: A/A."""
    best: Agreement
    """Against the best baseline of each shape, offline cold."""
    left_out: dict[Problem, str]
    """Why a shape could not be measured."""

    def extremes(self, measure: str) -> str:
        """The smallest and the largest ratio of a measure, with their shapes, for a person."""
        found = sorted(
            (timing.speedups[AA_BASELINE].value, str(record.problem))
            for record in self.records
            for timing in record.timings
            if str(timing.measure) == measure
        )
        (least, at_least), (most, at_most) = found[0], found[-1]
        return f"from {least:.4f} ({at_least}) to {most:.4f} ({at_most})"


def agreements(driver: RemoteDriver, problems: Sequence[Problem], protocol: Callable[[Problem], Protocol]) -> Agreements:
    """Measure the autotuned choice as if it were a submission: every ratio to itself is 1.

    Args:
        driver: the device.
        problems: shapes; those that cannot be measured are left out, with the reason.
        protocol: how to measure a shape.

    Raises:
        ValueError: no shape could be measured.
    """
    records = []
    left_out = {}
    for problem in problems:
        job = Job(problem, StandIn(baseline=AA_BASELINE), {}, 0, 0, secrets.token_hex(16), rankable=False)
        try:
            record = Measurement(driver, protocol(problem), job, {}).run().record
        except (SubmissionFault, MachineFault) as error:
            left_out[problem] = f"{error.reason}: {error}"
            continue
        if record.status is Status.VERIFIED:
            records.append(record)
        else:
            left_out[problem] = f"{record.reason}: {record.detail}"
    intervals: dict[str, list[Interval]] = {}
    for record in records:
        for timing in record.timings:
            intervals.setdefault(str(timing.measure), []).append(timing.speedups[AA_BASELINE])
    best = [record.timings[0].speedups[record.timings[0].best_baseline] for record in records]
    by_measure = {measure: agreement(found) for measure, found in intervals.items()}
    return Agreements(tuple(records), by_measure, agreement(best), left_out)


def stratified(profile: DeviceProfile, count: int) -> tuple[Problem, ...]:
    """Shapes of the grid, as many from each regime; always the same."""
    problems = list(resolve_shapes("grid1000").problems)
    random.Random(5).shuffle(problems)
    groups: dict[str, list[Problem]] = {}
    for problem in problems:
        groups.setdefault(regime(problem, profile), []).append(problem)
    return tuple(problem for group in groups.values() for problem in group[: max(1, count // len(groups))])


def _examination_checks(found: Examination, profile: DeviceProfile) -> Iterator[Check]:
    yield Check(
        name="launch floor", outcome=Outcome.OK, detail=f"{found.launch_ns / 1000:.2f} µs: no operation of a window is shorter"
    )
    for name, rate, expected, share, unit, scale in (
        ("bandwidth", found.copy_bytes_per_s, profile.copy_bandwidth_bytes_per_s, COPY_SHARE, "TB/s", 1e12),
        ("matrix rate", found.matrix_flops_per_s, profile.sustained_flops_per_s, MATRIX_SHARE, "TFLOP/s", 1e12),
    ):
        outcome = Outcome.OK if rate >= share * expected else Outcome.WARN
        detail = f"{rate / scale:.4g} {unit}; the profile {profile.name} says {expected / scale:.4g}"
        yield Check(name=name, outcome=outcome, detail=detail)
    for reading in found.readings:
        delayed = "delay" in reading.what
        yield _reading_check(reading, "delay" if delayed else "window length", DELAY_TOLERANCE if delayed else LENGTH_TOLERANCE)


def _reading_check(reading: Reading, name: str, tolerance: float) -> Check:
    error = abs(reading.read.value - reading.expected)
    outcome = Outcome.OK if error <= tolerance else Outcome.FAIL
    interval = f"{reading.read.value:.4f} ({reading.read.low:.4f}–{reading.read.high:.4f})"
    return Check(name=name, outcome=outcome, detail=f"{reading.what}: read {interval}, expected {reading.expected:.4f}")


def _agreement_checks(driver: RemoteDriver, aa_shapes: int, measures: tuple[Measure, ...], requests: int) -> Iterator[Check]:
    mode = measures[0].mode
    full = protocol_for(driver.profile, measures=measures)
    # In server mode every further contender would take its share of the arrivals, and a ratio to itself is all that counts.
    alone = full.model_copy(update={"baselines": (AA_BASELINE,), "deadline_s": SERVER_DEADLINE_S})

    def protocol(problem: Problem) -> Protocol:
        if mode is not Mode.SERVER:
            return full
        roof_ns, count = driver.profile.roof_ns(problem), requests
        if roof_ns >= SHORT_NS:
            # Where operations take long, a measurement makes do with a third of what its protocol says.
            count = max(8, requests // 8) * (3 if roof_ns >= LONG_REQUEST_NS else 1)
        return alone.model_copy(update={"server_requests": count})

    found = agreements(driver, stratified(driver.profile, aa_shapes), protocol)
    if found.left_out:
        (problem, reason), *more = found.left_out.items()
        others = f", and {len(more)} more" if more else ""
        yield Check(name=f"A/A {mode} left out", outcome=Outcome.WARN, detail=f"{problem}, since {reason}{others}")
    results = found.by_measure if mode is Mode.SERVER else {**found.by_measure, "best baseline": found.best}
    for name, result in results.items():
        # Of several baselines that are as fast, the one that was chosen as the best is a little slower the next time.
        few = result.intervals < 100 or result is found.best
        covered = AA_COVERAGE[0] <= result.coverage <= AA_COVERAGE[1] or few
        good = abs(result.geomean - 1) <= AA_GEOMEAN_TOLERANCE[mode] and covered
        yield Check(
            name=f"A/A {name}",
            outcome=Outcome.OK if good else Outcome.FAIL,
            detail=(
                f"{AA_BASELINE} in the submission's place over {result.intervals} shapes: geomean {result.geomean:.4f}, "
                f"{result.coverage:.1%} of the intervals hold 1, median half-width {result.median_half_width:.2%}"
                + (f"; {found.extremes(name)}" if name in found.by_measure else "")
            ),
        )
