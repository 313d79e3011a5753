"""Files that others wrote: looked at before they are opened, and read with bounds."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path

from harness.model import DataError

MAX_BYTES = 1 << 30
"""What a file may unpack to: some 200 times the samples of the whole grid in both modes."""
MAX_LINE_BYTES = 1 << 24
"""Longest line."""


def unpacked_lines(path: Path) -> Iterator[bytes]:
    """The lines of a gzip file with their ends, one in memory at a time.

    Raises:
        DataError: it is damaged, or unpacks to more than any run or search can need.
    """
    left = MAX_BYTES
    try:
        with gzip.open(path, "rb") as file:
            while line := file.readline(min(left, MAX_LINE_BYTES) + 1):
                left -= len(line)
                if left < 0 or len(line) > MAX_LINE_BYTES:
                    limits = f"{MAX_BYTES >> 20} MiB, {MAX_LINE_BYTES >> 20} MiB in a line"
                    raise DataError(f"{path} unpacks to more than a run or a search can need ({limits}); get a sound copy.")
                yield line
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged ({error}); resuming an unfinished run cuts what a kill left.") from error


def refuse_special_files(directory: Path, files: Collection[str]) -> None:
    """See to it that a directory holds plain files and folders, and that none of `files` is a folder.

    Raises:
        DataError: a link or a pipe, say, which might never end, or a folder in the place of a file.
    """
    with os.scandir(directory) as entries:
        for entry in entries:
            folder = entry.name not in files and entry.is_dir(follow_symlinks=False)
            if not folder and not entry.is_file(follow_symlinks=False):
                raise DataError(f"{entry.path} is a link, a special file or a folder where a plain file belongs; remove it.")
