"""Sanity of the baselines: a speedup over a crippled baseline is no speedup, so a run that shows one does not publish.

The thresholds leave room for what honest baselines do. On an H200 over the 1,000 shapes of `grid1000`, cold (cuBLAS 13.1,
November 2026), the first suggestion of cuBLASLt took 0.96 to 1.33 times the autotuned time (geometric mean 1.041), torch.matmul
0.98 to 1.33 times (1.041), and cuBLAS 0.97 to 1.07 times the first suggestion's (1.000); without a workspace a suggestion took
up to 3.5 times as long as with one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from harness.model import Model
from harness.problem import Problem, Track
from harness.profiles import load_profile
from harness.protocol import CPU_BASELINES, CUDA_BASELINES, PROTOCOL_VERSION, Purpose, protocol_for
from harness.recheck import ESTIMATORS, SampleTable
from harness.record import DrawStats, Interval, Measure, Mode, Record, Status
from harness.run import DeviceInfo, Run, SampleLine
from harness.timing.statistics import geomean_interval
from harness.verify.precision import classify, has_class

AUTOTUNED, HEURISTIC, CUBLAS = "cublaslt_autotuned", "cublaslt_heuristic", "cublas"

AUTOTUNED_MARGIN = 0.99
"""Geometric mean of heuristic over autotuned time below which, interval included, autotuning did not tune."""
HEURISTIC_MARGIN = 0.90
"""The same of cuBLAS over heuristic time: both ask one library, so the heuristic's suggestions are crippled below it."""
SHAPE_MARGIN = 1.25
"""Ratio of autotuned to another baseline's time at one shape above which, interval included, the autotuned one is crippled."""


CLASS_OUTPUTS = 4096
"""Outputs from which an rms error tells the class."""
CLASSES = {Track.F32: ("fp32_accumulate",), Track.F16: ("fp32_accumulate", "fp16_accumulate")}
"""Classes that a baseline of a track may have."""


class Check(StrEnum):
    """What a finding is about."""

    PROTOCOL = "protocol"
    """The run was not measured by the full protocol of its version."""
    BASELINE_MISSING = "baseline_missing"
    """A baseline of the device was not measured."""
    BASELINE_WRONG = "baseline_wrong"
    """A baseline failed, was wrong, or left its precision class."""
    FIELD_MISSING = "field_missing"
    """A version or setting that comparisons need was not recorded."""
    AUTOTUNED_SLOWER = "autotuned_slower"
    """The autotuned baseline is slower than one that it should contain."""
    HEURISTIC_SLOWER = "heuristic_slower"
    """The heuristic baseline is far slower than cuBLAS."""
    NO_WORKSPACE = "no_workspace"
    """A library was allowed no workspace, which cripples its choice."""


class Finding(Model):
    """One reason why a run's speedups cannot be trusted."""

    check: Check
    """What it is about."""
    detail: str
    """One sentence."""


def sanity(run: Run, samples: SampleTable) -> list[Finding]:
    """Findings about the baselines and the set-up of a rechecked run; none is fine. Ratios come from the raw samples.

    Runs on a CPU have no CUDA baselines to compare: for them the protocol and what was recorded are checked.
    """
    findings = [*_protocol(run), *_fields(run.header.device), *_wrong(run.latest().values())]
    if run.header.device.profile != "cpu":
        verified = [record for record in run.latest().values() if record.status is Status.VERIFIED]
        findings += _ratios(verified, samples)
        findings += _workspaces(verified)
        findings += _classes(verified)
    return findings


def version_of(text: str | None) -> str:
    """Major.minor of a version as libraries write it: `13.1.0` and cuBLAS's integer 130100 give `13.1`; `` if there is none."""
    parts = [part[:9] for part in (text or "").strip().split(".")]
    if len(parts) == 1 and parts[0].isascii() and parts[0].isdigit() and int(parts[0]) >= 10_000:
        return f"{int(parts[0]) // 10_000}.{int(parts[0]) // 100 % 100}"
    if len(parts) < 2 or not all(part.isascii() and part.isdigit() for part in parts[:2]):
        return ""
    return ".".join(parts[:2])


def cublas_version(device: DeviceInfo) -> str:
    """Major.minor of cuBLAS as recorded, or an empty string."""
    return version_of(device.libraries.get("cublasLt") or device.libraries.get("cublas"))


def driver_version(device: DeviceInfo) -> str:
    """Major.minor of the driver (of the kernel, on a CPU), or an empty string."""
    return version_of(device.driver)


def _protocol(run: Run) -> Iterator[Finding]:
    protocol, profile = run.header.protocol, load_profile(run.header.device.profile)
    if protocol.purpose is not Purpose.FULL:
        yield Finding(
            check=Check.PROTOCOL, detail=f"it was measured by protocol {protocol.purpose}; only a full run publishes."
        )
        return
    expected = protocol_for(profile, Purpose.FULL, protocol.sustained)
    free = {
        name: getattr(protocol, name)
        for name in ("deadline_s", "measures", "baselines", "target_half_width", "server_requests")
    }
    if protocol.version == PROTOCOL_VERSION and protocol != expected.model_copy(update=free):
        yield Finding(check=Check.PROTOCOL, detail=f"its protocol differs from version {PROTOCOL_VERSION} of {profile.name}.")
    missing = sorted(set(CPU_BASELINES if profile.is_cpu else CUDA_BASELINES) - set(protocol.baselines))
    if missing:
        yield Finding(check=Check.BASELINE_MISSING, detail=f"the baseline {missing[0]} was not measured.")


def _fields(device: DeviceInfo) -> Iterator[Finding]:
    needed = {
        "the device's identifier": device.uuid,
        "the timer": device.timer,
        "torch's version": device.libraries.get("torch"),
    }
    if device.profile != "cpu":
        needed["cuBLAS's version"] = cublas_version(device)
        needed["the driver's version"] = driver_version(device)
    for what, value in needed.items():
        if not value:
            yield Finding(check=Check.FIELD_MISSING, detail=f"{what} was not recorded, so nothing can be compared with it.")


def _wrong(records: Iterable[Record]) -> Iterator[Finding]:
    for record in records:
        if record.status is Status.INFRA_ERROR:
            yield Finding(check=Check.BASELINE_WRONG, detail=f"{record.problem} ended with {record.reason}: {record.detail}.")


def _ratios(records: Iterable[Record], samples: SampleTable) -> Iterator[Finding]:
    """Autotuned against every other baseline, per shape and over the set, and heuristic against cuBLAS."""
    ratios: dict[tuple[Measure, str], list[Interval]] = {}
    for record in records:
        for timing in record.timings:
            lines = samples[record.problem, record.attempt, timing.measure]
            for name in lines.keys() & {CUBLAS, HEURISTIC, "torch_matmul"} if AUTOTUNED in lines else ():
                found = ratio(timing.measure.mode, lines[name], lines[AUTOTUNED])
                ratios.setdefault((timing.measure, name), []).append(found)
                if not 1 / found.high <= SHAPE_MARGIN:
                    yield Finding(
                        check=Check.AUTOTUNED_SLOWER,
                        detail=f"{AUTOTUNED} took {1 / found.value:.2f} times as long as {name} at {record.problem} "
                        f"({timing.measure}).",
                    )
            if {CUBLAS, HEURISTIC} <= lines.keys():
                found = ratio(timing.measure.mode, lines[CUBLAS], lines[HEURISTIC])
                ratios.setdefault((timing.measure, CUBLAS + "/" + HEURISTIC), []).append(found)
    yield from _means(ratios)


def _means(ratios: Mapping[tuple[Measure, str], list[Interval]]) -> Iterator[Finding]:
    for (measure, name), intervals in ratios.items():
        mean = geomean_interval(intervals)
        if name == HEURISTIC and not mean.high >= AUTOTUNED_MARGIN:
            detail = f"{AUTOTUNED} is slower than {HEURISTIC} by {_percent(mean)} over the set ({measure})."
            yield Finding(check=Check.AUTOTUNED_SLOWER, detail=detail)
        if name == f"{CUBLAS}/{HEURISTIC}" and not mean.high >= HEURISTIC_MARGIN:
            detail = f"{HEURISTIC} is slower than {CUBLAS} by {_percent(mean)} over the set ({measure})."
            yield Finding(check=Check.HEURISTIC_SLOWER, detail=detail)


def ratio(mode: Mode, first: SampleLine, second: SampleLine) -> Interval:
    """Time per launch of the first over the second, from windows of the same rounds."""
    return ESTIMATORS[mode](first.window_ns, first.launches_per_window, second.window_ns, second.launches_per_window)


def _percent(below_one: Interval) -> str:
    return f"{(1 / below_one.value - 1) * 100:.1f} %"


def _workspaces(records: Iterable[Record]) -> Iterator[Finding]:
    for record in records:
        for timing in record.timings:
            for name, contender in timing.contenders.items():
                if contender.workspace_limit_bytes == 0:
                    yield Finding(check=Check.NO_WORKSPACE, detail=f"{name} was allowed no workspace at {record.problem}.")


def _classes(records: Iterable[Record]) -> Iterator[Finding]:
    """Baselines whose errors on normal inputs are not those of the track."""
    for record in records:
        measured = record.verification.baselines if record.verification is not None else {}
        for name in record.baselines:
            stats = measured.get(name)
            if stats is None:
                detail = f"the errors of {name} at {record.problem} were not recorded."
                yield Finding(check=Check.FIELD_MISSING, detail=detail)
            elif not _in_class(stats, record.problem):
                detail = f"{name} is outside its class at {record.problem}: rms relative error {stats.rms_relative}."
                yield Finding(check=Check.BASELINE_WRONG, detail=detail)


def _in_class(stats: DrawStats, problem: Problem) -> bool:
    """Within the element-wise bound, and in the class where it shows."""
    if stats.bound_ratio is None or not stats.bound_ratio <= 1:
        return False
    shows = has_class(problem.k) and stats.outputs >= CLASS_OUTPUTS
    return not shows or classify(stats.rms_relative, problem.k) in CLASSES[problem.track]
