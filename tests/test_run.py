"""The run directory: whatever tears it, what was recorded stays, once, and what was not is measured again."""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from factories import make_record

from harness.model import DataError, InfraError
from harness.problem import Problem
from harness.profiles import load_profile
from harness.protocol import protocol_for
from harness.record import SUBMISSION, Measure, Record, Status
from harness.run import DeviceInfo, End, Header, Run, SampleLine, Segment, run_name
from harness.submission import Submission

ROOT = Path(__file__).resolve().parent.parent
PROBLEMS = tuple(Problem(m=8, n=8, k=k) for k in (8, 16, 24))
FIRST, SECOND, THIRD = PROBLEMS
DEVICE = DeviceInfo(profile="cpu", name="a processor", uuid="CPU-1", driver="6", libraries={}, timer="time.perf_counter_ns")
FILES = ("segments.jsonl", "records.jsonl", "samples.jsonl.gz")


@pytest.fixture
def submission() -> Submission:
    return Submission.read(ROOT / "submissions" / "cpu-naive")


@pytest.fixture
def run(tmp_path: Path, submission: Submission) -> Iterator[Run]:
    """A run with one segment and no record."""
    header = Header(
        name=run_name("cpu-naive", "cpu", submission.tree_sha256),
        created_utc="2026-01-01T00:00:00Z",
        harness_version="0",
        command=("hgemm", "run"),
        submission=submission.reference(),
        device=DEVICE,
        protocol=protocol_for(load_profile("cpu")),
        shape_set="custom",
        shapes_sha256="0" * 64,
        shapes=tuple(map(str, PROBLEMS)),
    )
    run = Run.create(tmp_path / "runs", submission, header)
    run.begin_segment(DEVICE, b"secret", "a CPU only exercises the pipeline")
    yield run
    run.close()


def samples(problem: Problem, attempt: int = 0) -> tuple[SampleLine, ...]:
    names = (SUBMISSION, "torch_matmul")
    return tuple(
        SampleLine(problem=problem, attempt=attempt, measure=Measure(), contender=name, launches_per_window=3, window_ns=(7, 8))
        for name in names
    )


def add(run: Run, problem: Problem, status: Status = Status.VERIFIED, attempt: int = 0) -> Record:
    return run.append(make_record(problem, status, attempt=attempt), samples(problem, attempt))


def keys(run: Run) -> list[tuple[Problem, int]]:
    return [(record.problem, record.attempt) for record in run.records]


def sample_keys(run: Run) -> list[tuple[Problem, int]]:
    """Problem and attempt of the samples; each must be there for both contenders."""
    found = [(line.problem, line.attempt) for line in run.samples()]
    assert found[::2] == found[1::2]
    return found[::2]


@contextmanager
def resumed(path: Path) -> Iterator[Run]:
    run = Run.resume(path)
    try:
        yield run
    finally:
        run.close()


def test_what_was_appended_reads_back(run: Run) -> None:
    record = add(run, FIRST)
    add(run, SECOND, Status.REJECTED)
    again = Run.read(run.path)
    assert again.header == run.header
    assert again.records == run.records
    assert again.segments == run.segments
    assert again.records[0] == record
    assert record.samples_end_bytes < again.records[1].samples_end_bytes == (run.path / "samples.jsonl.gz").stat().st_size
    assert list(again.samples()) == [*samples(FIRST), *samples(SECOND)]
    assert again.remaining() == [THIRD]
    assert not again.complete


def test_the_directory_holds_a_snapshot_under_its_full_name(run: Run, submission: Submission) -> None:
    assert run.path.name == run.header.name
    assert run.header.name.startswith("cpu-naive-cpu-")
    assert run.header.name.endswith("Z-" + submission.tree_sha256[:8])
    assert Submission.read(run.path / "submission").tree_sha256 == submission.tree_sha256


def test_a_segment_commits_to_its_secret(run: Run) -> None:
    assert run.segments[0].seed_commitment == hashlib.sha256(b"secret").hexdigest()
    assert not run.segments[0].rankable
    assert b"secret" not in b"".join(path.read_bytes() for path in run.path.rglob("*") if path.is_file())


def test_only_an_infrastructure_error_gets_another_attempt(run: Run) -> None:
    add(run, FIRST, Status.INFRA_ERROR)
    add(run, FIRST, Status.INFRA_ERROR, attempt=1)
    assert run.remaining() == list(PROBLEMS)
    with pytest.raises(DataError, match="twice"):
        add(run, FIRST, attempt=1)
    add(run, FIRST, attempt=2)
    with pytest.raises(DataError, match="twice"):
        add(run, FIRST, attempt=3)
    assert keys(Run.read(run.path)) == [(FIRST, 0), (FIRST, 1), (FIRST, 2)]
    assert sample_keys(run) == [(FIRST, 0), (FIRST, 1), (FIRST, 2)]
    assert run.latest()[FIRST].attempt == 2
    assert run.remaining() == [SECOND, THIRD]


def test_a_file_with_a_duplicate_key_is_refused(run: Run) -> None:
    add(run, FIRST)
    with (run.path / "records.jsonl").open("ab") as file:
        file.write((run.path / "records.jsonl").read_bytes())
    with pytest.raises(DataError, match=r"records\.jsonl holds 8x8x8 twice"):
        Run.read(run.path)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("cut", [1, 20])
def test_a_torn_end_of_any_file_is_cut(run: Run, name: str, cut: int) -> None:
    """The kernel may have written the beginning of the last line, or member, when the process was killed."""
    add(run, FIRST)
    before = {file: (run.path / file).read_bytes() for file in FILES}
    if name == "segments.jsonl":
        run.begin_segment(DEVICE, b"another", "")
    else:
        add(run, SECOND)
    run.close()
    torn = (run.path / name).read_bytes()[len(before[name]) : -cut]
    for file, data in before.items():
        (run.path / file).write_bytes(data + (torn if file == name else b""))
    if name == "records.jsonl":  # Samples come before their record, so they were whole.
        (run.path / "samples.jsonl.gz").write_bytes(before["samples.jsonl.gz"] + gzip.compress(b"{}\n"))
    assert keys(Run.read(run.path)) == [(FIRST, 0)]
    with resumed(run.path) as again:
        assert {file: (run.path / file).read_bytes() for file in FILES} == before
        assert keys(again) == [(FIRST, 0)]
        assert again.remaining() == [SECOND, THIRD]
        add(again, SECOND)
        assert sample_keys(again) == [(FIRST, 0), (SECOND, 0)]


def test_samples_whose_record_was_never_written_are_cut(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    add(run, FIRST)

    def killed(self: Run, name: str, line: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "_append", killed)
        with pytest.raises(KeyboardInterrupt):
            add(run, SECOND)
    run.close()
    assert sample_keys(run) == [(FIRST, 0), (SECOND, 0)]
    with resumed(run.path) as again:
        assert sample_keys(again) == keys(again) == [(FIRST, 0)]


def test_damage_before_the_end_is_refused_with_file_and_line(run: Run) -> None:
    add(run, FIRST)
    add(run, SECOND)
    run.close()
    path = run.path / "records.jsonl"
    path.write_bytes(b"{" + path.read_bytes()[1:].replace(b'"status"', b'"sta\x00us"', 1))
    with pytest.raises(DataError, match=r"records\.jsonl, line 1 is not valid"):
        Run.read(run.path)


def test_lost_samples_are_not_resumed(run: Run) -> None:
    add(run, FIRST)
    run.close()
    os.truncate(run.path / "samples.jsonl.gz", 10)
    with pytest.raises(DataError, match="damaged"):
        list(Run.read(run.path).samples())
    with pytest.raises(DataError, match="samples were lost"):
        Run.resume(run.path)


@contextmanager
def disk_fills_at(path: Path, extra: int) -> Iterator[None]:
    """Files cannot grow beyond that many bytes more than `path` has now: the last write is cut short, then refused."""
    size = path.stat().st_size + extra if path.exists() else extra
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("name", ["records.jsonl", "samples.jsonl.gz"])
@pytest.mark.parametrize("extra", [0, 1, 100])
@pytest.mark.parametrize("earlier", [True, False])
def test_a_record_that_does_not_fit_leaves_nothing_behind(run: Run, name: str, extra: int, earlier: bool) -> None:
    if earlier:
        add(run, FIRST)
    if name == "records.jsonl" and not earlier:
        extra += 400  # The samples of a record are shorter than the record, and must fit.
    before = {file: (run.path / file).read_bytes() for file in FILES if (run.path / file).exists()}
    longest = max(FILES[1:], key=lambda file: len(before.get(file, b"")))
    with disk_fills_at(run.path / (name if earlier else longest), extra), pytest.raises(InfraError, match="cannot be written"):
        add(run, SECOND)
    assert {file: (run.path / file).read_bytes() for file in FILES if (run.path / file).exists()} == {
        **{file: b"" for file in FILES[1:] if (run.path / file).exists()},
        **before,
    }
    add(run, SECOND)
    expected = [(FIRST, 0), (SECOND, 0)] if earlier else [(SECOND, 0)]
    assert keys(Run.read(run.path)) == sample_keys(run) == expected


@pytest.mark.parametrize(
    ("number", "mend"),
    [
        (errno.ENOSPC, "free some space and resume the run"),
        (errno.EDQUOT, "free some space and resume the run"),
        (errno.EROFS, "make it writable and resume the run"),
        (errno.EIO, "see to that and resume the run"),
    ],
)
def test_a_failure_to_write_says_how_to_mend_it(run: Run, number: int, mend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    for write in (lambda: add(run, FIRST), lambda: run.begin_segment(DEVICE, b"", ""), run.finish):
        before = {path: path.read_bytes() for path in run.path.iterdir() if path.is_file()}
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            with pytest.raises(InfraError) as error:
                write()
        assert str(error.value) == f"{run.path} cannot be written ({os.strerror(number)}); {mend}."
        assert error.value.exit_code == 3
        assert {path: path.read_bytes() for path in before} == before
    assert not run.complete
    assert run.records == []
    assert len(run.segments) == 1


def test_a_place_that_cannot_be_written_is_one_sentence(run: Run, submission: Submission, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InfraError, match=r"cannot be written \(.*\); .*\.$"):
        Run.create(tmp_path / "file", submission, run.header)
    with pytest.raises(InfraError, match="wait a second and start again"):
        Run.create(run.path.parent, submission, run.header)


def test_one_process_at_a_time(run: Run) -> None:
    add(run, FIRST)
    other = "import sys; from pathlib import Path; from harness.run import Run; Run.resume(Path(sys.argv[1]))"
    command = [sys.executable, "-c", other, str(run.path)]
    second = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert second.returncode == 1
    assert f"DataError: {run.path} is in use by another process; wait for it to end." in second.stderr
    with pytest.raises(DataError, match="in use by another process"):
        Run.resume(run.path)
    run.close()
    assert subprocess.run(command, capture_output=True, check=False, cwd=ROOT).returncode == 0


def test_finish_freezes_the_run_with_the_hash_of_every_file(run: Run) -> None:
    add(run, FIRST)
    add(run, SECOND, Status.REJECTED)
    add(run, THIRD, Status.INFRA_ERROR)
    add(run, THIRD, attempt=1)
    (run.path / "end.json.partial").write_text("{")
    end = run.finish()
    assert Run.read(run.path).complete
    assert End.parse((run.path / "end.json").read_bytes(), "end.json") == end
    assert end.counts == {"verified": 2, "rejected": 1, "unsupported": 0, "infra_error": 0, "not_attempted": 0}
    files = {path for path in run.path.rglob("*") if path.is_file() and path.name != "end.json"}
    assert end.files_sha256 == {
        str(path.relative_to(run.path)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }
    assert {"run.json", "submission/kernels/hgemm.c", *FILES} <= set(end.files_sha256)
    for index, secret in end.secrets.items():
        assert hashlib.sha256(bytes.fromhex(secret)).hexdigest() == run.segments[int(index)].seed_commitment
    assert set(end.secrets) == {"0"}
    run.close()
    with pytest.raises(DataError, match="is complete; start a new run"):
        Run.resume(run.path)


def test_a_resumed_run_reveals_only_the_secrets_that_it_knows(run: Run) -> None:
    run.close()
    with resumed(run.path) as again:
        assert again.begin_segment(DEVICE, b"second", "").index == 1
        assert set(again.finish().secrets) == {"1"}


def change(path: Path, update: Callable[[dict[str, object]], None]) -> None:
    data = json.loads(path.read_text())
    update(data)
    path.write_text(json.dumps(data) + "\n")


@pytest.mark.parametrize("name", ["run.json", "segments.jsonl", "records.jsonl"])
def test_a_newer_file_is_refused_in_one_sentence(run: Run, name: str) -> None:
    add(run, FIRST)
    run.close()
    change(run.path / name, lambda data: data.update(schema_version=2, invented=1))
    for opened in (Run.read, Run.resume):
        with pytest.raises(DataError) as error:
            opened(run.path)
        assert f"{name}" in str(error.value)
        assert "was written by a newer version (schema 2, this one reads up to 1); upgrade hgemm-arena" in str(error.value)


def test_what_is_no_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no run\.json, so it is not a run"):
        Run.read(tmp_path)


def test_segments_survive_json() -> None:
    segment = Segment(index=0, started_utc="2026-01-01T00:00:00Z", device=DEVICE, seed_commitment="0" * 64, rankable=True)
    assert Segment.parse(segment.model_dump_json(), "segments.jsonl") == segment
