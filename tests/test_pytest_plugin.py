"""The pytest plugin through the real command: what makes pytest-benchmark's own gate pass for nothing must not pass here."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from paths import path_with

from harness.gate_data import EXTRA, PIN, Benchmark, accept, read_results, write_baseline

ROOT = Path(__file__).resolve().parent.parent
BLOCKED = ROOT / "submissions" / "cpu-blocked"
NAIVE = ROOT / "submissions" / "cpu-naive"
SHAPES = "16x24x40,64x64x64"
OPTIONS = ("--hgemm-submission", str(BLOCKED), "--hgemm-shapes", SHAPES, "--hgemm-device", "cpu")
OWN_TEST = f"""
def test_kernel(hgemm):
    hgemm({str(BLOCKED)!r}, "64x64x64")
"""


Ended = subprocess.CompletedProcess[str]


class Session:
    """A folder in which pytest runs, with measurements that are made up unless they are to be `real`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def pytest(self, *arguments: str, fake: dict[str, Any] | None = None, real: bool = False) -> Ended:
        faked = () if real else ("-p", "fake_measurements")
        return self._run(
            "pytest",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:hypothesispytest",
            *faked,
            *arguments,
            HGEMM_FAKE=json.dumps(fake or {}),
        )

    def hgemm(self, *arguments: str) -> Ended:
        return self._run("harness", *arguments)

    def gate(self, *arguments: str, seed: int = 2, **fake: Any) -> Ended:
        return self.pytest("--hgemm-gate", "baseline.json", *arguments, fake={"seed": seed, **fake})

    def pin(self, *arguments: str) -> None:
        """Measure, and accept what was measured as `baseline.json`."""
        expect_exit(self.pytest(*arguments, "--benchmark-json=first.json"), 0)
        self.accept()

    def accept(self) -> None:
        """Accept `first.json` as `baseline.json`."""
        accepted = accept(read_results(self.folder / "first.json"), None, "the first", compares=False)
        write_baseline(accepted, self.folder / "baseline.json")

    def edit(self, name: str, change: Callable[[dict[str, Any]], object]) -> None:
        """Change a file."""
        path = self.folder / name
        document = json.loads(path.read_text(encoding="utf-8"))
        change(document)
        path.write_text(json.dumps(document), encoding="utf-8")

    def _run(self, *command: str, **variables: str) -> Ended:
        # Of the pytest that runs this test, the one under test must know nothing.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment = {**inherited, "PYTHONPATH": path_with(ROOT, ROOT / "tests"), **variables}
        return subprocess.run(
            [sys.executable, "-m", *command], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )


@pytest.fixture(scope="module")
def pinned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a baseline of `OPTIONS`, and what it was made of."""
    session = Session(tmp_path_factory.mktemp("pinned"))
    session.pin(*OPTIONS)
    return session.folder


@pytest.fixture(scope="module")
def pinned_own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a test of one's own, and its baseline."""
    session = Session(tmp_path_factory.mktemp("own"))
    (session.folder / "test_own.py").write_text(OWN_TEST, encoding="utf-8")
    session.pin()
    return session.folder


@pytest.fixture
def session(tmp_path: Path, pinned: Path) -> Session:
    """A copy of `pinned`."""
    return Session(Path(shutil.copytree(pinned, tmp_path / "session")))


@pytest.fixture
def own(tmp_path: Path, pinned_own: Path) -> Session:
    """A copy of `pinned_own`."""
    return Session(Path(shutil.copytree(pinned_own, tmp_path / "own")))


def expect_exit(result: Ended, code: int, *texts: str) -> None:
    said = result.stdout + result.stderr
    assert result.returncode == code, said
    for text in texts:
        assert text in said


def test_pytest_can_still_show_its_help(tmp_path: Path) -> None:
    expect_exit(Session(tmp_path).pytest("--help", real=True), 0, "--hgemm-max-regression", "5%, or a regime's as in")


def test_no_change_passes_and_limits_may_have_a_point(session: Session) -> None:
    expect_exit(session.gate(*OPTIONS, "--hgemm-max-regression", "2.5%"), 0, "hgemm gate: pass", "limit 2.5%", "the first")


def test_five_times_slower_fails_also_on_the_second_try_with_autosave(session: Session) -> None:
    """pytest-benchmark saves a failing run before it checks it, and compares the next one with that."""
    for seed, compare in ((2, ()), (3, ("--benchmark-compare", "--benchmark-compare-fail=median:50%"))):
        result = session.gate(*OPTIONS, "--benchmark-autosave", *compare, seed=seed, slower=5.0)
        expect_exit(result, 1, "hgemm gate: fail", "Saved benchmark data in")


def test_slowdowns_of_40_percent_fail_each_with_autosave_and_add_up_in_sight(session: Session) -> None:
    for step in (1, 5):
        result = session.gate(*OPTIONS, "--benchmark-autosave", seed=step + 1, slower=1.4**step)
        expect_exit(result, 1)
        (drift,) = re.findall(r"since the anchor of \S+: \+([\d.]+)% in all", result.stdout)
        assert 1 + float(drift) / 100 == pytest.approx(1.4**step, rel=0.02)


def test_a_test_renamed_is_the_same_benchmark(own: Session) -> None:
    """pytest-benchmark compares nothing once a test is called otherwise."""
    (own.folder / "test_own.py").write_text(OWN_TEST.replace("test_kernel", "test_renamed"), encoding="utf-8")
    expect_exit(own.gate(slower=5.0), 1, "hgemm gate: fail")
    expect_exit(own.gate(), 0, "hgemm gate: pass")


def test_a_shape_renamed_is_missing(session: Session) -> None:
    options = [option.replace("64x64x64", "64x64x65") for option in OPTIONS]
    missing, extra = (
        "64x64x64 offline/cold is in the baseline and was not measured",
        "64x64x65 offline/cold is not in the baseline",
    )
    expect_exit(session.gate(*options), 11, missing, extra)


def test_an_empty_baseline_is_refused(session: Session) -> None:
    session.edit("baseline.json", lambda document: document.update(benchmarks=[]))
    expect_exit(session.gate(*OPTIONS, slower=5.0), 11, "was changed after it was accepted")


def test_a_file_that_nobody_accepted_is_no_baseline(session: Session) -> None:
    session.edit("baseline.json", lambda document: document.pop(PIN))
    expect_exit(session.gate(*OPTIONS), 11, "never accepted")


@pytest.mark.parametrize("option", ["-n2", "--dist=load", "--benchmark-disable", "--benchmark-skip"])
def test_options_that_disable_benchmarks_are_refused(session: Session, option: str) -> None:
    expect_exit(
        session.gate(*OPTIONS, option, slower=5.0), 11, "xdist" if "-n" in option or "dist" in option else "disabled or skipped"
    )


def test_disabled_without_a_baseline_is_refused(tmp_path: Path) -> None:
    expect_exit(Session(tmp_path).gate(*OPTIONS, "--benchmark-disable"), 11, "disabled or skipped")
    expect_exit(Session(tmp_path).gate(*OPTIONS), 11, "baseline.json cannot be read")


@pytest.mark.parametrize("options", [("-k", "16x24x40"), ("--collect-only",), ("-k", "nothing"), ("--deselect", "x::y", "-x")])
def test_what_was_not_measured_is_missing(session: Session, options: tuple[str, ...]) -> None:
    fake = {"rejected": "16x24x40"} if "-x" in options else {}
    expect_exit(session.gate(*OPTIONS, *options, **fake), 11, "hgemm gate: invalid")


def test_a_skipped_test_is_missing(own: Session) -> None:
    skipped = OWN_TEST.replace("def", "import pytest\n@pytest.mark.skip\ndef")
    (own.folder / "test_own.py").write_text(skipped, encoding="utf-8")
    expect_exit(own.gate(), 11, "nothing was measured")


def test_what_a_test_swallows_the_gate_still_sees(own: Session) -> None:
    swallowing = OWN_TEST.replace("    hgemm(", "    try:\n        hgemm(") + "    except BaseException:\n        pass\n"
    (own.folder / "test_own.py").write_text(swallowing, encoding="utf-8")
    expect_exit(own.gate(rejected="64x64x64"), 11, "1 passed", "rejected, wrong_result")


@pytest.mark.parametrize(("field", "value", "code"), [("uuid", "host-2", 0), ("name", "another processor", 11)])
def test_a_baseline_of_another_machine_is_refused_though_a_ratio_takes_another_card(
    session: Session, field: str, value: str, code: int
) -> None:
    def elsewhere(document: dict[str, Any]) -> None:
        for entry in document["benchmarks"]:
            entry["extra_info"][EXTRA]["device"][field] = value

    session.edit("first.json", elsewhere)
    session.accept()
    expect_exit(session.gate(*OPTIONS), 11, value)
    expect_exit(session.gate(*OPTIONS, "--hgemm-ratio", "torch_matmul"), code, *([value] if code else []))


def test_nan_in_a_baseline_is_refused(session: Session) -> None:
    session.edit("baseline.json", lambda document: document["benchmarks"][0]["stats"].update(median=float("nan")))
    expect_exit(session.gate(*OPTIONS), 11, "NaN")


def test_an_unverified_record_is_invalid_whatever_the_others_say(session: Session) -> None:
    expect_exit(
        session.gate(*OPTIONS, rejected="16x24x40", slower=5.0), 11, "rejected, wrong_result", "1 failed" if False else "failed"
    )


def test_what_is_not_verified_fails_once_even_where_warnings_are_errors(session: Session) -> None:
    result = session.pytest(*OPTIONS, "-W", "error", fake={"rejected": "64x64x64"})
    expect_exit(result, 1, "2 failed, 2 passed", "rejected, wrong_result")
    assert "ERROR" not in result.stdout


def test_nothing_to_save_is_no_traceback_with_the_code_of_fail_where_warnings_are_errors(session: Session) -> None:
    options = ("--hgemm-submission", str(BLOCKED), "--hgemm-shapes", "no-such-set")
    ended = session.pytest(*options, "-W", "error", "--benchmark-json=now.json")
    expect_exit(ended, pytest.ExitCode.INTERRUPTED, "'no-such-set' is no set of shapes")
    assert "Traceback" not in ended.stdout + ended.stderr


def test_the_machine_slower_is_ambiguous_and_measured_again_within_the_budget(session: Session) -> None:
    now, summary, junit = (session.folder / name for name in ("now.json", "summary.md", "junit.xml"))
    files = (f"--benchmark-json={now}", f"--hgemm-summary={summary}", f"--hgemm-junit={junit}")
    result = session.gate(*OPTIONS, *files, machine=1.2)
    expect_exit(result, 10, "measured again because it was ambiguous: 12 times", "the machine may have")
    entry = json.loads(now.read_text(encoding="utf-8"))["benchmarks"][0]
    benchmark = Benchmark.parse(json.dumps(entry["extra_info"][EXTRA]), "now")
    assert len(benchmark.sittings) == 4
    assert entry["stats"]["rounds"] == len(benchmark.launch_s())
    assert "| cpu-blocked | offline/cold | all shapes | 2 |" in summary.read_text(encoding="utf-8")
    assert 'type="ambiguous"' in junit.read_text(encoding="utf-8")
    expect_exit(session.gate(*OPTIONS, "--hgemm-budget=0", machine=1.2), 10)
    expect_exit(session.gate(*OPTIONS, "--hgemm-ratio=torch_matmul", machine=1.2), 0)


def test_a_test_that_fails_for_its_own_reason_fails_what_the_gate_passes(own: Session) -> None:
    (own.folder / "test_own.py").write_text(OWN_TEST + "    assert False\n", encoding="utf-8")
    expect_exit(own.gate(), 1, "hgemm gate: pass", "1 failed")


@pytest.mark.parametrize(
    "options",
    [
        ("--hgemm-ratio", "torch_matmul"),
        ("--hgemm-shapes", "quick"),
        ("--hgemm-submission", "nowhere"),
        ("--hgemm-gate", "baseline.json", "--hgemm-max-regression", "five"),
        ("--hgemm-gate", "baseline.json", "--hgemm-budget", "long"),
    ],
)
def test_wrong_options_are_usage_errors(session: Session, options: tuple[str, ...]) -> None:
    assert session.pytest(*options).returncode == pytest.ExitCode.USAGE_ERROR


def test_without_a_path_only_the_submission_is_collected_and_with_one_both(session: Session) -> None:
    (session.folder / "test_other.py").write_text("def test_other():\n    assert True\n", encoding="utf-8")
    expect_exit(session.pytest(*OPTIONS, "-v"), 0, "4 passed", "cpu-blocked[64x64x64-offline-cold] PASSED")
    expect_exit(session.pytest(*OPTIONS, "test_other.py"), 0, "5 passed")
    expect_exit(session.pytest(), 0, "1 passed")


def test_pytest_benchmark_shows_device_time_and_its_own_compare_reads_a_baseline(session: Session) -> None:
    measured = session.pytest(*OPTIONS, "--benchmark-json=now.json", "--benchmark-columns=median,rounds,iterations")
    expect_exit(measured, 0)
    entry, *_ = json.loads((session.folder / "now.json").read_text(encoding="utf-8"))["benchmarks"]
    assert entry["options"]["timer"] == "device_time"
    assert entry["stats"]["iterations"] == 100
    # Windows of about a millisecond that hold a hundred launches.
    assert entry["stats"]["median"] == pytest.approx(10e-6, rel=0.05)
    command = [sys.executable, "-m", "pytest_benchmark", "compare", "now.json", "baseline.json"]
    compared = subprocess.run(command, cwd=session.folder, capture_output=True, text=True, check=False)
    assert compared.stdout.count("cpu-blocked[16x24x40-offline-cold]") == 2, compared.stderr


def test_the_plugin_imports_nothing_heavy_until_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text(
        "import sys\n\ndef test_nothing():\n"
        "    assert 'harness.pytest_plugin' in sys.modules\n"
        "    ours = {name for name in sys.modules if name.partition('.')[0] == 'harness'}\n"
        "    assert ours == {'harness', 'harness.pytest_plugin'}\n"
        "    assert not {'numpy', 'torch', 'pydantic', 'typer', 'rich'} & set(sys.modules)\n",
        encoding="utf-8",
    )
    expect_exit(Session(tmp_path).pytest(real=True), 0, "1 passed")


def test_a_real_kernel_is_verified_timed_and_gated_on_the_cpu(tmp_path: Path) -> None:
    """Nothing is made up here: the naive kernel, under the name of the blocked one, is many times slower."""
    session = Session(tmp_path)
    options = ("--hgemm-submission=kernel", "--hgemm-shapes=16x24x40", "--benchmark-json=now.json")
    _copy_as_kernel(BLOCKED, tmp_path)
    expect_exit(session.pytest(*options, real=True), 0, "2 passed")
    expect_exit(session.hgemm("gate", "now.json", "baseline.json", "--accept", "the first"), 0)
    _copy_as_kernel(NAIVE, tmp_path)
    gate = ("--hgemm-gate=baseline.json", "--hgemm-max-regression=30%", "--hgemm-ratio=torch_matmul")
    expect_exit(session.pytest(*options, *gate, real=True), 1, "hgemm gate: fail")


def _copy_as_kernel(source: Path, folder: Path) -> None:
    copy = Path(shutil.copytree(source, folder / "kernel", dirs_exist_ok=True))
    manifest = (copy / "submission.toml").read_text(encoding="utf-8")
    (copy / "submission.toml").write_text(manifest.replace(f'"{source.name}"', '"kernel"'), encoding="utf-8")
