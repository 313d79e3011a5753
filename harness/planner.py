"""Planner: a submission's plans for many problems. `plan.py` runs in a process of its own; only validated JSON comes out."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import ValidationError

from harness.isolation import isolated
from harness.limits import Finished, Limits, ProcessGroups
from harness.model import DataError, Model, one_sentence, printable
from harness.plan import Call, Plan, PlanFile, Unsupported
from harness.problem import Problem
from harness.profiles import DeviceProfile
from harness.record import Reason
from harness.submission import Kind, Submission

LIMITS = Limits(seconds=120.0, memory_bytes=4 << 30, file_bytes=256 << 20)
SNAPSHOT = "submission"
CHATTER_BYTES = 2000
PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH")
"""Environment that plan.py sees, beside a home and temporary directory of its own."""


class PlanFailure(Model):
    """There is no plan, and that is the submission's fault."""

    reason: Literal[Reason.PLAN_ERROR, Reason.PLAN_LIMIT]
    """Why."""
    detail: str
    """One sentence."""


PlanOutcome = Plan | Unsupported | PlanFailure


class PlanRequest(Model):
    """What the planning process is asked."""

    problems: tuple[Problem, ...]
    """Problems, answered in this order."""
    profile: DeviceProfile
    """The device."""


class PlanAnswer(Model):
    """What it answers for one problem: exactly one of the three."""

    plan: Plan | None = None
    """A plan."""
    unsupported: Unsupported | None = None
    """None, by choice."""
    error: str | None = None
    """None, since plan.py failed."""


def make_plans(submission: Submission, problems: Sequence[Problem], profile: DeviceProfile) -> dict[Problem, PlanOutcome]:
    """The plan of every problem, checked against the problem's buffers, the submission's files and its kind.

    Args:
        submission: what to plan.
        problems: problems.
        profile: device to plan for; no device is needed.
    """
    if not submission.manifest.runs_on(profile):
        targets = ", ".join(submission.manifest.targets)
        refusal = Unsupported(reason=f"the submission targets {targets}, and {profile.name} is {profile.architecture}")
        return dict.fromkeys(problems, refusal)
    data = submission.file("plan.json")
    outcomes = _from_json(submission, data, problems) if data is not None else _from_python(submission, problems, profile)
    return {problem: _checked(outcome, problem, submission) for problem, outcome in zip(problems, outcomes, strict=True)}


def _from_json(submission: Submission, data: bytes, problems: Sequence[Problem]) -> list[PlanOutcome]:
    try:
        plans = PlanFile.parse(data, str(submission.root / "plan.json"))
    except DataError as error:
        return [PlanFailure(reason=Reason.PLAN_ERROR, detail=str(error))] * len(problems)
    return [plans.plan_for(problem) for problem in problems]


def _from_python(submission: Submission, problems: Sequence[Problem], profile: DeviceProfile) -> list[PlanOutcome]:
    request = PlanRequest(problems=tuple(problems), profile=profile)
    with tempfile.TemporaryDirectory(prefix="hgemm-plan-", ignore_cleanup_errors=True) as scratch:
        submission.write_to(Path(scratch) / SNAPSHOT)
        ended = _run(Path(scratch), request)
    answers = [_answer(line) for line in ended.lines[: len(problems)]]
    return answers + [_failure(ended)] * (len(problems) - len(answers))


class _Ended(NamedTuple):
    lines: list[bytes]
    finished: Finished
    chatter: str
    full: bool
    """Whether a file reached its limit."""


def _run(scratch: Path, request: PlanRequest) -> _Ended:
    """Run the planning process: the request and its answers are files, and its prints are kept apart.

    Both are opened before it starts, so that it does not matter what plan.py puts in their places.
    """
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    path = [str(Path(__file__).resolve().parents[1]), environment.get("PYTHONPATH", "")]
    environment |= {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "CUDA_VISIBLE_DEVICES": "",
    }
    question, answers, printed = scratch / "question.json", scratch / "answers.jsonl", scratch / "printed"
    question.write_text(request.model_dump_json(), encoding="utf-8")
    command = [sys.executable, "-P", "-B", "-m", "harness.plan_process", *map(str, (question, scratch / SNAPSHOT, answers))]
    with answers.open("w+b") as replies, printed.open("w+b") as output, ProcessGroups() as processes:
        finished = processes.run(isolated(command, whole=True), scratch, printed, LIMITS, environment)
        data = replies.read(LIMITS.file_bytes)
        output.seek(max(0, os.fstat(output.fileno()).st_size - CHATTER_BYTES))
        chatter = printable(output.read(CHATTER_BYTES).decode("utf-8", "replace"), keep="\n").strip()
        full = any(os.fstat(file.fileno()).st_size >= LIMITS.file_bytes for file in (replies, output))
    return _Ended(data.split(b"\n")[:-1], finished, chatter, full)


def _answer(line: bytes) -> PlanOutcome:
    try:
        answer = PlanAnswer.model_validate_json(line)
    except ValidationError as error:
        return PlanFailure(reason=Reason.PLAN_ERROR, detail=f"plan.py gave no valid plan: {one_sentence(error)}.")
    if answer.plan is not None:
        return answer.plan
    if answer.unsupported is not None:
        return answer.unsupported
    return PlanFailure(reason=Reason.PLAN_ERROR, detail=printable(answer.error or "plan.py gave no answer."))


def _failure(ended: _Ended) -> PlanFailure:
    finished = ended.finished
    if finished.timed_out or finished.returncode == -signal.SIGXCPU:
        return PlanFailure(reason=Reason.PLAN_LIMIT, detail=f"plan.py did not finish within {LIMITS.seconds:.0f} s.")
    if ended.full or finished.returncode == -signal.SIGXFSZ or "File too large" in ended.chatter:
        return PlanFailure(reason=Reason.PLAN_LIMIT, detail=f"plan.py wrote more than {LIMITS.file_bytes >> 20} MiB.")
    if "MemoryError" in ended.chatter:
        return PlanFailure(reason=Reason.PLAN_LIMIT, detail=f"plan.py needed more than {LIMITS.memory_bytes >> 30} GiB.")
    said = f": {ended.chatter.splitlines()[-1]}" if ended.chatter else ""
    detail = f"plan.py ended without an answer (status {finished.returncode}){said}"
    return PlanFailure(reason=Reason.PLAN_ERROR, detail=detail)


def _checked(outcome: PlanOutcome, problem: Problem, submission: Submission) -> PlanOutcome:
    if not isinstance(outcome, Plan):
        return outcome
    try:
        outcome.check_bounds(problem)
        for name, kernel in outcome.kernels.items():
            for source in filter(None, (kernel.source, kernel.generated_from)):
                if submission.file(source) is None:
                    raise ValueError(f"kernel {name} names {source}, which the submission does not hold")
        host = [isinstance(step, Call) for step in outcome.steps]
        if submission.manifest.kind is Kind.DEVICE and any(host):
            raise ValueError("a device submission launches kernels; calls of host code are for kind native")
        if submission.manifest.kind is Kind.NATIVE and host != [True]:
            raise ValueError("a native plan has exactly one step, a call")
    except ValueError as error:
        return PlanFailure(reason=Reason.PLAN_ERROR, detail=printable(f"the plan of {problem} is not valid: {error}."))
    return outcome
