"""Recheck of a finished run: nothing was changed since it ended, and every figure follows from the raw samples.

It finds damage, edits and faults of the harness. It is no proof of origin: who can write every file of a run can make one
up, which is why a board lists runs that others measured apart from its own.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from harness.problem import Problem
from harness.problem_sets import has_shapes_of_its_name, shape_hash
from harness.record import SUBMISSION, ContenderTiming, Interval, Measure, Mode, Record, Status, Timing
from harness.run import END, SNAPSHOT, End, Run, SampleLine
from harness.seeds import shape_seed
from harness.session import MUST_MATCH
from harness.submission import Submission
from harness.timing.statistics import median_ns, median_ratio, speedup
from shapes import parse_shape

TOLERANCE = 1e-9
"""Relative difference allowed between a stored ratio and the recomputed one: logarithms differ in the last bit by machine."""

SampleTable = Mapping[tuple[Problem, int, Measure], Mapping[str, SampleLine]]
"""Raw samples by (problem, attempt, measure) and contender."""

Estimator = Callable[[Sequence[int], int, Sequence[int], int], Interval]
ESTIMATORS: dict[Mode, Estimator] = {
    Mode.OFFLINE: speedup,
    Mode.SERVER: lambda baseline, _, submission, __: median_ratio(baseline, submission),
}
"""Per mode, how a speedup follows from a baseline's windows and launches and the submission's."""


def sample_table(run: Run) -> SampleTable:
    """Raw samples of a run, for looking up.

    Raises:
        DataError: the samples are damaged.
    """
    table: dict[tuple[Problem, int, Measure], dict[str, SampleLine]] = {}
    for line in run.samples():
        table.setdefault((line.problem, line.attempt, line.measure), {})[line.contender] = line
    return table


def faults(run: Run, samples: SampleTable) -> Iterator[str]:
    """What is wrong with a run, one sentence each, the cheapest checks first; a sound run gives none.

    Raises:
        DataError: a file of the run is not valid.
    """
    if not run.complete:
        yield f"{run.path} has no {END}, so it is not complete; go on with: hgemm run --resume {run.path}"
        return
    end = End.parse((run.path / END).read_bytes(), str(run.path / END))
    yield from _file_faults(run, end)
    yield from _snapshot_faults(run)
    yield from _header_faults(run, end)
    yield from _segment_faults(run, end)
    for record in run.latest().values():
        yield from _record_faults(run, end, record)
        if record.status is Status.VERIFIED:
            for timing in record.timings:
                lines = samples.get((record.problem, record.attempt, timing.measure), {})
                yield from (f"{record.problem} {timing.measure}: {fault}" for fault in timing_faults(timing, lines))


def timing_faults(timing: Timing, lines: Mapping[str, SampleLine]) -> Iterator[str]:
    """Where figures of one measure do not follow from its samples."""
    if set(lines) != set(timing.contenders):
        yield f"samples of {sorted(lines)} but times of {sorted(timing.contenders)}."
        return
    for name, contender in timing.contenders.items():
        line = lines[name]
        if timing.measure.mode is Mode.OFFLINE and len(line.window_ns) != timing.rounds:
            yield f"{name} has {len(line.window_ns)} windows in {timing.rounds} rounds."
        elif _figures(contender) != _recomputed(line):
            yield f"the times of {name} are {_figures(contender)}, its samples say {_recomputed(line)}."
    estimator = ESTIMATORS.get(timing.measure.mode)
    if estimator is None:
        yield f"this version cannot recompute figures of mode {timing.measure.mode}; upgrade hgemm-arena."
        return
    mine = lines[SUBMISSION]
    for name, stored in timing.speedups.items():
        try:
            line = lines[name]
            found = estimator(line.window_ns, line.launches_per_window, mine.window_ns, mine.launches_per_window)
        except ValueError as error:
            yield f"the speedup over {name} does not follow from its samples: {error}"
            continue
        pairs = ((stored.value, found.value), (stored.low, found.low), (stored.high, found.high))
        if not all(math.isclose(a, b, rel_tol=TOLERANCE) for a, b in pairs):
            yield f"the speedup over {name} is {_text(stored)}, its samples say {_text(found)}."
    yield from _best_faults(timing, lines)


def _best_faults(timing: Timing, lines: Mapping[str, SampleLine]) -> Iterator[str]:
    if timing.measure.mode is not Mode.OFFLINE:
        return
    missing = [name for name in timing.speedups if not lines[name].selection_window_ns]
    if missing:
        yield f"{missing[0]} has no samples of selection rounds, so nothing shows which baseline was best."
        return
    rates = {name: median_ns(lines[name].selection_window_ns) / lines[name].selection_launches for name in timing.speedups}
    if rates[timing.best_baseline] > min(rates.values()):
        fastest = min(rates, key=rates.__getitem__)
        yield f"the best baseline is said to be {timing.best_baseline}, the selection rounds say {fastest}."


def _file_faults(run: Run, end: End) -> Iterator[str]:
    found: dict[str, Path] = {}
    for path in sorted(run.path.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            yield f"{path} is a link or a special file; a run holds plain files only."
        elif path.is_file() and path != run.path / END:
            found[path.relative_to(run.path).as_posix()] = path
    for name in sorted(found.keys() ^ end.files_sha256.keys()):
        what = "was added after the run ended" if name in found else "is gone since the run ended"
        yield f"{run.path / name} {what}; publish the run as it was written."
    for name, path in found.items():
        if hashlib.sha256(path.read_bytes()).hexdigest() != end.files_sha256.get(name):
            yield f"{path} was changed after the run ended: its hash is not the one in {END}."


def _snapshot_faults(run: Run) -> Iterator[str]:
    if Submission.read(run.path / SNAPSHOT).reference() != run.header.submission:
        yield f"{run.path / SNAPSHOT} is not the submission that run.json names."


def _header_faults(run: Run, end: End) -> Iterator[str]:
    header, latest = run.header, run.latest()
    if shape_hash(tuple(parse_shape(shape) for shape in header.shapes)) != header.shapes_sha256:
        yield f"{run.path}: the hash of the set is not that of its shapes."
    if not has_shapes_of_its_name(header.shape_set, header.shapes_sha256):
        yield f"{run.path} has other shapes than the set {header.shape_set}, which it names."
    strangers = latest.keys() - set(header.problems)
    if strangers:
        yield f"{run.path} has a record of {min(map(str, strangers))}, which is not in its set of shapes."
    missing = [problem for problem in header.problems if problem not in latest]
    if missing:
        yield f"{run.path} has an {END} but no record of {missing[0]}."
    counts = {status.value: sum(record.status is status for record in latest.values()) for status in Status}
    if counts != end.counts:
        yield f"{run.path / END} counts {end.counts}, the records say {counts}."


def _segment_faults(run: Run, end: End) -> Iterator[str]:
    for position, segment in enumerate(run.segments):
        if segment.index != position:
            yield f"{run.path}: segment {segment.index} stands at place {position}."
        for field in MUST_MATCH:
            if getattr(segment.device, field) != getattr(run.header.device, field):
                yield f"{run.path}: segment {position} ran with another {field} than the run."
        secret = end.secrets.get(str(position))
        if secret is not None and hashlib.sha256(_unhex(secret)).hexdigest() != segment.seed_commitment:
            yield f"{run.path}: the secret of segment {position} is not the one that it committed to."


def _record_faults(run: Run, end: End, record: Record) -> Iterator[str]:
    protocol = run.header.protocol
    if (record.measures, record.baselines) != (protocol.measures, protocol.baselines):
        yield f"{record.problem} declares other measures or baselines than the protocol of its run."
    if not record.seed and record.status is not Status.VERIFIED:
        return
    if record.segment >= len(run.segments):
        yield f"{record.problem} lies in segment {record.segment}, which does not exist."
        return
    if record.rankable and not run.segments[record.segment].rankable:
        yield f"{record.problem} claims to be rankable, its segment is not."
    secret = end.secrets.get(str(record.segment))
    if secret is not None and record.seed != shape_seed(_unhex(secret), record.problem, record.attempt):
        yield f"the seed of {record.problem} does not derive from the secret of its segment."


def _figures(contender: ContenderTiming) -> tuple[int, int, int, int]:
    return (
        contender.launches_per_window,
        contender.window_median_ns,
        contender.window_min_ns,
        contender.window_max_ns,
    )


def _recomputed(line: SampleLine) -> tuple[int, int, int, int]:
    return line.launches_per_window, median_ns(line.window_ns), min(line.window_ns), max(line.window_ns)


def _text(interval: Interval) -> str:
    return f"{interval.value:.6f} ({interval.low:.6f} to {interval.high:.6f})"


def _unhex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""
