"""The process in which a submission's `plan.py` runs; started by `harness.planner` under limits, never by hand."""

from __future__ import annotations

import errno
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from harness.model import HgemmError, one_sentence
from harness.plan import Plan, Unsupported
from harness.planner import PlanAnswer, PlanRequest
from harness.problem import Problem
from harness.profiles import DeviceProfile

PlanFunction = Callable[[Problem, DeviceProfile], Plan | Unsupported]


def main(question: Path, submission: Path, answers: Path) -> None:
    """Answer one PlanRequest, one JSON line per problem."""
    request = PlanRequest.model_validate_json(question.read_bytes())
    with answers.open("wb", buffering=0) as output:
        try:
            plan = _load(submission / "plan.py")
        except Exception as error:  # noqa: BLE001  whatever plan.py raises becomes its answer
            output.write((_refusal(error) + b"\n") * len(request.problems))
            return
        for problem in request.problems:
            output.write(_answer(plan, problem, request.profile) + b"\n")


def _load(path: Path) -> PlanFunction:
    spec = importlib.util.spec_from_file_location("submission_plan", path)
    if spec is None or spec.loader is None:
        raise HgemmError(f"{path.name} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: PlanFunction | None = getattr(module, "plan", None)
    if not callable(function):
        raise HgemmError("plan.py defines no function plan(problem, device)")
    return function


def _answer(plan: PlanFunction, problem: Problem, profile: DeviceProfile) -> bytes:
    """One line of JSON, not yet validated: that is for the other side."""
    try:
        result = plan(problem, profile)
        if isinstance(result, Plan):
            return PlanAnswer(plan=result).model_dump_json().encode()
        if isinstance(result, Unsupported):
            return PlanAnswer(unsupported=result).model_dump_json().encode()
    except Exception as error:  # noqa: BLE001  whatever plan.py raises becomes its answer
        return _refusal(error)
    return PlanAnswer(error=f"plan() returned {type(result).__name__}, not a Plan or Unsupported").model_dump_json().encode()


def _refusal(error: Exception) -> bytes:
    """The error with the line of plan.py that it came from.

    Raises:
        MemoryError, OSError: it is one of the limits, which ends the process.
    """
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.EFBIG):
        raise error
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith("/submission/plan.py")]
    place = f"plan.py:{frames[-1].lineno}: " if frames else ""
    text = one_sentence(error) if isinstance(error, ValidationError) else str(error)
    kind = "" if isinstance(error, HgemmError) else f"{type(error).__name__}: "
    text = f"{place}{kind}{text}"[:2000].encode(errors="replace").decode()
    return PlanAnswer(error=text).model_dump_json().encode()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
