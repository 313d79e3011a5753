"""Samples: raw times of one shape, read from the run directory that the board refers to."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from harness.model import DataError
from harness.problem import Problem
from harness.record import Measure
from harness.run import HEADER, Run
from leaderboard.queries import run_details
from leaderboard.store import Board


class Samples(NamedTuple):
    """Raw samples of one shape in one measure, by contender, in nanoseconds."""

    launch_ns: dict[str, tuple[float, ...]]
    """Device time per launch of every scoring window; in server mode of every request."""
    latency_ns: dict[str, tuple[float, ...]]
    """Server mode: time of every request from its scheduled arrival to its completion; else empty."""


def samples_at(board: Board, run: str, shape: str, measure: Measure) -> Samples:
    """Raw samples of a published run.

    Raises:
        DataError: no such run is published, its directory is not on this machine, or it has no samples of the shape.
    """
    found = samples_of(opened(run_details(board, run).path), shape, measure)
    if not found.launch_ns:
        raise DataError(f"{run} holds no samples of {shape} in {measure}.")
    return found


def samples_of(run: Run, shape: str, measure: Measure) -> Samples:
    """The same from an open run; empty where it has none. Of several attempts the last counts."""
    problem = Problem.parse(shape, run.header.submission.track)
    lines = [line for line in run.samples() if line.problem == problem and line.measure == measure]
    last = max((line.attempt for line in lines), default=0)
    lines = [line for line in lines if line.attempt == last]
    return Samples(
        {line.contender: tuple(window / line.launches_per_window for window in line.window_ns) for line in lines},
        {line.contender: tuple(map(float, line.latency_ns)) for line in lines if line.latency_ns},
    )


@lru_cache(maxsize=4)
def opened(path: str) -> Run:
    """A published run, which never changes.

    Raises:
        DataError: it is not on this machine.
    """
    if not (Path(path) / HEADER).is_file():
        raise DataError(f"{path} is not on this machine, so its raw samples cannot be shown.")
    return Run.read(Path(path))
