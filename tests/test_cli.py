"""The command line as a user has it: real processes, their exit codes, what they print and where."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import harness
from harness.commands.build import BuildList
from harness.commands.check import CheckReport, StepOutcome
from harness.diagnosis import Diagnosis, Outcome
from harness.machine import DeviceLock, choose_device
from harness.record import Reason, Record, Status
from harness.run_report import RunReport

ROOT = Path(__file__).resolve().parent.parent
BLOCKED = str(ROOT / "submissions" / "cpu-blocked")
TILED = str(ROOT / "submissions" / "cuda-tiled")
SMALL = "16x24x40"
WARM = ("--modes", "offline/warm")
"""Of all that can be measured what takes least time, for what does not depend on it."""

MANIFEST = """name = "{name}"
version = "1.0.0"
authors = ["Test"]
license = "MIT"
description = "Made by a test."
targets = ["{target}"]
kind = "{kind}"
"""
PLAN = """from harness.plan import Call, Kernel, Plan, Unsupported

def plan(problem, device):
    if problem.k == 5:
        return Unsupported(reason="K is 5")
    if problem.k == 7:
        raise ValueError("seven")
    kernel = Kernel(language="c", source="kernels/broken.c", entry="hgemm")
    return Plan(layout="NN", kernels={"broken": kernel}, steps=(Call(kernel="broken"),))
"""


class Ended(subprocess.CompletedProcess[str]):
    """A command that ended."""

    @property
    def complaint(self) -> str:
        """Its one line on standard error."""
        lines = self.stderr.splitlines()
        assert len(lines) == 1, self.stderr
        assert self.stdout == ""
        return lines[0]


class Shell:
    """Runs `hgemm` in a directory of its own, with a device lock that only its commands share."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.locks = directory / "locks"
        self.locks.mkdir()
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(self.locks), "COLUMNS": "100"}

    def start(self, *arguments: str, stderr: int = subprocess.PIPE) -> subprocess.Popen[str]:
        """A command that goes on."""
        return subprocess.Popen(
            [sys.executable, "-m", "harness", *arguments],
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    def __call__(self, *arguments: str) -> Ended:
        """Run a command to its end."""
        process = self.start(*arguments)
        stdout, stderr = process.communicate(timeout=120)
        assert "Traceback" not in stderr, stderr
        return Ended(arguments, process.returncode, stdout, stderr)

    def runs(self) -> list[Path]:
        """Directories of runs, oldest first."""
        return sorted((self.directory / "runs").iterdir(), key=lambda path: path.stat().st_mtime)

    def submission(self, name: str, target: str = "cpu", kind: str = "native") -> Path:
        """A submission with PLAN, whose kernel does not compile."""
        directory = self.directory / name
        (directory / "kernels").mkdir(parents=True)
        (directory / "submission.toml").write_text(MANIFEST.format(name=name, target=target, kind=kind), encoding="utf-8")
        (directory / "plan.py").write_text(PLAN, encoding="utf-8")
        (directory / "kernels" / "broken.c").write_text("int x = ;\n", encoding="utf-8")
        return directory


@pytest.fixture(scope="module")
def hgemm(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(tmp_path_factory.mktemp("cli"))


@pytest.fixture(scope="module")
def verified(hgemm: Shell) -> Ended:
    """A run of one small shape, as text."""
    return hgemm("run", BLOCKED, "--shapes", SMALL)


def test_a_verified_run_ends_with_0_and_its_table(hgemm: Shell, verified: Ended) -> None:
    assert verified.returncode == 0
    assert "1 of 1 shape verified" in verified.stdout
    assert re.search(r"^best per shape +\d\.\d{3} +\d\.\d{3}-\d\.\d{3}", verified.stdout, re.MULTILINE)
    assert "only exercises the pipeline" in verified.stdout
    assert "cublas, cublaslt_heuristic, cublaslt_autotuned need CUDA" in verified.stdout
    assert re.search(rf"^1/1 {SMALL} verified, offline/cold speedup .* over torch_matmul", verified.stderr, re.MULTILINE)


def test_show_prints_what_the_run_printed(hgemm: Shell, verified: Ended) -> None:
    assert hgemm("show", hgemm.runs()[0].name).stdout == verified.stdout.replace("hgemm show /", "hgemm show runs/")
    assert hgemm("show", str(hgemm.runs()[0].relative_to(hgemm.directory))).stdout == verified.stdout


def test_show_json_holds_the_scores_and_the_run(hgemm: Shell, verified: Ended) -> None:
    shown = hgemm("show", hgemm.runs()[0].name, "--json")
    document = json.loads(shown.stdout)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert document["counts"]["verified"] == 1
    geomean = document["scores"]["offline"]["cold"]["torch_matmul"]["geomean"]
    assert 0 < geomean["low"] <= geomean["value"] <= geomean["high"]
    report = RunReport.parse(shown.stdout, "stdout")
    record = harness.Run.read(hgemm.runs()[0]).records[0]
    assert report.scores["offline"]["warm"]["best"].geomean.value == pytest.approx(
        record.timings[1].speedups[record.timings[1].best_baseline].value
    )
    assert (report.run.submission, report.run.complete, report.run.rankable, report.rankable) == (
        "cpu-blocked",
        True,
        False,
        False,
    )
    assert report.run.tree_sha256 == harness.Submission.read(Path(BLOCKED)).tree_sha256
    assert report.run.not_rankable_because == "a CPU only exercises the pipeline"


def test_show_shape_is_the_whole_record(hgemm: Shell, verified: Ended) -> None:
    name = hgemm.runs()[0].name
    record = Record.parse(hgemm("show", name, "--shape", SMALL, "--json").stdout, "stdout")
    assert record == harness.Run.read(hgemm.runs()[0]).records[0]
    text = hgemm("show", name, "--shape", SMALL).stdout
    median_us = record.timings[0].contenders["submission"].launch_ns / 1000
    for expected in (
        f"{median_us:,.3f}",
        "hgemm (c, loaded and created in ",
        "class fp32_accumulate",
        record.seed,
        "permutation",
        "times per launch in µs",
    ):
        assert expected in text
    assert "is not among its shapes" in hgemm("show", name, "--shape", "1x2x3").complaint


def test_a_rejected_run_ends_with_1_and_says_why(hgemm: Shell) -> None:
    bad = hgemm.submission("bad")
    ended = hgemm("run", str(bad), "--shapes", "2x3x5,2x3x7,2x3x9", "--json")
    assert ended.returncode == 1
    report = RunReport.parse(ended.stdout, "stdout")
    assert [(each.status, each.reason) for each in report.not_verified] == [
        (Status.UNSUPPORTED, Reason.DECLARED),
        (Status.REJECTED, Reason.PLAN_ERROR),
        (Status.REJECTED, Reason.BUILD_ERROR),
    ]
    assert report.not_verified[1].detail == "plan.py:7: ValueError: seven"
    assert report.not_verified[2].detail.startswith("kernels/broken.c:1: error:")
    assert "3/3 2x3x9 rejected, build_error: kernels/broken.c:1" in ended.stderr
    assert "build_error" in hgemm("show", report.run.name).stdout


def test_a_run_of_unsupported_shapes_ends_with_4(hgemm: Shell) -> None:
    ended = hgemm("run", str(hgemm.submission("unsupported")), "--shapes", "2x3x5", "--json")
    assert ended.returncode == 4
    assert RunReport.parse(ended.stdout, "stdout").counts.unsupported == 1


def test_a_budget_ends_with_4_and_resuming_with_0(hgemm: Shell) -> None:
    ended = hgemm("run", BLOCKED, "--shapes", "1x3x5,3x1x2,2x2x2", "--budget", "1", "--json", *WARM)
    first = RunReport.parse(ended.stdout, "stdout")
    assert ended.returncode == 4
    assert first.counts.verified < 3
    assert not first.run.complete
    assert f"{3 - first.counts.verified} not measured yet" in hgemm("show", first.run.name).stdout
    # Standard error is a terminal here, so progress is live.
    ours, theirs = pty.openpty()
    process = hgemm.start("run", "--resume", f"runs/{first.run.name}", "--json", stderr=theirs)
    os.close(theirs)
    live = read_terminal(ours)
    stdout, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert RunReport.parse(stdout, "stdout").counts.verified == 3
    assert "measuring 2x2x2" in live
    assert f"{first.counts.verified}/3 shapes" in live
    assert "geomean speedup" in live or first.counts.verified == 2
    assert "is complete" in hgemm("run", "--resume", f"runs/{first.run.name}").complaint


def test_an_interrupted_run_ends_with_130_and_goes_on(hgemm: Shell) -> None:
    process = hgemm.start("run", BLOCKED, "--shapes", "1x3x5,3x1x2,2x2x2,5x5x5", *WARM)
    stop_after_a_shape(process, signal.SIGINT)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    resume = re.search(r"^the rest: +hgemm run --resume (\S+)$", stdout, re.MULTILINE)
    assert resume is not None, stdout
    process = hgemm.start("run", "--resume", resume[1])
    stop_after_a_shape(process, signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 130
    records = harness.Run.read(hgemm.directory / resume[1]).records
    assert [str(record.problem) for record in records] == ["1x3x5", "3x1x2", "2x2x2", "5x5x5"][: len(records)]
    assert len(records) >= 2


def stop_after_a_shape(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send a signal once the process has said that a shape is measured."""
    assert process.stderr is not None
    for line in process.stderr:
        if " verified, " in line:
            break
    process.send_signal(number)


def read_terminal(descriptor: int) -> str:
    """Everything that is written to a terminal until its other side is closed."""
    data, deadline = b"", time.monotonic() + 120
    while time.monotonic() < deadline:
        if not select.select([descriptor], [], [], 1)[0]:
            continue
        try:
            piece = os.read(descriptor, 1 << 16)
        except OSError:
            break
        if not piece:
            break
        data += piece
    os.close(descriptor)
    return data.decode("utf-8", "replace")


def test_a_device_in_use_is_said_and_ends_with_3(hgemm: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(hgemm.locks))
    lock = DeviceLock(choose_device("cpu").uuid)
    lock.acquire()
    try:
        ended = hgemm("run", BLOCKED, "--shapes", SMALL)
        assert (ended.returncode, ended.complaint.split(";")[0]) == (3, f"error: the device is in use by process {os.getpid()}")
    finally:
        lock.release()


def test_without_its_device_nothing_is_run_and_it_ends_with_3(hgemm: Shell) -> None:
    ended = hgemm("run", str(hgemm.submission("far", "sm_10a", "device")))
    assert ended.returncode == 3
    assert "no device here can run far, which targets sm_10a" in ended.complaint
    checked = hgemm("check", TILED, "--device", "rtx3090")
    assert checked.returncode == 3
    assert "nothing was verified" in checked.stderr
    assert [line.split()[:2] for line in checked.stdout.splitlines()] == [
        ["manifest", "ok"],
        ["plan", "ok"],
        ["build", "ok"],
        ["verify", "skipped"],
    ]


def test_a_new_cpu_submission_passes_its_check(hgemm: Shell) -> None:
    made = hgemm("new", "fresh")
    assert made.returncode == 0
    assert made.stdout.split() == ["fresh/kernels/hgemm.c", "fresh/plan.py", "fresh/submission.toml"]
    checked = hgemm("check", "fresh", "--json")
    report = CheckReport.parse(checked.stdout, "stdout")
    assert checked.returncode == 0, checked.stdout
    assert {step.name.value: step.outcome for step in report.steps} == dict.fromkeys(
        ("manifest", "plan", "build", "verify"), StepOutcome.OK
    )
    assert (report.verified, report.not_verified, report.device) == (5, (), "cpu")
    assert hgemm("new", "fresh").complaint == "error: fresh exists already; choose another name or --output."


def test_a_new_cuda_submission_builds_without_a_gpu_and_once(hgemm: Shell) -> None:
    assert hgemm("new", "hopper", "--target", "sm_90a", "--output", "made").returncode == 0
    checked = hgemm("check", "made/hopper", "--build-only")
    assert checked.returncode == 0
    assert re.search(r"^build +ok +1 kernel, 0 cached, up to \d+ registers, no spills", checked.stdout, re.MULTILINE)
    built = [
        BuildList.parse(hgemm("build", "made/hopper", "--device", name, "--json").stdout, "stdout") for name in ("h100", "h200")
    ]
    assert [[kernel.cached for kernel in document.kernels] for document in built] == [[True], [True]]
    (kernel,) = built[1].kernels
    assert (kernel.shapes, kernel.spill_store_bytes, kernel.warnings, kernel.error) == (1000, 0, (), "")
    assert kernel.registers is not None
    assert 0 < kernel.registers <= 255
    assert kernel.static_shared_bytes >= 2 * 16 * 64 * 4
    text = hgemm("build", "made/hopper").stdout
    assert "1 kernel, 1 cached" in text
    refused = hgemm("build", "made/hopper", "--device", "a100")
    assert (refused.returncode, "hopper targets sm_90a, and a100 is sm_80" in refused.complaint) == (2, True)


def test_check_and_build_of_a_broken_submission_end_with_1(hgemm: Shell) -> None:
    broken = str(hgemm.submission("broken"))
    checked = hgemm("check", broken, "--shapes", "2x3x7,2x3x9")
    assert checked.returncode == 1
    assert [line.split()[1] for line in checked.stdout.splitlines()[:4]] == ["ok", "failed", "failed", "skipped"]
    assert "2x3x9 rejected, build_error: kernels/broken.c:1: error:" in checked.stdout
    built = hgemm("build", broken, "--shapes", "2x3x9,2x3x11", "--json")
    document = BuildList.parse(built.stdout, "stdout")
    assert built.returncode == 1
    assert [kernel.built for kernel in document.kernels] == [False]
    assert [each.reason for each in document.refused] == [Reason.BUILD_ERROR] * 2
    assert hgemm("check", broken, "--shapes", "2x3x5", "--build-only").returncode == 4
    assert hgemm("build", broken, "--shapes", "2x3x5").returncode == 4


def test_doctor_looks_at_this_machine(hgemm: Shell) -> None:
    ended = hgemm("doctor", "--device", "cpu", "--json")
    diagnosis = Diagnosis.parse(ended.stdout, "stdout")
    found = {check.name: check for check in diagnosis.checks}
    assert ended.returncode == 0
    assert {found[name].outcome for name in ("python", "packages", "c compiler", "cuda compiler", "cache")} == {Outcome.OK}
    assert os.environ["HGEMM_CACHE"] in found["cache"].detail
    assert "the same operation under two names reads" in found["instrument"].detail
    assert "a CPU only exercises the pipeline" in found["ranking"].detail
    assert found["extra build"].mend == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["shpes"], "No such command 'shpes'"),
        (["run"], "give the submission's directory"),
        (["run", "nowhere"], "is not a directory"),
        (["run", BLOCKED, "--shapes", "12x13"], "12x13"),
        (["run", BLOCKED, "--device", "gpu"], "there is no device 'gpu' here"),
        (["run", BLOCKED, "--compiler", "icc"], "no compiler is called 'icc'"),
        (["run", BLOCKED, "--budget", "soon"], "--budget"),
        (["run", BLOCKED, "--resume", "runs/x"], "--resume takes everything from the run"),
        (["run", "--resume", "nowhere"], "is neither a run's directory nor its name"),
        (["show", "nowhere"], "is neither a run's directory nor its name"),
        (["check", str(ROOT / "docs")], "holds no submission.toml"),
        (["check", BLOCKED, "--device", "h200"], "cpu-blocked targets cpu"),
        (["build", TILED, "--device", "h2000"], "there is no device 'h2000' here"),
        (["new", "Not A Name"], "is no name"),
        (["new", "x", "--target", "sm_80"], "--target"),
        (["schema", "plans"], "no file format is called 'plans'"),
        (["cache", "prune", "--max-size", "much"], "is not a size"),
        (["doctor", "--nope"], "No such option: --nope"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_command_line_ends_with_2_and_one_line(hgemm: Shell, arguments: list[str], said: str) -> None:
    ended = hgemm(*arguments)
    assert ended.returncode == 2
    assert ended.complaint.startswith("error: ")
    assert said in ended.complaint


def test_help_names_every_command_and_the_exit_codes(hgemm: Shell) -> None:
    top = hgemm("--help").stdout
    assert "130 interrupted" in top
    for command in ("run", "check", "show", "new", "build", "shapes", "doctor", "cache", "schema"):
        assert re.search(rf"^│ {command} ", top, re.MULTILINE)
    assert "Exit codes: 0 all verified" in " ".join(hgemm("run", "--help").stdout.replace("│", " ").split())
    version = hgemm("--version")
    assert (version.returncode, version.stdout) == (0, f"hgemm-arena {harness_version()}\n")
    installed = subprocess.run(
        [str(Path(sys.executable).with_name("hgemm")), "--version"], capture_output=True, text=True, check=True
    )
    assert installed.stdout == version.stdout


def harness_version() -> str:
    """Version of the installed distribution."""
    from importlib.metadata import version

    return version("hgemm-arena")
