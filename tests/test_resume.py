"""A run can be killed anywhere, and goes on: nothing is lost, nothing measured twice, and nobody waits for the dead."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cpu_kernels import EVEN, ODD, native, on_odd
from fake_device import FakeDevice, FakeDriver
from killed_session import PLACES, PROTOCOL, SHAPES, SUBMISSION
from paths import path_with

from harness import evaluate
from harness.build import BuildOptions
from harness.cache import Cache
from harness.channel import WorkerDied
from harness.evaluate import Evaluator
from harness.messages import Prepare
from harness.model import DataError, InfraError
from harness.problem_sets import resolve_shapes
from harness.record import Record, Status
from harness.run import End, Run
from harness.session import RunSession
from harness.submission import Submission

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device lock of the test's own."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> list[FakeDriver]:
    """The drivers that were opened, on simulated devices."""
    opened: list[FakeDriver] = []

    def open_driver(device: str, native: bool) -> FakeDriver:
        opened.append(FakeDriver(FakeDevice()))
        return opened[-1]

    monkeypatch.setattr(evaluate, "open_driver", open_driver)
    return opened


def start(parent: Path, shapes: str = SHAPES) -> RunSession:
    tree = Submission.read(SUBMISSION)
    return RunSession.start(Evaluator("cpu", PROTOCOL), tree, resolve_shapes(shapes), parent / "runs", ("test",))


def resume(path: Path) -> RunSession:
    return RunSession.resume(path, "cpu", BuildOptions())


def went(session: RunSession, stop_at: float | None = None) -> list[Record]:
    """The records of what is left."""
    done: list[Record] = []
    with session:
        session.go(None, done.append, stop_at)
    return done


def check_complete(path: Path) -> None:
    """Every shape has one final record whose samples are there once, and the hashes hold."""
    run = Run.read(path)
    end = End.parse((path / "end.json").read_bytes(), "end.json")
    assert [str(record.problem) for record in run.records] == list(run.header.shapes)
    assert {record.status for record in run.records} == {Status.VERIFIED}
    lines = [(line.problem, line.attempt) for line in run.samples()]
    assert lines[::3] == lines[1::3] == lines[2::3] == [(record.problem, record.attempt) for record in run.records]
    assert all(record.segment < len(run.segments) for record in run.records)
    assert end.counts["verified"] == len(run.records)
    for name, digest in end.files_sha256.items():
        assert hashlib.sha256((path / name).read_bytes()).hexdigest() == digest


def test_a_run_killed_in_eight_places_is_complete_in_the_end(tmp_path: Path) -> None:
    """One run, killed again and again at another place; each time it gets one shape further, at most."""
    where, kept = tmp_path / "runs", b""
    for place in PLACES:
        command = [sys.executable, str(ROOT / "tests" / "killed_session.py"), place, str(where)]
        environment = {**os.environ, "PYTHONPATH": path_with(ROOT)}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
        assert ended.returncode == (0 if place == "nowhere" else -signal.SIGKILL), (place, ended.stderr)
        (where,) = (tmp_path / "runs").iterdir()
        path = where / "records.jsonl"
        records = path.read_bytes() if path.exists() else b""
        assert records.startswith(kept), place
        kept = records[: records.rfind(b"\n") + 1]
        assert len(Run.read(where).records) == kept.count(b"\n")
        assert (where / "end.json").exists() == (place == "nowhere")
    check_complete(where)
    with pytest.raises(DataError, match="is complete"):
        Run.resume(where)


def test_a_budget_ends_at_a_shape_and_the_rest_follows(fake: list[FakeDriver], tmp_path: Path) -> None:
    session = start(tmp_path)
    path = session.run.path
    assert went(session, stop_at=time.monotonic() - 1) == []
    before = went(resume(path), stop_at=None)
    assert len(before) == 6
    check_complete(path)
    assert len(fake) == 2


def test_stopped_between_shapes_nothing_is_measured_twice(fake: list[FakeDriver], tmp_path: Path) -> None:
    session = start(tmp_path)
    path = session.run.path

    def stop(record: Record) -> None:
        if len(session.run.records) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), session:
        session.go(None, stop)
    assert fake[0].closed == 1
    assert [str(record.problem) for record in went(resume(path))] == SHAPES.split(",")[2:]
    check_complete(path)


def test_a_full_disk_stops_the_run_and_space_lets_it_go_on(fake: list[FakeDriver], tmp_path: Path) -> None:
    session = start(tmp_path)
    path = session.run.path
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(record: Record) -> None:
        size = (path / "records.jsonl").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, limits[1]))

    try:
        with pytest.raises(InfraError, match="cannot be written") as error, session:
            session.go(None, fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.value.exit_code == 3
    assert len(Run.read(path).records) == 1
    assert len(went(resume(path))) == 5
    check_complete(path)


def test_a_worker_that_is_lost_gets_its_shape_measured_again(fake: list[FakeDriver], tmp_path: Path) -> None:
    session = start(tmp_path)
    plain, tries = fake[0].round, iter(range(100))

    def killed(request: object) -> object:
        if next(tries) == 3:
            raise WorkerDied(-signal.SIGKILL, "")
        return plain(request)

    fake[0].round = killed  # type: ignore[assignment, method-assign]
    done = went(session)
    run = Run.read(session.run.path)
    assert [record.status for record in done] == [Status.VERIFIED] * 6
    assert [(record.status, record.attempt, record.segment) for record in run.records[:2]] == [
        (Status.INFRA_ERROR, 0, 0),
        (Status.VERIFIED, 1, 1),
    ]
    assert {line.attempt for line in run.samples() if line.problem == run.records[0].problem} == {1}
    assert run.complete


def test_a_machine_that_keeps_failing_leaves_the_run_open_for_another_try(fake: list[FakeDriver], tmp_path: Path) -> None:
    session = start(tmp_path, "8x8x8")
    path = session.run.path

    def refuse(request: object) -> object:
        raise WorkerDied(-signal.SIGKILL, "")

    fake[0].alive = False
    plain = evaluate.open_driver

    def lame(device: str, native: bool) -> FakeDriver:
        driver = plain(device, native)
        driver.prepare = refuse  # type: ignore[method-assign, assignment]
        return driver  # type: ignore[return-value]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "open_driver", lame)
        assert [record.status for record in went(session)] == [Status.INFRA_ERROR]
    assert not Run.read(path).complete
    (record,) = went(resume(path))
    assert (record.status, record.attempt) == (Status.VERIFIED, 3)
    assert Run.read(path).complete


def test_a_further_device_that_fails_ends_the_run_and_what_was_measured_stays(fake: list[FakeDriver], tmp_path: Path) -> None:
    session = start(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        # As if it were another one.
        patch.setattr(evaluate.DeviceLock, "acquire", lambda self: None)
        session.join(("cpu",), BuildOptions())
    full = InfraError("the disk is full, or so it seems.")
    plain = fake[0].prepare

    def fails(request: object) -> object:
        raise full

    def waits(request: Prepare) -> object:
        assert session._stopped.wait(10)
        return plain(request)

    fake[0].prepare, fake[1].prepare = waits, fails  # type: ignore[assignment, method-assign]
    with pytest.raises(InfraError, match="the disk is full"):
        went(session)
    path = session.run.path
    assert Run.read(path).records == []
    assert [driver.closed for driver in fake] == [1, 2]
    assert len(went(resume(path))) == 6
    assert Run.read(path).complete


def test_two_runs_do_not_share_a_device(fake: list[FakeDriver], tmp_path: Path) -> None:
    session = start(tmp_path)
    with session:
        with pytest.raises(InfraError, match=f"in use by process {os.getpid()}; wait for it to end") as error:
            start(tmp_path / "second")
        assert error.value.exit_code == 3
        with pytest.raises(DataError, match="in use by another process"):
            resume(session.run.path)
    assert not (tmp_path / "second").exists()
    assert len(went(resume(session.run.path))) == 6


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda path: (path / "submission/kernels/hgemm.c").write_text("int x;"), "was changed since the run began"),
        (lambda path: (path / "submission/kernels/more.h").touch(), "was changed since the run began"),
        (lambda path: (path / "submission/submission.toml").unlink(), "holds no submission.toml"),
        (lambda path: _edit(path / "run.json", '"torch": "2', '"torch": "1'), "begun with libraries"),
        (lambda path: _edit(path / "run.json", '"name": "simulated"', '"name": "another"'), "begun with name another"),
        (lambda path: _edit(path / "run.json", '"driver": "0"', '"driver": "1"'), "begun with driver 1"),
    ],
)
def test_what_changed_meanwhile_is_not_resumed(
    fake: list[FakeDriver], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object], says: str
) -> None:
    session = start(tmp_path)
    with session:
        pass
    path = session.run.path
    change(path)
    with pytest.raises(DataError, match=says):
        resume(path)
    Run.resume(path).close()  # Nobody holds its lock.


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    if '"libraries": {}' in text:
        text = text.replace('"libraries": {}', '"libraries": {"torch": "2.0"}')
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_cache_that_cannot_be_written_is_the_machines_fault_and_the_run_goes_on_with_another(
    fake: list[FakeDriver], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    bad = BuildOptions(cache=Cache(tmp_path / "file" / "cache"))
    tree = Submission.read(SUBMISSION)
    session = RunSession.start(Evaluator("cpu", PROTOCOL, build=bad), tree, resolve_shapes(SHAPES), tmp_path / "runs", ())
    with pytest.raises(InfraError) as error, session:
        session.go(None, None)
    assert error.value.exit_code == 3
    assert Run.read(session.run.path).records == []
    assert len(went(resume(session.run.path))) == 6


def test_leftovers_of_killed_builds_do_not_disturb(fake: list[FakeDriver], tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    with cache.staging() as staged:
        (staged / "kernel.so").write_bytes(b"half a library")
        tree = Submission.read(SUBMISSION)
        evaluator = Evaluator("cpu", PROTOCOL, build=BuildOptions(cache=cache))
        session = RunSession.start(evaluator, tree, resolve_shapes(SHAPES), tmp_path / "runs", ())
        assert len(went(session)) == 6


def test_a_killed_run_takes_its_hanging_worker_along_and_goes_on(tmp_path: Path) -> None:
    """Everything is real here: the command, the worker, the kernel that hangs until a file appears, and SIGKILL."""
    go_on = tmp_path / "go-on"
    hang = f'while (raw(21, "{go_on}", 0)) {{ }} HONEST;'
    native(tmp_path / "hanging", on_odd(hang), problems=(EVEN, ODD))
    hgemm_run = (sys.executable, "-m", "harness", "run")
    command = [*hgemm_run, str(tmp_path / "hanging"), "--shapes", f"{EVEN},{ODD}", "--modes", "offline/warm"]
    environment = {**os.environ, "PYTHONPATH": path_with(ROOT)}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    runs = tmp_path / "runs"
    wait_until(lambda: any(path.read_bytes().count(b"\n") for path in runs.glob("*/records.jsonl")), process)
    (worker,) = children(process.pid)
    busy = cpu_ticks(worker) + 100
    wait_until(lambda: cpu_ticks(worker) > busy, process)
    second = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert second.returncode == 3
    holder = f"error: the device is in use by process {process.pid};"
    assert second.stderr == f"{holder} wait for it to end, or choose another --device.\n"
    process.kill()
    process.communicate()
    wait_until(lambda: not Path(f"/proc/{worker}").exists())
    (path,) = runs.iterdir()
    first = (path / "records.jsonl").read_bytes()
    go_on.touch()
    resumed = [*hgemm_run, "--resume", str(path)]
    ended = subprocess.run(resumed, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert (path / "records.jsonl").read_bytes().startswith(first)
    run = Run.read(path)
    assert [(record.problem, record.status, record.segment) for record in run.records] == [
        (EVEN, Status.VERIFIED, 0),
        (ODD, Status.VERIFIED, 1),
    ]
    assert run.complete


def wait_until(holds: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> None:
    """Wait for a condition, and fail if it never holds or the process ends first."""
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            found.append(int(path.parent.name))
    return found


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
