"""The process in which a submission's `plan.py` runs; started by `harness.planner` under limits, never by hand."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from harness.model import HgemmError
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
            output.write((PlanAnswer(error=_where(error)).model_dump_json() + "\n").encode() * len(request.problems))
            return
        for problem in request.problems:
            output.write(_answer(plan, problem, request.profile).model_dump_json().encode() + b"\n")


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


def _answer(plan: PlanFunction, problem: Problem, profile: DeviceProfile) -> PlanAnswer:
    try:
        result = plan(problem, profile)
    except Exception as error:  # noqa: BLE001  whatever plan.py raises becomes its answer
        return PlanAnswer(error=_where(error))
    if isinstance(result, Plan):
        return PlanAnswer(plan=result)
    if isinstance(result, Unsupported):
        return PlanAnswer(unsupported=result)
    return PlanAnswer(error=f"plan() returned {type(result).__name__}, not a Plan or Unsupported")


def _where(error: BaseException) -> str:
    """The error with the line of plan.py that it came from."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith("/submission/plan.py")]
    place = f"plan.py:{frames[-1].lineno}: " if frames else ""
    return f"{place}{type(error).__name__}: {error}"[:2000]


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
