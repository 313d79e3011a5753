"""Submitting by hand: check a submission on the devices here, and measure it if it is right."""

from __future__ import annotations

import sys
from pathlib import Path

from harness.commands.console import RunDisplay
from harness.commands.devices import AUTO, device_for
from harness.devices import SubmissionFault
from harness.evaluate import Evaluator
from harness.machine import DeviceChoice, cuda_cards
from harness.model import InfraError
from harness.problem import Problem
from harness.problem_sets import resolve_shapes
from harness.protocol import Purpose, protocol_for
from harness.record import Record, Status
from harness.session import RunSession
from harness.submission import Submission

CHECKED = 3
"""Shapes that are verified before anything is timed: the smallest, since most faults show there."""


def targets(directory: Path, device: str) -> list[DeviceChoice]:
    """The devices to measure on: the named one, or for `auto` the first of every model here that the submission targets.

    Raises:
        DataError: no such device, or the directory is no submission.
        InfraError: no device here runs it.
    """
    manifest = Submission.read(directory).manifest
    if device != AUTO:
        return [device_for(manifest, device)]
    models = {card.profile.name: card for card in reversed(cuda_cards()) if manifest.runs_on(card.profile)}
    return sorted(models.values(), key=lambda card: card.name) or [device_for(manifest, device)]


def measure(directory: Path, choice: DeviceChoice, shapes: str | None, output: Path) -> Path:
    """Check the submission, then measure it over a set of shapes by the full protocol; returns the finished run.

    Raises:
        SubmissionFault: the check rejected it; nothing was timed.
        InfraError: the machine failed.
        DataError: stopped before the end; says how to go on.
    """
    submission = Submission.read(directory)
    usual = "cpu" if choice.profile.is_cpu else "grid1000"
    shape_set = resolve_shapes(usual if shapes is None else shapes, submission.manifest.track)
    _check(submission, choice, sorted(shape_set.problems, key=lambda problem: problem.flops)[:CHECKED])
    evaluator = Evaluator(choice.name, protocol_for(choice.profile))
    session = RunSession.start(evaluator, submission, shape_set, output, ("hgemm", *sys.argv[1:]))
    with session, RunDisplay(session, quiet=not sys.stderr.isatty()) as display:
        session.go(display.step, display.record)
    if not session.run.complete:
        raise InfraError(
            f"the machine failed at {len(session.run.remaining())} shapes; go on with: hgemm run --resume {session.run.path}, "
            f"then: hgemm publish {session.run.path}"
        )
    return session.run.path


def _check(submission: Submission, choice: DeviceChoice, problems: list[Problem]) -> None:
    with Evaluator(choice.name, purpose=Purpose.CHECK) as evaluator:
        for record in evaluator.evaluate(submission.root, problems):
            _refuse_rejected(record)


def _refuse_rejected(record: Record) -> None:
    if record.status is Status.REJECTED and record.reason is not None:
        raise SubmissionFault(record.reason, f"rejected at {record.problem} ({record.reason}): {record.detail}")
