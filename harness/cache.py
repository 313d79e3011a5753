"""Cache: built kernels by the hash of everything that decides them.

An entry is a directory `builds/<key>/` that appears in one rename and never changes, so there is nothing to lock: of two
builders of a key one publishes and the other finds it there. A killed build leaves its directory under `tmp/`, which
`prune` removes.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

from pydantic import ValidationError

from harness.artifacts import BuildReport
from harness.model import Count, Document, Hash, InfraError

STALE_S = 3600.0
"""A directory under `tmp/` that is older belongs to no build that still runs."""

_ENTRY = "entry.json"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG)


class CacheEntry(Document):
    """`entry.json`: what lies beside it."""

    file: str
    """Name of the object."""
    object_sha256: Hash
    """Hash of the object."""
    report: BuildReport
    """What the compiler said."""


class CacheInfo(Document):
    """What `hgemm cache info --json` prints."""

    directory: str
    """Where the cache is."""
    entries: Count
    """Built kernels."""
    size_bytes: Count
    """Their size."""
    oldest_use_unix_s: Count | None
    """When the entry that was unused for longest was last used; null for an empty cache."""
    temporary_bytes: Count
    """Size of what running and killed builds left; pruning removes what is over an hour old."""


class Pruned(Document):
    """What `hgemm cache prune --json` prints."""

    directory: str
    """Where the cache is."""
    removed_entries: Count
    """Built kernels removed."""
    removed_temporaries: Count
    """Directories of killed builds removed."""
    freed_bytes: Count
    """Size of what was removed."""


class Stored(NamedTuple):
    """An entry as found."""

    path: Path
    """The object."""
    report: BuildReport
    """What the compiler said."""


class _Entry(NamedTuple):
    path: Path
    used_s: float
    size_bytes: int


class Cache:
    """Built kernels in a directory, shared by any number of processes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._builds = directory / "builds"
        self._temporary = directory / "tmp"

    @classmethod
    def default(cls) -> Self:
        """`$HGEMM_CACHE`, else `$XDG_CACHE_HOME/hgemm`, else `~/.cache/hgemm`.

        Raises:
            InfraError: there is no home.
        """
        shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        place = Path(os.environ.get("HGEMM_CACHE") or Path(shared, "hgemm"))
        try:
            return cls(place.expanduser().absolute())
        except RuntimeError as error:
            raise InfraError(f"there is no home for the cache {place}; set HGEMM_CACHE to a writable place.") from error

    def get(self, key: str) -> Stored | None:
        """The entry of a key, if it is there and its object is what was stored. Works in a read-only cache too."""
        directory = self._builds / key
        try:
            entry = CacheEntry.model_validate_json((directory / _ENTRY).read_bytes())
            content = (directory / entry.file).read_bytes()
        except (OSError, ValidationError):
            return None
        if hashlib.sha256(content).hexdigest() != entry.object_sha256:
            return None
        with contextlib.suppress(OSError):
            os.utime(directory / _ENTRY)
        return Stored(directory / entry.file, entry.report)

    @contextlib.contextmanager
    def staging(self) -> Iterator[Path]:
        """An empty directory on the cache's file system, removed afterwards. Errors of the disk inside become InfraErrors.

        Raises:
            InfraError: the cache is not writable, or the disk is full.
        """
        with self._explained():
            self._temporary.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._builds.mkdir(exist_ok=True, mode=0o700)
            directory = Path(tempfile.mkdtemp(prefix="build-", dir=self._temporary))
            try:
                yield directory
            finally:
                shutil.rmtree(directory, ignore_errors=True)

    def publish(self, key: str, content: Path, report: BuildReport) -> Path:
        """Store the object `content`, a file inside a `staging` directory, and return its path in the cache.

        Raises:
            InfraError: the cache is not writable, or the disk is full.
        """
        name = "kernel" + content.suffix
        entry = CacheEntry(file=name, object_sha256=hashlib.sha256(content.read_bytes()).hexdigest(), report=report)
        target = self._builds / key
        with self._explained():
            directory = Path(tempfile.mkdtemp(prefix="entry-", dir=content.parent))
            content.replace(directory / name)
            (directory / _ENTRY).write_text(json.dumps(entry.model_dump(mode="json"), indent=1), encoding="utf-8")
            for attempt in range(10):
                try:
                    directory.rename(target)
                    break
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                        raise
                # Another builder was first, or what is there is damaged and has to go.
                if (stored := self.get(key)) is not None:
                    return stored.path
                with contextlib.suppress(FileNotFoundError):
                    target.rename(directory.with_name(f"damaged-{attempt}"))
            else:
                raise InfraError(f"{target} cannot be replaced; remove it and try again.")
        return target / name

    def free_bytes(self) -> int:
        """Room left on its disk."""
        return shutil.disk_usage(self.directory).free

    def full_error(self) -> InfraError:
        """The error of a full disk."""
        return InfraError(
            f"the disk that holds the cache {self.directory} is full; free some room (`hgemm cache prune` helps) "
            "or set HGEMM_CACHE to a directory elsewhere."
        )

    def info(self) -> CacheInfo:
        """What the cache holds; an absent one holds nothing.

        Raises:
            InfraError: it cannot be read.
        """
        with self._explained():
            entries = self._entries()
        return CacheInfo(
            directory=str(self.directory),
            entries=len(entries),
            size_bytes=sum(entry.size_bytes for entry in entries),
            oldest_use_unix_s=int(min(entry.used_s for entry in entries)) if entries else None,
            temporary_bytes=sum(_size(path) for path in _children(self._temporary)),
        )

    def prune(self, max_bytes: int | None = None, older_than_s: float | None = None) -> Pruned:
        """Remove what killed builds left, entries unused for `older_than_s`, and the least recently used over `max_bytes`.

        Raises:
            InfraError: the cache is not writable.
        """
        now = time.time()
        entries = sorted(self._entries(), key=lambda entry: entry.used_s, reverse=True)
        kept_bytes, doomed = 0, []
        for entry in entries:
            too_old = older_than_s is not None and now - entry.used_s > older_than_s
            too_much = max_bytes is not None and kept_bytes + entry.size_bytes > max_bytes
            if too_old or too_much:
                doomed.append(entry)
            else:
                kept_bytes += entry.size_bytes
        stale = [path for path in _children(self._temporary) if now - _modified(path) > STALE_S]
        freed = sum(entry.size_bytes for entry in doomed) + sum(_size(path) for path in stale)
        if doomed:
            with self.staging() as directory:
                for entry in doomed:
                    # Out of sight in one step: a reader sees a whole entry or none.
                    with contextlib.suppress(FileNotFoundError):
                        entry.path.rename(directory / entry.path.name)
        with self._explained():
            for path in stale:
                with contextlib.suppress(FileNotFoundError):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        return Pruned(
            directory=str(self.directory), removed_entries=len(doomed), removed_temporaries=len(stale), freed_bytes=freed
        )

    def _entries(self) -> list[_Entry]:
        return [_Entry(path, _modified(path / _ENTRY) or _modified(path), _size(path)) for path in _children(self._builds)]

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in _FULL:
                raise self.full_error() from error
            if error.errno in _NOT_WRITABLE or (error.errno == errno.ENOENT and not self.directory.exists()):
                raise InfraError(
                    f"the cache {self.directory} is not writable ({error.strerror}); mend its permissions "
                    "or set HGEMM_CACHE to a directory that is."
                ) from error
            raise


def _children(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _modified(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def _size(path: Path) -> int:
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(folder, name).lstat().st_size
    return total
