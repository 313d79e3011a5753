"""Examine: a run directory becomes rows, or one sentence that says why it does not publish."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.model import DataError
from harness.profiles import DeviceProfile, load_profile
from harness.protocol import Protocol
from harness.recheck import faults, sample_table
from harness.record import SUBMISSION, Record, Status, Timing
from harness.run import END, FILES, SNAPSHOT, End, Header, Run, Segment
from harness.sanity import cublas_version, driver_version, sanity
from harness.scores import BEST, Score, Scores, regime, score
from harness.submission import Kind, Submission
from harness.untrusted_files import refuse_special_files
from leaderboard.models import ALL_REGIMES

Row = dict[str, Any]


class Examined(NamedTuple):
    """A run that may be published, as the board stores it."""

    path: Path
    """Its directory."""
    header: Header
    segments: Sequence[Segment]
    records: Sequence[Record]
    """The latest of every shape, in the set's order."""
    submission: Submission
    end: End
    end_sha256: str
    """Identity of the run."""


def examine(path: Path) -> Examined:
    """Read a run, recheck it against its raw samples, and check its baselines.

    Raises:
        DataError: it is incomplete, was changed, holds a figure that does not follow, or its baselines are not sane.
    """
    run = Run.read(path)
    samples = sample_table(run)
    fault = next(faults(run, samples), None)
    if fault is not None:
        raise DataError(f"{path} does not publish: {fault}")
    findings = sanity(run, samples)
    if findings:
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        raise DataError(f"{path} does not publish ({findings[0].check}): {findings[0].detail}{more}")
    return Examined(
        path=path.resolve(),
        header=run.header,
        segments=run.segments,
        records=[run.latest()[problem] for problem in run.header.problems],
        submission=Submission.read(path / SNAPSHOT),
        end=End.parse((path / END).read_bytes(), str(path / END)),
        end_sha256=end_hash(path),
    )


def end_hash(path: Path) -> str:
    """Identity of a finished run: the hash of its `end.json`.

    Raises:
        DataError: it has none, or a link or a special file in its place.
    """
    try:
        refuse_special_files(path, FILES)
        return hashlib.sha256((path / END).read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(f"{path} has no {END}, so it is no finished run; go on with: hgemm run --resume {path}") from error


def submission_row(examined: Examined) -> Row:
    """Columns of `submissions`."""
    submission, reference = examined.submission, examined.header.submission
    manifest = submission.manifest
    badges = ["native"] if manifest.kind is Kind.NATIVE else []
    badges += ["binary"] if any(file.name.endswith(".cubin") for file in submission.files) else []
    return {
        "tree_sha256": reference.tree_sha256,
        "code_sha256": reference.code_sha256,
        "name": manifest.name,
        "version": manifest.version,
        "author": manifest.authors[0],
        "authors": list(manifest.authors),
        "license": manifest.license,
        "description": manifest.description,
        "track": manifest.track.value,
        "kind": manifest.kind.value,
        "targets": list(manifest.targets),
        "badges": badges,
    }


def file_rows(examined: Examined) -> list[Row]:
    """Columns of `submission_files`."""
    return [{"name": file.name, "size_bytes": len(file.data), "content": file.data} for file in examined.submission.files]


def run_row(examined: Examined) -> Row:
    """Columns of `runs` that follow from the run alone."""
    header, device = examined.header, examined.header.device
    counts = examined.end.counts
    because = why_not_rankable(examined)
    return {
        "end_sha256": examined.end_sha256,
        "name": header.name,
        "path": str(examined.path),
        "created_utc": header.created_utc,
        "ended_utc": examined.end.ended_utc,
        "device": device.profile,
        "device_name": device.name,
        "protocol": protocol_label(header.protocol),
        "cublas": cublas_version(device),
        "driver": driver_version(device),
        "shape_set": header.shape_set,
        "shapes_sha256": header.shapes_sha256,
        "shapes": len(header.shapes),
        **{status.value: counts[status.value] for status in Status if status is not Status.INFRA_ERROR},
        "rankable": not because,
        "because": because,
        "header": header.model_dump_json(),
        "segments": "\n".join(segment.model_dump_json() for segment in examined.segments),
    }


def protocol_label(protocol: Protocol) -> str:
    """What of a protocol decides comparability: its version, and whether windows were sustained."""
    return f"{protocol.version} sustained" if protocol.sustained else protocol.version


def why_not_rankable(examined: Examined) -> str:
    """Why its machine cannot rank; empty where it can."""
    reasons = [segment.not_rankable_because for segment in examined.segments if not segment.rankable]
    if reasons:
        return reasons[0] or "the machine could not rank"
    verified = [record for record in examined.records if record.status is Status.VERIFIED]
    return "" if all(record.rankable for record in verified) else "other processes used the device"


def score_rows(examined: Examined) -> list[Row]:
    """Columns of `scores`; a run that is not complete has a row without figures per declared measure and baseline."""
    profile = load_profile(examined.header.device.profile)
    scores = score(examined.records, examined.header.problems, profile)
    protocol = examined.header.protocol
    if not scores.complete:
        return [
            {**_key(measure.mode, measure.l2_state, baseline, ALL_REGIMES), "shapes": scores.counts.expected, **_NOTHING}
            for measure in protocol.measures
            for baseline in (BEST, *protocol.baselines)
        ]
    return list(_figures(scores))


def record_rows(examined: Examined) -> list[Row]:
    """Columns of `records`."""
    profile = load_profile(examined.header.device.profile)
    return [_record(place, record, profile) for place, record in enumerate(examined.records)]


def timing_rows(examined: Examined) -> list[Row]:
    """Columns of `timings`."""
    return [
        {"place": place, **row}
        for place, record in enumerate(examined.records)
        for timing in record.timings
        for row in _timing(timing)
    ]


_NOTHING = dict.fromkeys(("geomean", "geomean_low", "geomean_high", "total_time", "win_rate", "arithmetic_mean"))


def _key(mode: str, l2_state: str, baseline: str, which: str) -> Row:
    return {"mode": str(mode), "l2_state": str(l2_state), "baseline": baseline, "regime": str(which)}


def _figures(scores: Scores) -> Iterator[Row]:
    for mode, states in scores.scores.items():
        for l2_state, baselines in states.items():
            for baseline, whole in baselines.items():
                regimes = scores.regimes[mode][l2_state][baseline]
                yield {**_key(mode, l2_state, baseline, ALL_REGIMES), **_score(whole)}
                for which, each in regimes.items():
                    yield {**_key(mode, l2_state, baseline, which), **_score(each)}


def _score(each: Score) -> Row:
    return {
        "shapes": each.shapes,
        "geomean": each.geomean.value,
        "geomean_low": each.geomean.low,
        "geomean_high": each.geomean.high,
        "total_time": each.total_time,
        "win_rate": each.win_rate,
        "arithmetic_mean": each.arithmetic_mean,
    }


def _record(place: int, record: Record, profile: DeviceProfile) -> Row:
    problem, verification = record.problem, record.verification
    return {
        "place": place,
        "m": problem.m,
        "n": problem.n,
        "k": problem.k,
        "regime": regime(problem, profile).value,
        "status": record.status.value,
        "reason": record.reason and record.reason.value,
        "detail": record.detail,
        "attempt": record.attempt,
        "segment": record.segment,
        "seconds": record.seconds,
        "verification": verification and verification.model_dump_json(),
    }


def _timing(timing: Timing) -> Iterator[Row]:
    for name, contender in timing.contenders.items():
        speedup = None if name == SUBMISSION else timing.speedups[name]
        yield {
            "mode": timing.measure.mode.value,
            "l2_state": timing.measure.l2_state.value,
            "contender": name,
            "launch_ns": contender.launch_ns,
            "launch_min_ns": contender.window_min_ns / contender.launches_per_window,
            "launch_max_ns": contender.window_max_ns / contender.launches_per_window,
            "launches": contender.launches_per_window,
            "rounds": timing.rounds,
            "layout": contender.layout.value,
            "description": contender.description,
            "sm_clock_mhz": contender.sm_clock_median_mhz,
            "speedup": speedup and speedup.value,
            "speedup_low": speedup and speedup.low,
            "speedup_high": speedup and speedup.high,
            "best": name == timing.best_baseline,
        }
