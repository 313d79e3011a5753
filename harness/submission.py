"""Submission: a directory with a manifest, a plan and kernels, and its identity."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tomllib
from enum import StrEnum
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Annotated, NamedTuple, NoReturn, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from harness.model import DataError, Document, Hash, Line, Name, one_sentence, refuse_newer
from harness.problem import Track
from harness.profiles import DeviceProfile

MANIFEST_NAME = "submission.toml"
MAX_SUBMISSION_BYTES = 64 << 20
TOP_LEVEL_FILES = frozenset({MANIFEST_NAME, "plan.py", "plan.json", "README.md", "LICENSE"})
KERNEL_SUFFIXES = frozenset({".cu", ".cuh", ".h", ".hpp", ".cpp", ".ptx", ".cubin", ".c"})


class Kind(StrEnum):
    """Who runs host code where times are taken."""

    DEVICE = "device"
    """Only the harness does: it compiles and launches by the plan. The strict kind."""
    NATIVE = "native"
    """The submission's own library; ranked in a list of its own."""


class Manifest(Document):
    """`submission.toml`."""

    name: Name
    """Name of the submission: lower case, digits, `.`, `_`, `-`."""
    version: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+(\.[0-9]+)?$")]
    """Version, such as 1.0.0."""
    authors: Annotated[tuple[Annotated[Line, Field(min_length=1, max_length=200)], ...], Field(min_length=1)]
    """Authors, best first."""
    license: Annotated[str, Field(pattern=r"^[A-Za-z0-9.+() -]{2,100}$")]
    """SPDX licence expression, such as MIT."""
    description: Annotated[Line, Field(min_length=1, max_length=1000)]
    """What it is, in a sentence or two."""
    track: Annotated[Track, Field(strict=False)] = Track.F32
    """Accumulation track that it enters."""
    targets: Annotated[tuple[Annotated[str, Field(pattern=r"^(sm_[0-9]+a?|cpu)$")], ...], Field(min_length=1)]
    """What it runs on: `sm_80` means that architecture and newer ones, `sm_90a` exactly that one, `cpu` the host."""
    kind: Annotated[Kind, Field(strict=False)]
    """`device` or `native`; the cpu target is native."""

    @model_validator(mode="before")
    @classmethod
    def _lists_are_tuples(cls, data: object) -> object:
        if isinstance(data, dict):
            return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
        return data

    @field_validator("targets")
    @classmethod
    def _targets_are_unique(cls, targets: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(targets)) != len(targets):
            raise ValueError("a target is named twice")
        return targets

    @model_validator(mode="after")
    def _cpu_is_native(self) -> Self:
        if ("cpu" in self.targets) and (self.kind is not Kind.NATIVE or self.targets != ("cpu",)):
            raise ValueError('the cpu target is host code: kind must be "native" and targets ["cpu"]')
        return self

    def runs_on(self, profile: DeviceProfile) -> bool:
        """Whether a device of this profile is among the targets."""
        for target in self.targets:
            if target == profile.architecture:
                return True
            forward = target.startswith("sm_") and not target.endswith("a") and not profile.is_cpu
            if forward and int(profile.architecture[3:].rstrip("af")) >= int(target[3:]):
                return True
        return False


class SubmissionFile(NamedTuple):
    """One file of a submission."""

    name: str
    """POSIX path inside the submission."""
    data: bytes
    """Contents."""


class Submission(NamedTuple):
    """A submission as read from disk once; nothing of it is read again later."""

    root: Path
    """Directory it was read from."""
    manifest: Manifest
    """The validated manifest."""
    files: tuple[SubmissionFile, ...]
    """All files, sorted by name, the manifest among them."""

    @classmethod
    def read(cls, root: Path) -> Self:
        """Read and validate a submission directory.

        Raises:
            DataError: not a directory, no or invalid manifest, no plan, or a file that does not belong.
        """
        root = root.resolve()
        if not root.is_dir():
            raise DataError(f"{root} is not a directory; a submission is a directory with a {MANIFEST_NAME}.")
        if not (root / MANIFEST_NAME).is_file():
            raise DataError(f"{root} holds no {MANIFEST_NAME}; `hgemm new NAME` makes a submission to start from.")
        try:
            files = tuple(_read_files(root))
        except OSError as error:
            raise DataError(f"{error.filename or root} cannot be read: {error.strerror}.") from error
        names = {file.name for file in files}
        if ("plan.py" in names) == ("plan.json" in names):
            raise DataError(f"{root} must hold plan.py or plan.json, one of the two.")
        manifest = _parse_manifest(next(file.data for file in files if file.name == MANIFEST_NAME), root / MANIFEST_NAME)
        return cls(root, manifest, files)

    @property
    def tree_sha256(self) -> str:
        """Identity: SHA-256 over canonical JSON of manifest and files (names, lengths, bytes)."""
        return _digest({"manifest": json.loads(self.manifest.canonical_json()), "files": _listing(self.files)})

    @property
    def code_sha256(self) -> str:
        """The same over the files without the manifest: equal for copies under another name."""
        return _digest({"files": _listing(tuple(file for file in self.files if file.name != MANIFEST_NAME))})

    def file(self, name: str) -> bytes | None:
        """Contents of a file, or None."""
        return next((file.data for file in self.files if file.name == name), None)

    def write_to(self, directory: Path) -> None:
        """Write every file below `directory`, which must not exist: the snapshot that builds and runs use."""
        directory.mkdir(parents=True)
        for file in self.files:
            path = directory / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.data)

    def reference(self) -> SubmissionReference:
        """What a run stores of it."""
        fields = {name: getattr(self.manifest, name) for name in Manifest.model_fields}
        return SubmissionReference(**fields, tree_sha256=self.tree_sha256, code_sha256=self.code_sha256)


class SubmissionReference(Manifest):
    """A manifest with the identity of the tree it came with, as stored in a run."""

    tree_sha256: Hash
    """Identity of the whole tree."""
    code_sha256: Hash
    """Identity of the tree without its manifest."""


def _read_files(root: Path) -> list[SubmissionFile]:
    found, total = [], 0
    for path in _everything_below(root):
        name = path.relative_to(root).as_posix()
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            continue
        if not stat.S_ISREG(mode):
            raise DataError(f"{path} is a link or a special file; a submission holds plain files only.")
        if not _belongs(PurePosixPath(name)):
            allowed = ", ".join(sorted(TOP_LEVEL_FILES))
            suffixes = " ".join(sorted(KERNEL_SUFFIXES))
            raise DataError(
                f"{path} does not belong in a submission (it may hold {allowed} and kernels/* {suffixes}); remove it."
            )
        total += path.stat().st_size
        if total > MAX_SUBMISSION_BYTES:
            raise DataError(f"{root} holds more than {MAX_SUBMISSION_BYTES >> 20} MiB; a submission is source code.")
        found.append(SubmissionFile(name, path.read_bytes()))
    return found


def _everything_below(root: Path) -> list[Path]:
    """All paths, sorted; a folder that cannot be read is an error and not an empty one."""

    def refuse(error: OSError) -> NoReturn:
        raise error

    return sorted(Path(folder, name) for folder, *names in os.walk(root, onerror=refuse) for name in chain(*names))


def _belongs(name: PurePosixPath) -> bool:
    if any(part.startswith(".") or not part.isprintable() for part in name.parts):
        return False
    if len(name.parts) == 1:
        return name.name in TOP_LEVEL_FILES
    return name.parts[0] == "kernels" and name.suffix in KERNEL_SUFFIXES


def _parse_manifest(data: bytes, source: Path) -> Manifest:
    try:
        values = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # bytes, grammar, an integer of thousands of digits, or nesting
        raise DataError(f"{source} is not valid TOML: {error}.") from error
    refuse_newer(values, str(source))
    try:
        return Manifest.model_validate(values)
    except ValidationError as error:
        raise DataError(f"{source} is not valid: {one_sentence(error)}.") from error


def _listing(files: tuple[SubmissionFile, ...]) -> list[list[str | int]]:
    return [[file.name, len(file.data), hashlib.sha256(file.data).hexdigest()] for file in files]


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
