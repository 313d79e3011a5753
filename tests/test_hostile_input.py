"""Whatever a command meets (files of others, names, a machine that lacks something) ends in one sentence, never a traceback."""

from __future__ import annotations

import errno
import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest
from fake_device import FakeDevice, FakeDriver
from gates import World, benchmarks, write_result
from runs import Recipe, begin_run, make_run, reseal

from harness import evaluate, interrupts
from harness.__main__ import main
from harness.cache import Cache
from harness.commands.compare import compare
from harness.commands.gate import gate
from harness.commands.new import new
from harness.commands.replay import replay
from harness.commands.run import run
from harness.diagnosis import Outcome
from harness.doctor_host import host_checks
from harness.gate_data import Pin
from harness.machine import choose_device
from harness.model import DataError, InfraError
from harness.plan import PlanFile, Unsupported
from harness.problem import Problem
from harness.problem_sets import resolve_shapes
from harness.run import Run, writing
from harness.submission import Submission
from harness.untrusted_files import MAX_LINE_BYTES, unpacked_lines

ROOT = Path(__file__).resolve().parent.parent
NAIVE = ROOT / "submissions" / "cpu-naive"
DEEP = "x = " + "[" * 20_000
LONG = "x = " + "9" * 5_000
ESCAPE = "one\ntwo\x1b[31m\udcff"


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """`hgemm run` takes SIGTERM for itself, and the command line SIGINT."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def copy_of(submission: Path, to: Path) -> Path:
    Submission.read(submission).write_to(to)
    return to


@pytest.mark.parametrize("text", [DEEP, LONG, "\0", "schema_version = nan"], ids=["deep", "long", "nul", "nan"])
def test_toml_that_exhausts_its_reader_is_not_valid(tmp_path: Path, text: str) -> None:
    tree = copy_of(NAIVE, tmp_path / "tree")
    (tree / "submission.toml").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match="is not valid"):
        Submission.read(tree)
    (tmp_path / "set.toml").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"set\.toml"):
        resolve_shapes(str(tmp_path / "set.toml"))


@pytest.mark.parametrize("name", ["a\nb.c", "a\x1b[2Jb.c", "a\udcff.c"])
def test_a_file_whose_name_cannot_be_printed_is_refused_before_the_run_cannot_end(tmp_path: Path, name: str) -> None:
    """Its name would be a key of end.json, which is UTF-8."""
    tree = copy_of(NAIVE, tmp_path / "tree")
    (tree / "kernels" / name).write_bytes(b"")
    with pytest.raises(DataError, match="does not belong in a submission"):
        Submission.read(tree)


def test_a_folder_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a submission without its kernels would be hashed, and rejected."""
    tree = copy_of(NAIVE, tmp_path / "tree")
    scandir = os.scandir

    def refuse(path: str) -> Iterator[os.DirEntry[str]]:
        if Path(path).name == "kernels":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match="kernels cannot be read: Permission denied"):
        Submission.read(tree)


def test_text_of_a_plan_cannot_move_the_cursor() -> None:
    assert Unsupported(reason=ESCAPE).reason == "one two [31m "
    entry = {"language": "c", "source": "kernels/a.c\n", "entry": "hgemm"}
    with pytest.raises(DataError, match=r"kernels\.a\.source"):
        PlanFile.parse(json.dumps({"kernels": {"a": entry}, "plans": {}}), "plan.json")


def test_an_entry_of_plan_json_is_asked_only_for_its_own_fields() -> None:
    for entry, said in (({"layout": "NN"}, "plans.4x4x4.operation.steps: Field required."), ({"reason": ""}, "unsupported")):
        with pytest.raises(DataError, match=said) as error:
            PlanFile.parse(json.dumps({"kernels": {}, "plans": {"4x4x4": entry}}), "plan.json")
        assert str(error.value).count(";") == 0
    file = PlanFile.collect({"4x4x4": Unsupported(reason="no")})
    assert PlanFile.parse(file.model_dump_json(), "plan.json").plan_for(Problem.parse("4x4x4")) == Unsupported(reason="no")


def damage_header(path: Path) -> None:
    (path / "run.json").write_bytes(b"\xff")


def damage_samples(path: Path) -> None:
    data = bytearray((path / "samples.jsonl.gz").read_bytes())
    data[40:80] = bytes(byte ^ 0xFF for byte in data[40:80])
    (path / "samples.jsonl.gz").write_bytes(data)


def samples_of_bytes(path: Path) -> None:
    (path / "samples.jsonl.gz").write_bytes(gzip.compress(b"\xff\n"))


@pytest.mark.parametrize("damage", [damage_header, damage_samples, samples_of_bytes])
def test_damaged_bytes_of_a_run_are_said(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = make_run(tmp_path, Recipe(shapes="64x64x64"))
    damage(path)
    with pytest.raises(DataError, match=r"is not valid JSON|is damaged"):
        list(Run.read(path).samples())


def test_samples_that_unpack_to_more_than_a_run_needs_are_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = make_run(tmp_path, Recipe(shapes="64x64x64"))
    (path / "samples.jsonl.gz").write_bytes(gzip.compress(b"0" * (MAX_LINE_BYTES + 1)))
    reseal(path)
    monkeypatch.setattr(sys, "argv", ["hgemm", "publish", str(path), "--database", f"sqlite:///{tmp_path / 'board.sqlite'}"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "unpacks to more than a run or a search can need" in capfd.readouterr().err


def test_lines_that_unpack_to_too_much_are_read_no_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.untrusted_files.MAX_BYTES", 1 << 20)
    path = tmp_path / "lines.gz"
    path.write_bytes(gzip.compress((b"0" * 65_535 + b"\n") * 17))
    lines = unpacked_lines(path)
    assert [len(next(lines)) for _ in range(16)] == [65_536] * 16
    with pytest.raises(DataError, match="unpacks to more than"):
        next(lines)


def test_every_command_takes_a_run_by_the_name_that_was_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_run(tmp_path / "runs", Recipe(shapes="64x64x64,128x64x64"))
    monkeypatch.chdir(tmp_path)
    compare(path.name, path.name)
    assert "nothing around the two differs" in capsys.readouterr().out
    with pytest.raises(DataError, match="is complete"):
        run(resume=path.name)
    # The run is an H200's: whoever has none is told so, instead of a comparison with another device's plan.
    monkeypatch.setattr("harness.commands.devices.cuda_cards", list)
    with pytest.raises(InfraError, match="was measured on NVIDIA H200"):
        replay(path.name, shape="64x64x64")


def test_no_shapes_are_not_the_usual_shapes(tmp_path: Path) -> None:
    """As in `--shapes "$SET"` where the variable is not set."""
    with pytest.raises(DataError, match="'' is no set of shapes"):
        run(NAIVE, shapes="", device="cpu", output=tmp_path)


def test_a_file_in_the_place_of_output_is_no_reason_to_wait(tmp_path: Path) -> None:
    (tmp_path / "a-file").write_bytes(b"")
    for place in ("a-file", "a-file/below", "absent/below"):
        with pytest.raises(InfraError, match=r"choose .* with --output"), writing(tmp_path / place):
            (tmp_path / place).mkdir()


def test_a_run_that_could_not_begin_leaves_nothing_and_names_no_run_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("harness.run._write_atomically", full)
    with pytest.raises(InfraError, match="free some space and start again"):
        begin_run(tmp_path / "runs", Recipe(shapes="64x64x64"))
    assert list((tmp_path / "runs").glob("*/submission")) == []


def test_a_new_submission_that_could_not_be_written_can_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, text: str, encoding: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(InfraError, match="No space left"):
            new("mine", output=tmp_path)
    new("mine", output=tmp_path)
    assert Submission.read(tmp_path / "mine").manifest.name == "mine"


def test_a_device_that_is_absent_is_the_machines_fault_and_a_wrong_name_the_users() -> None:
    with pytest.raises(InfraError, match="there is no device 'cuda:77' here"):
        choose_device("cuda:77")
    with pytest.raises(DataError, match="there is no device 'gpu' here"):
        choose_device("gpu")


def test_doctor_as_the_first_command_on_a_machine_finds_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for name, place in (("new", tmp_path / "not" / "there"), ("absurd", Path("/proc/nothing"))):
        monkeypatch.setenv("HGEMM_CACHE", str(place))
        found[name] = next(check for check in host_checks() if check.name == "cache")
    assert (found["new"].outcome, found["absurd"].outcome) == (Outcome.OK, Outcome.FAIL)
    assert "is not writable" in found["absurd"].mend


def test_without_a_home_the_cache_has_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HGEMM_CACHE", "~nobody-of-that-name/cache")
    with pytest.raises(InfraError, match="set HGEMM_CACHE"):
        Cache.default()


def test_a_baseline_is_pinned_for_a_reason_and_shown_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = write_result(tmp_path / "now.json", benchmarks(World(), 1))
    with pytest.raises(DataError, match="needs a reason"):
        gate(now, tmp_path / "baseline.json", accept=" ")
    gate(now, tmp_path / "baseline.json", accept="the first", json=True)
    assert Pin.parse(capsys.readouterr().out, "stdout").latest.reason == "the first"


@pytest.fixture(scope="module")
def unsupported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A submission that supports nothing, so that a command both prints and ends with 4."""
    tree = copy_of(NAIVE, tmp_path_factory.mktemp("hostile") / "tree")
    (tree / "plan.py").unlink()
    (tree / "plan.json").write_text('{"kernels": {}, "plans": {}}', encoding="utf-8")
    return tree


def hgemm(*arguments: str, stdout: int | IO[str] = subprocess.PIPE, before: str = "") -> subprocess.CompletedProcess[str]:
    """The command, started by a shell that does something `before` it."""
    line = f'{before} exec "$@"' if before else 'exec "$@"'
    command = ["/bin/sh", "-c", line, "sh", sys.executable, "-m", "harness", *arguments]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, timeout=120, cwd=ROOT)


def test_a_reader_that_leaves_changes_no_exit_code(unsupported: Path) -> None:
    """`hgemm gate … | head -1` must not pass, nor fail, because head has seen enough."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone:
        ended = hgemm("build", str(unsupported), "--shapes", "4x4x4", stdout=gone)
    assert (ended.returncode, ended.stderr) == (4, "")


def test_closed_outputs_change_no_exit_code(unsupported: Path) -> None:
    ended = hgemm("build", str(unsupported), "--shapes", "4x4x4", before="exec 0<&- 1>&-;")
    assert (ended.returncode, ended.stderr) == (4, "")


def test_a_result_that_cannot_be_written_is_the_machines_fault(unsupported: Path) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        ended = hgemm("build", str(unsupported), "--shapes", "4x4x4", stdout=full)
    assert ended.returncode == 3
    assert ended.stderr == "error: standard output cannot be used (No space left on device); mend that and try again.\n"


@pytest.mark.parametrize("module", ["harness.model", "harness.plan"], ids=["before the command", "in the command"])
def test_ctrl_c_while_modules_are_imported_is_no_traceback(module: str, unsupported: Path) -> None:
    code = f"""
import os, signal, sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
sys.argv = ["hgemm", "build", {str(unsupported)!r}]
from harness.__main__ import main
main()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120, cwd=ROOT)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "interrupted\n")


def test_an_error_that_came_of_ctrl_c_is_none(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def command_line() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt as error:
            raise TypeError("an error of pydantic's") from error

    monkeypatch.setattr("harness.cli.main", command_line)
    monkeypatch.setattr(interrupts, "_CAME", [])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capsys.readouterr().err) == (130, "interrupted\n")


def test_an_interrupt_that_c_code_dropped_ends_a_run_at_the_next_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_CAME", [])
    interrupts.catch(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(evaluate, "open_driver", lambda *_: FakeDriver(FakeDevice()))
    with pytest.raises(SystemExit) as ended:
        run(NAIVE, shapes="4x4x4,5x5x5", device="cpu", output=tmp_path / "runs")
    assert ended.value.code == 130
    (path,) = (tmp_path / "runs").iterdir()
    assert (Run.read(path).records, Run.read(path).complete) == ([], False)


def test_an_error_is_one_line_whatever_names_hold(tmp_path: Path) -> None:
    ended = hgemm("check", str(tmp_path / "one\ntwo\udcff"))
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "one two" in ended.stderr


def test_a_run_whose_place_is_not_utf8_is_written(tmp_path: Path) -> None:
    """The command line is part of run.json, which is UTF-8."""
    path = make_run(tmp_path, Recipe(shapes="64x64x64"))
    header = Run.read(path).header
    again = type(header).model_validate({**header.model_dump(), "command": ("hgemm", "run", "out\udcff")})
    assert again.command[-1] == "out "
    assert json.loads(again.model_dump_json())["command"][-1] == "out "
