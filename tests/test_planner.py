"""plan.py runs apart, under limits, and whatever it does becomes a plan or a reason; plan.json is held to the same rules."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

import pytest

from harness import isolation, planner
from harness.limits import Limits
from harness.plan import Call, Kernel, Language, Launch, Layout, Plan, PlanFile, Pointer, Step, Unsupported
from harness.plan_arguments import Buffer
from harness.planner import PlanFailure, PlanOutcome, make_plans
from harness.problem import Problem
from harness.profiles import load_profile
from harness.record import Reason
from harness.submission import Submission

H200 = load_profile("h200")
CPU = load_profile("cpu")
PROBLEMS = (Problem(m=64, n=64, k=64), Problem(m=128, n=64, k=32))

MANIFEST = """
name = "planned"
version = "1.0.0"
authors = ["A. Author"]
license = "MIT"
description = "A test."
targets = ["{target}"]
kind = "{kind}"
"""
GOOD = """
from harness.plan import Kernel, Language, Launch, Layout, Plan, Unsupported
KERNEL = Kernel(language=Language.CUDA, source="kernels/k.cu", entry="k")

def plan(problem, device):
    BODY
    return Plan(layout=Layout.NN, kernels={"k": KERNEL}, steps=(Launch(kernel="k", grid=(1, 1, 1), block=(problem.m, 1, 1)),))
"""
KERNEL = Kernel(language=Language.CUDA, source="kernels/k.cu", entry="k")
LAUNCH = Launch(kernel="k", grid=(1, 1, 1), block=(32, 1, 1))


def submission(root: Path, plan: str, name: str = "plan.py", *, target: str = "sm_90a", kind: str = "device") -> Submission:
    (root / "kernels").mkdir(parents=True)
    (root / "kernels/k.cu").write_text('extern "C" __global__ void k() {}')
    (root / "kernels/k.c").write_text("void k(void) {}")
    (root / "submission.toml").write_text(MANIFEST.format(target=target, kind=kind))
    (root / name).write_text(plan)
    return Submission.read(root)


def planned(root: Path, body: str = "pass") -> list[PlanOutcome]:
    """What plan.py gives for the problems when its function begins with `body`."""
    return list(make_plans(submission(root / "s", GOOD.replace("BODY", body)), PROBLEMS, H200).values())


def failure(root: Path, body: str) -> PlanFailure:
    """The same where every problem fails alike."""
    outcomes = planned(root, body)
    assert all(isinstance(outcome, PlanFailure) for outcome in outcomes), outcomes
    assert outcomes[0] == outcomes[1]
    assert isinstance(outcomes[0], PlanFailure)
    assert outcomes[0].detail.isprintable()
    return outcomes[0]


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Limits:
    """Limits that a test can reach; it may replace one."""
    limits = Limits(seconds=60.0, memory_bytes=1 << 30, file_bytes=1 << 20)
    monkeypatch.setattr(planner, "LIMITS", limits)
    return limits


def test_each_problem_has_its_plan(tmp_path: Path) -> None:
    first, second = planned(tmp_path, "if problem.k == 32: return Unsupported(reason=f'not on {device.name}')")
    assert isinstance(first, Plan)
    assert first.steps[0] == LAUNCH.model_copy(update={"block": (64, 1, 1)})
    assert second == Unsupported(reason="not on h200")


def test_an_error_has_the_line_of_plan_py_and_spares_the_other_problems(tmp_path: Path) -> None:
    first, second = planned(tmp_path, "if problem.k == 64: raise KeyError('no such tile')")
    line = GOOD.split("\n").index("    BODY") + 1
    assert first == PlanFailure(reason=Reason.PLAN_ERROR, detail=f"plan.py:{line}: KeyError: 'no such tile'")
    assert isinstance(second, Plan)


def test_a_plan_that_is_not_valid_names_the_field_and_the_line(tmp_path: Path) -> None:
    found = failure(tmp_path, "Launch(kernel='k', grid=(0, 1, 1), block=(1, 1, 1))")
    assert found.reason is Reason.PLAN_ERROR
    assert found.detail.startswith("plan.py:6: ValidationError: grid.0: ")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = = 1", "SyntaxError"),
        ("1 / 0", "plan.py:1: ZeroDivisionError"),
        ("import no_such_module", "ModuleNotFoundError"),
        ("", "defines no function plan(problem, device)"),
        ("plan = 3", "defines no function"),
        ("def plan(problem): ...", "TypeError"),
        ("def plan(problem, device): ...", "returned NoneType"),
        ("def plan(problem, device): return {'layout': 'NN'}", "returned dict"),
        ("import sys; sys.exit(0)", "ended without an answer (status 0)"),
        ("import os; os._exit(7)", "ended without an answer (status 7)"),
        ("import os; os.abort()", "ended without an answer (status "),
        ("def plan(problem, device): raise SystemExit('enough')", "enough"),
        ("class E(Exception):\n    def __str__(self): raise E\ndef plan(problem, device): raise E", "ended without"),
        ("def plan(problem, device): raise ValueError('\\ud800')", "ValueError: ?"),
        ("def plan(problem, device): raise ValueError('\\x1b[2J\\n' * 10)", "ValueError:  [2J "),
        ("from harness.plan import Plan\ndef plan(problem, device): return Plan.model_construct(steps=3)", "TypeError"),
        ("from harness.plan import Plan\ndef plan(problem, device): return Plan.model_construct(kernels=object())", "Error"),
    ],
)
def test_whatever_plan_py_does_is_a_reason(tmp_path: Path, text: str, says: str) -> None:
    for outcome in make_plans(submission(tmp_path / "s", text), PROBLEMS, H200).values():
        assert isinstance(outcome, PlanFailure)
        assert outcome.reason is Reason.PLAN_ERROR
        assert says in outcome.detail
        assert outcome.detail.isprintable()
        assert len(outcome.detail) < 2500


def test_one_that_never_returns_is_ended(tmp_path: Path, limits: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "LIMITS", limits._replace(seconds=4.0))
    first, second = planned(tmp_path, "while problem.k == 32: pass")
    assert isinstance(first, Plan)
    assert second == PlanFailure(reason=Reason.PLAN_LIMIT, detail="plan.py did not finish within 4 s.")


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("bytearray(8 << 30)", "needed more than 1 GiB"),
        ("import os; open(os.environ['TMPDIR'] + '/f', 'wb').write(bytes(2 << 20))", "wrote more than 1 MiB"),
        ("print('x' * (2 << 20))", "wrote more than 1 MiB"),
        ("return Unsupported.model_construct(reason='x' * (2 << 20))", "wrote more than 1 MiB"),
    ],
)
def test_what_exceeds_a_limit_says_which(tmp_path: Path, body: str, says: str) -> None:
    found = failure(tmp_path, body)
    assert found.reason is Reason.PLAN_LIMIT
    assert says in found.detail


def test_prints_are_kept_apart(tmp_path: Path) -> None:
    outcomes = planned(tmp_path, "import sys; print('x' * (3 << 20)); print('{}' * 1000, file=sys.stderr)")
    assert [type(outcome) for outcome in outcomes] == [Plan, Plan]


def test_the_environment_is_an_allow_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("HGEMM_CACHE", "somewhere")
    monkeypatch.setenv("LANG", "C.UTF-8")
    (first, _) = planned(
        tmp_path, "import os; return Unsupported(reason=' '.join(sorted(os.environ)) + ' ' + os.environ['HOME'])"
    )
    assert isinstance(first, Unsupported)
    *seen, home = first.reason.split()
    assert set(seen) - {"LC_CTYPE", "PWD", "SHLVL", "_"} <= {*planner.PASSED_ON, "HOME", "TMPDIR", "CUDA_VISIBLE_DEVICES"}
    assert "LANG" in seen
    assert not Path(home).exists()


def test_the_submission_is_a_copy_and_other_modules_of_it_are_not_importable(tmp_path: Path) -> None:
    before = submission(tmp_path / "s", GOOD.replace("BODY", "import pathlib; pathlib.Path(__file__).write_text('')"))
    outcomes = make_plans(before, PROBLEMS, H200)
    assert all(isinstance(outcome, Plan) for outcome in outcomes.values())
    assert Submission.read(tmp_path / "s").tree_sha256 == before.tree_sha256


@pytest.mark.parametrize(
    "body",
    [
        "import os, sys; os.remove(sys.argv[3]); os.mkfifo(sys.argv[3])",
        "import os, sys; os.remove(sys.argv[3]); os.symlink('/dev/zero', sys.argv[3])",
        "import os; [os.remove(f) for f in ('printed', 'question.json')]; os.mkfifo('printed')",
        "import os; os.chmod('.', 0)",
    ],
)
def test_files_in_the_place_of_the_answers_change_nothing(tmp_path: Path, body: str) -> None:
    outcomes = planned(tmp_path, f"if problem.k == 64: {body}")
    assert [type(outcome) for outcome in outcomes] == [Plan, Plan]


def test_answers_that_it_writes_itself_are_validated_like_any(tmp_path: Path) -> None:
    found = failure(tmp_path, "import os, sys; open(sys.argv[3], 'wb', 0).write(b'nonsense\\n' * 5); os._exit(0)")
    assert found.detail.startswith("plan.py gave no valid plan: ")


def test_what_it_leaves_running_is_ended(tmp_path: Path) -> None:
    mark = f"600.{time.time_ns()}"
    body = f"import subprocess; subprocess.Popen(['sleep', '{mark}'])"
    assert [type(outcome) for outcome in planned(tmp_path, body)] == [Plan, Plan]
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and _runs(mark):
        time.sleep(0.02)
    assert not _runs(mark)


@pytest.mark.skipif(bool(isolation.missing()), reason=isolation.missing())
def test_what_left_its_session_ends_too_and_there_is_no_network(tmp_path: Path) -> None:
    mark = f"601.{time.time_ns()}"
    body = f"import subprocess; subprocess.Popen(['sleep', '{mark}'], start_new_session=True)"
    assert [type(outcome) for outcome in planned(tmp_path, body)] == [Plan, Plan]
    assert not _runs(mark)
    body = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"
    assert "Network is unreachable" in failure(tmp_path / "net", body).detail


def _runs(mark: str) -> bool:
    """Whether a process has that word on its command line."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(path.read_bytes())
    return any(mark.encode() in line for line in lines)


def from_json(root: Path, *steps: Step, kernel: Kernel = KERNEL, target: str = "sm_90a", **fields: object) -> PlanOutcome:
    plan = Plan.model_validate({"layout": Layout.NN, "kernels": {"k": kernel}, "steps": steps, **fields})
    text = PlanFile.collect({str(PROBLEMS[0]): plan}).model_dump_json()
    kind = "native" if target == "cpu" else "device"
    made = make_plans(
        submission(root / "s", text, "plan.json", target=target, kind=kind), PROBLEMS, CPU if target == "cpu" else H200
    )
    absent = made[PROBLEMS[1]]
    assert isinstance(absent, Unsupported)
    assert absent.reason == "plan.json has no plan for 128x64x32"
    return made[PROBLEMS[0]]


def test_plan_json_is_the_same_written_out(tmp_path: Path) -> None:
    assert isinstance(from_json(tmp_path, LAUNCH), Plan)


@pytest.mark.parametrize(
    ("step", "fields", "says"),
    [
        (
            LAUNCH.model_copy(update={"arguments": (Pointer(buffer=Buffer.WORKSPACE),)}),
            {},
            "a step reaches byte 1 of workspace",
        ),
        (LAUNCH, {"kernel": KERNEL.model_copy(update={"source": "kernels/other.cu"})}, "names kernels/other.cu"),
        (
            LAUNCH,
            {"kernel": Kernel(language=Language.CUBIN, source="kernels/k.cu", generated_from="kernels/gen.cu", entry="k")},
            "names kernels/gen.cu",
        ),
        (Call(kernel="k"), {"kernel": Kernel(language=Language.C, source="kernels/k.c", entry="k")}, "for kind native"),
        (LAUNCH, {"target": "cpu"}, "exactly one step, a call"),
    ],
)
def test_plans_are_checked_against_problem_files_and_kind(
    tmp_path: Path, step: Step, fields: dict[str, object], says: str
) -> None:
    outcome = from_json(tmp_path, step, **fields)  # type: ignore[arg-type]
    assert isinstance(outcome, PlanFailure)
    assert outcome.reason is Reason.PLAN_ERROR
    assert outcome.detail.startswith("the plan of 64x64x64 is not valid: ")
    assert says in outcome.detail


def test_a_native_plan_is_one_call(tmp_path: Path) -> None:
    host = Kernel(language=Language.C, source="kernels/k.c", entry="k")
    assert isinstance(from_json(tmp_path, Call(kernel="k"), kernel=host, target="cpu"), Plan)
    twice = from_json(tmp_path / "twice", Call(kernel="k"), Call(kernel="k"), kernel=host, target="cpu")
    assert isinstance(twice, PlanFailure)
    assert "exactly one step" in twice.detail


@pytest.mark.parametrize("text", ["{", json.dumps({"kernels": {}}), "[" * 50_000])
def test_a_broken_plan_json_is_a_reason_for_every_problem(tmp_path: Path, text: str) -> None:
    for outcome in make_plans(submission(tmp_path / "s", text, "plan.json"), PROBLEMS, H200).values():
        assert isinstance(outcome, PlanFailure)
        assert "plan.json" in outcome.detail
        assert outcome.reason is Reason.PLAN_ERROR


def test_a_device_that_is_no_target_is_unsupported_without_running_anything(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    outcomes = make_plans(submission(tmp_path / "s", f"open({str(mark)!r}, 'w')"), PROBLEMS, load_profile("a100"))
    assert set(outcomes.values()) == {Unsupported(reason="the submission targets sm_90a, and a100 is sm_80")}
    assert not mark.exists()


def test_no_problems_need_no_plans(tmp_path: Path) -> None:
    assert make_plans(submission(tmp_path / "s", GOOD.replace("BODY", "pass")), (), H200) == {}
    assert "HGEMM_CACHE" in os.environ
