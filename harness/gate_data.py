"""What a gate reads and writes: our part of pytest-benchmark's JSON, and the pinned baseline that such a file becomes.

A benchmark's `extra_info["hgemm"]` holds a `Benchmark`: the record, the raw windows, and all that must be equal for its times
to mean the same. A baseline is the same file with a `Pin` beside the benchmarks, so pytest-benchmark's own tools still read it.
The pin holds a hash of everything: nothing but `hgemm gate --accept` makes a baseline, and an edited one is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple, Self

from pydantic import Field, model_validator

from harness.model import DataError, Document, Hash, HgemmError, InfraError, Model
from harness.problem import Problem
from harness.profiles import DeviceProfile, load_profile
from harness.protocol import Protocol
from harness.record import SUBMISSION, Measure, Record, Status, Timing
from harness.run import DeviceInfo, SampleLine, utc_now
from harness.scores import Regime, regime
from harness.submission import SubmissionReference
from harness.timing.statistics import MIN_ROUNDS, median_ns

EXTRA = "hgemm"
"""Our key in a benchmark's `extra_info`."""
PIN = "hgemm_baseline"
"""Our key beside `benchmarks` in a baseline."""
MEDIAN_TOLERANCE = 1e-6
"""Relative difference allowed between pytest-benchmark's median, a sum of floating-point seconds, and that of the windows."""


class InvalidGateError(HgemmError):
    """Nothing can be said about a regression; never to be taken for a pass."""

    exit_code = 11


class Sitting(Model):
    """One measurement of one shape."""

    record: Record
    """What happened."""
    samples: tuple[SampleLine, ...]
    """Raw windows of the benchmark's measure, one line per contender."""

    @model_validator(mode="after")
    def _is_verified(self) -> Self:
        if self.record.status is not Status.VERIFIED:
            raise ValueError(f"{self.record.problem} is {self.record.status}, and only what is verified has a time")
        return self

    def timing(self, measure: Measure) -> Timing:
        """The record's timing of that measure.

        Raises:
            ValueError: it has none.
        """
        found = next((timing for timing in self.record.timings if timing.measure == measure), None)
        if found is None:
            raise ValueError(f"{self.record.problem} was not timed in {measure}")
        return found

    @property
    def lines(self) -> dict[str, SampleLine]:
        """Samples by contender."""
        return {line.contender: line for line in self.samples}


class Benchmark(Document):
    """One shape in one measure: what rides in `extra_info`."""

    submission: SubmissionReference
    """What was measured."""
    device: DeviceInfo
    """Where."""
    protocol: Protocol
    """How."""
    harness_version: str
    """Version of hgemm-arena."""
    measure: Measure
    """What was timed."""
    sittings: Annotated[tuple[Sitting, ...], Field(min_length=1)]
    """The measurement, and those that followed because the gate could not decide."""

    @model_validator(mode="after")
    def _figures_follow_from_samples(self) -> Self:
        for sitting in self.sittings:
            timing, lines = sitting.timing(self.measure), sitting.lines
            for name, contender in timing.contenders.items():
                if name not in lines or lines[name].measure != self.measure or lines[name].problem != self.problem:
                    raise ValueError(f"raw samples of {name} are missing")
                if len(lines[name].window_ns) < MIN_ROUNDS:
                    raise ValueError(f"{name} has {len(lines[name].window_ns)} windows, too few to judge")
                if median_ns(lines[name].window_ns) != contender.window_median_ns:
                    raise ValueError(f"the median of {name} does not follow from its samples")
        return self

    @property
    def problem(self) -> Problem:
        """The shape."""
        return self.sittings[0].record.problem

    @property
    def key(self) -> str:
        """What it is called in both files, whatever the test that measured it is called."""
        return f"{self.submission.name} {self.problem} {self.measure}"

    @property
    def regime(self) -> Regime:
        """The shape's regime on its device."""
        return regime(self.problem, _profile(self.device.profile))

    def launch_s(self, contender: str = SUBMISSION) -> list[float]:
        """Seconds per launch of every window of every sitting."""
        found = []
        for sitting in self.sittings:
            line = sitting.lines[contender]
            found += [window / line.launches_per_window / 1e9 for window in line.window_ns]
        return found


class Acceptance(Model):
    """One decision to take a result as the baseline."""

    accepted_utc: str
    """When, ISO 8601."""
    reason: Annotated[str, Field(min_length=1)]
    """Why, by who accepted it."""
    benchmarks_sha256: Hash
    """Hash of the benchmarks that were accepted."""
    slowdown: float | None
    """Geometric mean of its time over the baseline's before; null for the first, and where the two do not compare."""
    drift: float | None
    """The same over the anchor's."""


class Pin(Document):
    """What makes a file a baseline."""

    history: Annotated[tuple[Acceptance, ...], Field(min_length=1)]
    """Every acceptance, the first first."""
    anchor_utc: str
    """When the anchor was accepted: the first acceptance on this device, with this protocol and these libraries."""
    anchor: dict[str, dict[str, float]]
    """By benchmark and contender, seconds per launch of the anchor."""
    seal_sha256: Hash
    """Hash of the benchmarks and of the rest of the pin."""

    @property
    def latest(self) -> Acceptance:
        """The acceptance that the gate compares with."""
        return self.history[-1]


class Results(NamedTuple):
    """What a gate compares: the benchmarks of one file, or of the session that runs."""

    benchmarks: Mapping[str, Benchmark]
    """By key."""
    faults: tuple[str, ...] = ()
    """Why parts cannot be judged, one sentence each."""
    pin: Pin | None = None
    """Of a baseline."""
    document: dict[str, Any] | None = None
    """The whole file."""


def collect(benchmarks: Sequence[Benchmark], faults: Sequence[str] = ()) -> Results:
    """Benchmarks by key; one that was measured twice is a fault."""
    found: dict[str, Benchmark] = {}
    problems = list(faults)
    for benchmark in benchmarks:
        if benchmark.key in found:
            problems.append(f"{benchmark.key} was measured by two tests")
        found[benchmark.key] = benchmark
    return Results(found, tuple(problems))


def read_results(path: Path) -> Results:
    """The benchmarks of a file that pytest-benchmark wrote.

    Raises:
        InvalidGateError: it cannot be read, holds NaN, or is not such a file.
    """
    document = _read(path)
    entries = document.get("benchmarks")
    if not isinstance(entries, list):
        raise InvalidGateError(f"{path} is not a file of pytest-benchmark; make one with --benchmark-json={path.name}.")
    benchmarks, faults = [], []
    for entry in entries:
        if not (isinstance(entry, dict) and isinstance(extra := entry.get("extra_info"), dict) and EXTRA in extra):
            continue
        name = str(entry.get("fullname") or entry.get("name"))
        try:
            benchmark = Benchmark.parse(json.dumps(extra[EXTRA]), f"benchmark {name}")
        except DataError as error:
            faults.append(str(error).rstrip("."))
            continue
        benchmarks.append(benchmark)
        if not _median_agrees(entry, benchmark):
            faults.append(f"the statistics of benchmark {name} do not follow from its windows")
    return collect(benchmarks, faults)._replace(document=document)


def read_baseline(path: Path) -> Results:
    """A pinned baseline.

    Raises:
        InvalidGateError: as for `read_results`; it was never accepted, or was changed since.
    """
    results = read_results(path)
    document = results.document or {}
    if PIN not in document:
        raise InvalidGateError(f"{path} was never accepted as a baseline; do so with: hgemm gate {path} NEW --accept REASON")
    try:
        pin = Pin.parse(json.dumps(document[PIN]), f"the pin of {path}")
    except DataError as error:
        raise InvalidGateError(str(error)) from error
    if _seal(document["benchmarks"], pin) != pin.seal_sha256:
        raise InvalidGateError(f"{path} was changed after it was accepted; restore it, or accept a new one with a reason.")
    return results._replace(pin=pin)


def accept(results: Results, previous: Results | None, reason: str, compares: bool) -> Results:
    """A new baseline.

    Args:
        results: what becomes the baseline, read from a file.
        previous: the baseline before.
        reason: why, in words.
        compares: whether the times of `previous` mean the same; else the new one becomes the anchor.

    Raises:
        DataError: no reason is given.
        InvalidGateError: parts of the results cannot be judged, or there are none.
    """
    if not reason.strip():
        raise DataError("a baseline needs a reason, which everybody can read; give one with --accept.")
    if results.faults or not results.benchmarks or results.document is None:
        raise InvalidGateError(f"no baseline: {results.faults[0] if results.faults else 'nothing was measured'}.")
    pin = previous.pin if previous is not None else None
    now = figures(results.benchmarks)
    anchor = pin.anchor if pin is not None and compares else now
    entry = Acceptance(
        accepted_utc=utc_now(),
        reason=reason,
        benchmarks_sha256=_hash(results.document["benchmarks"]),
        slowdown=drift(figures(previous.benchmarks), now) if previous is not None and compares else None,
        drift=drift(anchor, now) if pin is not None and compares else None,
    )
    new = Pin(
        history=(*(pin.history if pin is not None else ()), entry),
        anchor_utc=pin.anchor_utc if pin is not None and compares else entry.accepted_utc,
        anchor=anchor,
        seal_sha256="0" * 64,
    )
    benchmarks = results.document["benchmarks"]
    new = new.model_copy(update={"seal_sha256": _seal(benchmarks, new)})
    return results._replace(pin=new, document={**results.document, PIN: new.model_dump(mode="json")})


def write_baseline(baseline: Results, path: Path) -> None:
    """Write a new baseline in one step, so that whoever reads meanwhile finds the old one or the new.

    Raises:
        InfraError: it cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(json.dumps(baseline.document, indent=1) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise InfraError(f"{path} cannot be written ({error.strerror}); name another file.") from error


def figures(benchmarks: Mapping[str, Benchmark]) -> dict[str, dict[str, float]]:
    """By benchmark and contender, the median of seconds per launch."""
    return {
        key: {name: median(benchmark.launch_s(name)) for name in benchmark.sittings[0].lines}
        for key, benchmark in benchmarks.items()
    }


def drift(
    anchor: Mapping[str, Mapping[str, float]], now: Mapping[str, Mapping[str, float]], relative: str = ""
) -> float | None:
    """Geometric mean of the submissions' time now over the anchor's, over what both hold; null where that is nothing.

    Args:
        anchor: `figures` of the anchor.
        now: of what is compared with it.
        relative: a contender or a submission whose time both are divided by; empty for time itself.
    """
    logs = []
    for key in anchor.keys() & now.keys():
        first, second = _figure(anchor, key, relative), _figure(now, key, relative)
        if first is not None and second is not None:
            logs.append(math.log(second / first))
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


@cache
def _profile(name: str) -> DeviceProfile:
    return load_profile(name)


def _figure(of: Mapping[str, Mapping[str, float]], key: str, relative: str) -> float | None:
    """A submission's seconds, over those of what it is relative to; None for what is itself the reference."""
    name, _, rest = key.partition(" ")
    if not relative or relative in of[key]:
        return of[key][SUBMISSION] / (of[key][relative] if relative else 1.0)
    other = of.get(f"{relative} {rest}")
    return None if name == relative or other is None else of[key][SUBMISSION] / other[SUBMISSION]


def _median_agrees(entry: Mapping[str, Any], benchmark: Benchmark) -> bool:
    stats = entry.get("stats")
    shown = stats.get("median") if isinstance(stats, dict) else None
    expected = median(benchmark.launch_s())
    return isinstance(shown, int | float) and abs(shown - expected) <= MEDIAN_TOLERANCE * expected


def _read(path: Path) -> dict[str, Any]:
    def refuse(constant: str) -> float:
        raise ValueError(f"it holds {constant}, which is no time")

    try:
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    except OSError as error:
        raise InvalidGateError(f"{path} cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise InvalidGateError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(document, dict):
        raise InvalidGateError(f"{path} must hold one JSON object.")
    return document


def _seal(benchmarks: object, pin: Pin) -> str:
    return _hash({"benchmarks": benchmarks, "pin": pin.model_dump(mode="json", exclude={"seal_sha256"})})


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
