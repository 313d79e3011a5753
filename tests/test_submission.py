"""A submission's identity changes with anything in its tree, and what does not belong is refused in one sentence."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.model import DataError, HgemmError
from harness.profiles import load_profile
from harness.submission import Kind, Manifest, Submission, SubmissionFile

MANIFEST = """
name = "mine"
version = "1.0.0"
authors = ["A. Author"]
license = "MIT"
description = "A test."
targets = ["sm_90a"]
kind = "device"
"""
FIELDS = {
    "name": "mine",
    "version": "1.0.0",
    "authors": ("A. Author",),
    "license": "MIT",
    "description": "A test.",
    "targets": ("sm_90a",),
    "kind": "device",
}


def tree(root: Path, manifest: str = MANIFEST, **files: str) -> Path:
    """A submission directory; `files` are paths below kernels/, with `__` for a slash."""
    (root / "kernels").mkdir(parents=True)
    (root / "submission.toml").write_text(manifest)
    (root / "plan.py").write_text("def plan(problem, device): ...\n")
    for name, text in files.items():
        path = root / "kernels" / name.replace("__", "/").replace("_cu", ".cu")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tree(tmp_path / "mine", a_cu="aa", b_cu="bb", deep__c_cu="")


names = st.sampled_from(
    ["plan.py", "kernels/a.cu", "kernels/b.cu", "kernels/ab.cu", "kernels/d/a.cu", "kernels/a.cuh", "README.md"]
)
trees = st.dictionaries(names, st.binary(max_size=4), max_size=4)


def identity_of(files: dict[str, bytes]) -> tuple[str, str]:
    listed = tuple(SubmissionFile(name, data) for name, data in sorted(files.items()))
    submission = Submission(Path(), Manifest.model_validate(FIELDS), listed)
    return submission.tree_sha256, submission.code_sha256


@given(trees, trees)
def test_two_trees_have_one_hash_exactly_if_they_are_equal(first: dict[str, bytes], second: dict[str, bytes]) -> None:
    for mine, theirs in zip(identity_of(first), identity_of(second), strict=True):
        assert (mine == theirs) == (first == second)


@given(trees, st.data())
def test_any_one_change_changes_the_hash(files: dict[str, bytes], data: st.DataObject) -> None:
    changed = dict(files)
    name = data.draw(names)
    if name in files and data.draw(st.booleans()):
        other = data.draw(names.filter(lambda other: other not in files))
        changed[other] = changed.pop(name)
    elif name in files:
        del changed[name]
    else:
        changed[name] = b""
    assert identity_of(changed) != identity_of(files)


@given(st.binary(min_size=1, max_size=6), st.integers(1, 6))
def test_bytes_moved_from_one_file_to_the_next_change_the_hash(data: bytes, at: int) -> None:
    whole = {"kernels/a.cu": data, "kernels/b.cu": b""}
    split = {"kernels/a.cu": data[:-at], "kernels/b.cu": data[-at:]}
    assert identity_of(split) != identity_of(whole)


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "kernels/a.cu").write_text("aA"),
        lambda root: (root / "kernels/a.cu").write_text("aa\r\n"),
        lambda root: (root / "kernels/a.cu").rename(root / "kernels/z.cu"),
        lambda root: (root / "kernels/a.cu").rename(root / "kernels/deep/a.cu"),
        lambda root: (root / "kernels/extra.h").touch(),
        lambda root: (root / "kernels/b.cu").unlink(),
        lambda root: (root / "LICENSE").write_text("MIT"),
        lambda root: (root / "submission.toml").write_text(MANIFEST.replace("A test.", "Another test.")),
        lambda root: (root / "submission.toml").write_text(MANIFEST + "# only a comment\n"),
    ],
)
def test_any_change_on_disk_changes_the_identity(root: Path, change: Callable[[Path], object]) -> None:
    before = Submission.read(root)
    change(root)
    after = Submission.read(root)
    assert after.tree_sha256 != before.tree_sha256
    of_the_manifest = before.file("submission.toml") != after.file("submission.toml")
    assert (after.code_sha256 == before.code_sha256) == of_the_manifest


def test_place_and_times_of_files_do_not_change_the_identity(root: Path, tmp_path: Path) -> None:
    before = Submission.read(root)
    os.utime(root / "kernels/a.cu", (1, 1))
    (root / "kernels/a.cu").chmod(0o755)
    before.write_to(tmp_path / "copy")
    for place in (root, tmp_path / "copy", tmp_path / "copy" / ".." / "mine"):
        again = Submission.read(place)
        assert (again.tree_sha256, again.files) == (before.tree_sha256, before.files)


def test_what_was_read_is_not_read_again(root: Path) -> None:
    submission = Submission.read(root)
    identity = submission.tree_sha256
    (root / "kernels/a.cu").write_text("changed")
    assert submission.tree_sha256 == identity
    assert submission.file("kernels/a.cu") == b"aa"
    assert submission.file("kernels/none.cu") is None


def sentence(error: pytest.ExceptionInfo[DataError], *parts: str) -> None:
    """One sentence on one line that names what is at fault."""
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith(".")
    for part in parts:
        assert part in text


@pytest.mark.parametrize(
    "name",
    [
        "host.cpp",
        "kernels/a.py",
        "kernels/liba.so",
        "Makefile",
        "kernels/.hidden.cu",
        ".git/config",
        "src/a.cu",
        "kernels/a.cu~",
    ],
)
def test_a_file_that_does_not_belong_is_refused_by_name(root: Path, name: str) -> None:
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).touch()
    with pytest.raises(DataError) as error:
        Submission.read(root)
    sentence(error, name, "does not belong", "remove it")


@pytest.mark.parametrize("target", ["a.cu", "/etc/passwd", "/nowhere", ".."])
def test_links_are_refused(root: Path, target: str) -> None:
    (root / "kernels/link.cu").symlink_to(target)
    with pytest.raises(DataError) as error:
        Submission.read(root)
    sentence(error, "kernels/link.cu", "link")


def test_special_files_are_refused_without_opening_them(root: Path) -> None:
    os.mkfifo(root / "kernels/pipe.cu")
    with pytest.raises(DataError) as error:
        Submission.read(root)
    sentence(error, "pipe.cu", "special file")


def test_a_linked_manifest_is_refused(root: Path, tmp_path: Path) -> None:
    (root / "submission.toml").rename(tmp_path / "elsewhere.toml")
    (root / "submission.toml").symlink_to(tmp_path / "elsewhere.toml")
    with pytest.raises(DataError) as error:
        Submission.read(root)
    sentence(error, "submission.toml", "link")


def test_what_is_no_submission_says_so(root: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        Submission.read(tmp_path / "absent")
    sentence(error, "absent", "not a directory")
    (root / "submission.toml").unlink()
    with pytest.raises(DataError) as error:
        Submission.read(root)
    sentence(error, "submission.toml", "hgemm new")


def test_a_submission_has_one_plan(root: Path) -> None:
    (root / "plan.json").write_text("{}")
    with pytest.raises(DataError, match="one of the two"):
        Submission.read(root)
    (root / "plan.json").unlink()
    (root / "plan.py").unlink()
    with pytest.raises(DataError, match="one of the two"):
        Submission.read(root)


def test_a_submission_is_small(root: Path) -> None:
    with (root / "kernels/a.cu").open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(DataError) as error:
        Submission.read(root)
    sentence(error, "64 MiB")


@pytest.mark.parametrize(
    ("manifest", "says"),
    [
        ("", "name: Field required"),
        ("name = ", "not valid TOML"),
        ("\udcff", "not valid TOML"),
        (MANIFEST + "colour = 1", "colour: Extra inputs"),
        (MANIFEST.replace('"mine"', '"My Kernel"'), "name:"),
        (MANIFEST.replace('"mine"', '"../up"'), "name:"),
        (MANIFEST.replace('"1.0.0"', "1.0"), "version:"),
        (MANIFEST.replace('["A. Author"]', "[]"), "authors:"),
        (MANIFEST.replace('["A. Author"]', '"A. Author"'), "authors:"),
        (MANIFEST.replace('["sm_90a"]', '["sm_90a", "sm_90a"]'), "twice"),
        (MANIFEST.replace('["sm_90a"]', '["H200"]'), "targets"),
        (MANIFEST.replace('["sm_90a"]', '["cpu"]'), "host code"),
        (MANIFEST.replace('"device"', '"binary"'), "kind:"),
        (MANIFEST + 'track = "f64"', "track:"),
        (MANIFEST + "schema_version = 2", "newer version"),
        (MANIFEST + "schema_version = 0", "schema_version"),
        (MANIFEST + 'schema_version = "1"', "schema_version"),
    ],
)
def test_a_bad_manifest_is_one_sentence(root: Path, manifest: str, says: str) -> None:
    (root / "submission.toml").write_bytes(manifest.encode(errors="surrogateescape"))
    with pytest.raises(DataError) as error:
        Submission.read(root)
    sentence(error, says, "submission.toml")


def test_a_manifest_says_what_it_runs_on() -> None:
    on = {name: load_profile(name) for name in ("h200", "a100", "rtx4090", "cpu")}

    def runs(*targets: str, kind: str = "device") -> set[str]:
        manifest = Manifest.model_validate({**FIELDS, "targets": targets, "kind": kind})
        return {name for name, profile in on.items() if manifest.runs_on(profile)}

    assert runs("sm_90a") == {"h200"}
    assert runs("sm_80") == {"h200", "a100", "rtx4090"}
    assert runs("sm_89") == {"h200", "rtx4090"}
    assert runs("sm_100") == set()
    assert runs("cpu", kind="native") == {"cpu"}


def test_a_reference_keeps_manifest_and_identity(root: Path) -> None:
    submission = Submission.read(root)
    reference = submission.reference()
    assert (reference.name, reference.kind, reference.tree_sha256) == ("mine", Kind.DEVICE, submission.tree_sha256)
    assert type(reference).parse(reference.model_dump_json(), "a reference") == reference


def test_an_unreadable_file_is_one_sentence(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(HgemmError, match=r"kernels/a\.cu cannot be read: Permission denied\."):
        Submission.read(root)
