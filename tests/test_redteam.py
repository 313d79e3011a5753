"""Every known cheat is caught with its reason, every honest look-alike passes, and each guard is proved by doing without it."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from guards import GUARDS, switch_off
from redteam_cases import BENIGN, REDTEAM, Case, Faster, Said, Warm, cases, commands, tampered

from harness import channel, evaluate
from harness.artifacts import BuildFailure
from harness.evaluate import Evaluator, prepare
from harness.model import DataError
from harness.plan import Plan
from harness.problem import Problem
from harness.profiles import load_profile
from harness.protocol import CPU_BASELINES, CUDA_BASELINES, Protocol
from harness.record import Measure, Record, Status
from harness.submission import Submission

CHEATS, LOOKALIKES = cases(REDTEAM), cases(BENIGN)
HERE = [case for case in (*CHEATS, *LOOKALIKES) if case.expected.device in ("cpu", "h200")]
ON_GPU = [case for case in (*CHEATS, *LOOKALIKES) if case.expected.device == "cuda"]
ON_RUNS = [case for case in CHEATS if case.expected.where == "publish"]
MIN_CHEATS, MIN_CHEATS_HERE = 30, 12
GAIN = 1.05
"""What a cheat that is worth catching gains over its honest twin."""
COLD = Measure()
COUNTS: Counter[str] = Counter()


def params(cases: list[Case]) -> list[Any]:
    """Cases as parameters, with what they need here."""
    return [pytest.param(case, marks=pytest.mark.nvcc if case.needs_nvcc else ()) for case in cases]


def by_name(case: Case) -> str:
    return case.name


@pytest.fixture(scope="module")
def said(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Said]:
    """What the command line says of everything that needs no GPU."""
    return tried(asked(request, HERE), tmp_path_factory.mktemp("redteam"))


@pytest.fixture(scope="module")
def said_on_gpu(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Said]:
    """What it says of the rest."""
    return tried(asked(request, ON_GPU), tmp_path_factory.mktemp("redteam-gpu"))


def asked(request: pytest.FixtureRequest, cases: list[Case]) -> list[Case]:
    """Those that this session has a test of, which may be a single one."""
    tests = " ".join(item.name for item in request.session.items)
    return [case for case in cases if f"[{case.name}]" in tests]


def tried(chosen: list[Case], scratch: Path) -> dict[str, Said]:
    lines = [case.command(case.copy(scratch), scratch / "runs") for case in chosen]
    return dict(zip([case.name for case in chosen], commands(lines, scratch), strict=True))


def expect_caught(case: Case, said: Said) -> None:
    COUNTS["executed"] += 1
    assert said.reasons, f"accepted: {said.stdout[-2000:]}"
    assert set(said.reasons) <= set(case.expected.reason), (said.reasons, said.stdout[-3000:], said.stderr[-500:])
    assert said.code == (2 if case.expected.where in ("read", "publish") else 1)
    assert case.expected.says in said.stderr
    COUNTS["passed"] += 1


@pytest.mark.parametrize("case", params([case for case in CHEATS if case in HERE]), ids=by_name)
def test_a_cheat_is_caught(said: dict[str, Said], case: Case) -> None:
    expect_caught(case, said[case.name])


@pytest.mark.parametrize("case", params([case for case in LOOKALIKES if case in HERE]), ids=by_name)
def test_a_lookalike_passes(said: dict[str, Said], case: Case) -> None:
    assert (said[case.name].code, said[case.name].reasons) == (0, []), said[case.name].stderr


@pytest.mark.gpu
@pytest.mark.parametrize("case", params([case for case in CHEATS if case in ON_GPU]), ids=by_name)
def test_a_cheat_is_caught_on_a_gpu(said_on_gpu: dict[str, Said], case: Case) -> None:
    expect_caught(case, said_on_gpu[case.name])


@pytest.mark.gpu
@pytest.mark.parametrize("case", params([case for case in LOOKALIKES if case in ON_GPU]), ids=by_name)
def test_a_lookalike_passes_on_a_gpu(said_on_gpu: dict[str, Said], case: Case) -> None:
    assert (said_on_gpu[case.name].code, said_on_gpu[case.name].reasons) == (0, []), said_on_gpu[case.name].stdout[-2000:]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two shapes."""
    scratch = tmp_path_factory.mktemp("finished")
    plain = next(case for case in LOOKALIKES if case.name == "cpu-plain")
    line = [
        "run",
        str(plain.copy(scratch)),
        "--device",
        "cpu",
        "--shapes",
        "16x24x40,32x16x8",
        "--output",
        str(scratch),
        "--json",
    ]
    (said,) = commands([line], scratch)
    assert said.code == 0, said.stderr
    return next(path.parent for path in scratch.glob("*/end.json"))


@pytest.fixture(scope="module")
def published(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Said]:
    """What `hgemm publish` says of every changed copy of it, and of itself."""
    scratch = tmp_path_factory.mktemp("published")
    board = ["--database", f"sqlite:///{scratch / 'board.sqlite'}"]
    paths = {case.name: tampered(case, finished, scratch) for case in ON_RUNS}
    lines = [["publish", str(path), *board] for path in (*paths.values(), finished)]
    return dict(zip([*paths, "untouched"], commands(lines, scratch), strict=True))


@pytest.mark.parametrize("case", ON_RUNS, ids=by_name)
def test_a_changed_run_is_not_published(published: dict[str, Said], case: Case) -> None:
    expect_caught(case, published[case.name])


def test_the_run_itself_is_published(published: dict[str, Said]) -> None:
    assert published["untouched"].code == 0, published["untouched"].stderr


# Each guard is proved: without it, its cheats are accepted, or caught by nothing but the guards that they list.


def protocol(device: str, measure: Measure) -> Protocol:
    """A few short rounds against one baseline."""
    names = CPU_BASELINES if device == "cpu" else CUDA_BASELINES
    window_ns = 50_000 if device == "cpu" else 1_000_000
    return Protocol(
        measures=(measure,),
        baselines=names[-1:],
        anchor=names[-1],
        window_ns=window_ns,
        target_half_width=0.9,
        deadline_s=20.0,
    )


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """A worker that trials share, with a device lock of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("locks")))
        patch.setattr(channel, "ENDING_S", 0.5)
        warm = Warm()
        patch.setattr(evaluate, "open_driver", warm.open)
        yield warm
        warm.end()


def without(case: Case, guards: tuple[str, ...], scratch: Path, warm: Warm) -> list[str]:
    """Reasons for which a case is still caught without some guards."""
    scratch.mkdir()
    # Either a guard is off in the worker, or what it does there outlives it.
    in_worker = bool({"isolation", "host-library"} & set(guards)) or case.expected.device == "cuda"
    if in_worker:
        warm.end()
    try:
        with pytest.MonkeyPatch.context() as patch:
            switch_off(guards, patch, scratch)
            return tried_without(case, scratch)
    finally:
        if in_worker:
            warm.end()


def tried_without(case: Case, scratch: Path) -> list[str]:
    """Reasons, in words."""
    copy = case.copy(scratch)
    problems = [Problem.parse(shape) for shape in case.shapes.split(",")][:1]
    if case.expected.device == "h200":
        return refusals(copy, problems)
    found = records(copy, problems, case.expected.device)
    return [f"{record.reason}: {record.detail}" for record in found if record.reason is not None]


def refusals(directory: Path, problems: list[Problem]) -> list[str]:
    prepared = prepare(Submission.read(directory), problems, load_profile("h200"))
    plans = [getattr(outcome, "reason", "") for outcome in prepared.outcomes.values() if not isinstance(outcome, Plan)]
    return [*plans, *(build.reason for build in prepared.builds.values() if isinstance(build, BuildFailure))]


def records(directory: Path, problems: list[Problem], device: str, measure: Measure = COLD) -> list[Record]:
    with Evaluator("cpu" if device == "cpu" else "cuda:0", protocol(device, measure)) as evaluator:
        found = list(evaluator.evaluate(directory, problems))
    assert all(record.status in (Status.VERIFIED, Status.REJECTED) for record in found), [record.detail for record in found]
    return found


def expect_needed(case: Case, scratch: Path, warm: Warm) -> None:
    """Without its guard it is caught by others that it lists or by none, and without all of them by none."""
    if case.expected.also:
        caught = without(case, case.expected.guards[:1], scratch / "one", warm)
    assert without(case, case.expected.guards, scratch / "all", warm) == [], "a guard that it does not list catches it"
    if case.expected.also and case.expected.device != "h200":
        assert caught, f"without {case.expected.guard} alone nothing catches it, so the others need not be listed"


SWITCHABLE = [case for case in CHEATS if case.expected.switchable and case.expected.where != "publish"]


@pytest.mark.parametrize("case", params([case for case in SWITCHABLE if case in HERE]), ids=by_name)
def test_a_guard_is_needed(case: Case, warm: Warm, tmp_path: Path) -> None:
    expect_needed(case, tmp_path, warm)


@pytest.mark.gpu
@pytest.mark.parametrize("case", params([case for case in SWITCHABLE if case in ON_GPU]), ids=by_name)
def test_a_guard_is_needed_on_a_gpu(case: Case, warm: Warm, tmp_path: Path) -> None:
    expect_needed(case, tmp_path, warm)


@pytest.fixture(scope="module")
def honest(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Faster], float]:
    """The time of a look-alike, as a share of its baseline's in the same rounds."""

    @functools.cache
    def share_of(name: str, shape: str, measure: Measure) -> float:
        twin = next(case for case in LOOKALIKES if case.name == name)
        share = time_share(twin.copy(tmp_path_factory.mktemp("twin")), shape, measure)
        warm.end()
        return share

    return lambda faster: share_of(faster.than, faster.on, Measure(l2_state=faster.l2_state))


def time_share(directory: Path, shape: str, measure: Measure) -> float:
    """Its time as a share of its baseline's."""
    (record,) = records(directory, [Problem.parse(shape)], "cuda", measure)
    assert record.status is Status.VERIFIED, record.detail
    contenders = record.timings[0].contenders
    return contenders["submission"].launch_ns / contenders[CUDA_BASELINES[-1]].launch_ns


@pytest.mark.gpu
@pytest.mark.parametrize("case", params([case for case in SWITCHABLE if case.expected.faster]), ids=by_name)
def test_a_cheat_would_pay(
    case: Case, honest: Callable[[Faster], float], warm: Warm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its guards off a cheat is faster than its honest twin, so that catching it matters."""
    faster = case.expected.faster
    assert faster is not None
    its = honest(faster)
    switch_off((*case.expected.guards, *faster.also, "speed-of-light"), monkeypatch, tmp_path)
    mine = time_share(case.copy(tmp_path), faster.on, Measure(l2_state=faster.l2_state))
    warm.end()
    sys.stdout.write(f"{case.name}: {its / mine:.2f} times as fast as {faster.than}, {faster.on} {faster.l2_state}\n")
    assert its / mine > GAIN


def test_publishing_needs_its_check(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from leaderboard.examine import examine

    case = next(each for each in ON_RUNS if each.name == "publish-figures-without-samples")
    changed = tampered(case, finished, tmp_path)
    with pytest.raises(DataError, match="its samples say"):
        examine(changed)
    switch_off(case.expected.guards, monkeypatch, tmp_path)
    assert examine(changed).records


def test_every_guard_has_a_cheat_and_every_cheat_a_guard() -> None:
    named = {name for case in CHEATS for name in case.expected.guards}
    assert named <= set(GUARDS)
    # A time that is too short needs a clock that lies to all contenders alike; tests/test_measurement.py has one.
    assert set(GUARDS) - named == {"speed-of-light"}


def test_the_threat_model_names_every_hack_and_every_cheat() -> None:
    text = (REDTEAM.parents[1] / "docs" / "threat-model.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (H\d+) \|", text, re.MULTILINE) == [f"H{number}" for number in range(1, 41)]
    assert [case.name for case in CHEATS if f"`{case.name}`" not in text] == []
    assert f"There are {len(CHEATS)} cheats" in text
    gains = {case.name: case.expected.faster for case in SWITCHABLE if case.expected.faster}
    rows = re.findall(r"^\| `(.+)` \| ([\d.]+) \| `(.+)` \| (.+) \| (cold|warm) \|$", text, re.MULTILINE)
    assert {name: (than, on.replace("×", "x"), l2_state) for name, _, than, on, l2_state in rows} == {
        name: (faster.than, faster.on, str(faster.l2_state)) for name, faster in gains.items()
    }
    assert all(float(gain) > GAIN for _, gain, *_ in rows)


def test_there_are_enough_cheats_and_how_many_ran_is_said(request: pytest.FixtureRequest) -> None:
    here = [case for case in CHEATS if case.expected.device != "cuda"]
    assert len(here) >= MIN_CHEATS_HERE
    assert len(CHEATS) >= MIN_CHEATS
    # Of a session that was asked for some of them, those.
    tests = sum(item.name.startswith(("test_a_cheat_is_caught", "test_a_changed_run")) for item in request.session.items)
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    counts = {"cheats": tests, **COUNTS, "skipped": tests - COUNTS["executed"]}
    reporter.write_line("\nred team: " + json.dumps(counts))
    assert COUNTS["passed"] <= COUNTS["executed"] <= tests <= len(CHEATS)
