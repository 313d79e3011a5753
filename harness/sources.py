"""What a compilation may read: the source and the headers of the submission that it names, and nothing else of it.

A compiler opens whatever a directive names and quotes it in its messages, so includes are checked before it runs:
directives must name a relative path literally. The patterns are stricter than the language on purpose (a directive
next to a comment is refused), since every form that they would not understand is a way round them.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from harness.artifacts import BuildRefusedError
from harness.record import Reason

MAX_SOURCE_BYTES = 64 << 20

_DIRECTIVE = re.compile(
    r"^[ \t\f\v]*#[ \t\f\v]*(include_next|include|import|embed)(?![A-Za-z0-9_])[ \t\f\v]*([^\n]*)", re.MULTILINE
)
_LITERAL = re.compile(r'"([^"\n]+)"|<([^>\n]+)>')
_SPLICES = (r"\\\n", r"\\[ \t\f\v]+\n")
_TRICKS = (
    (re.compile(r"__has_(include|include_next|embed)\b"), "asks which files exist"),
    (re.compile(r"\?\?[=/]|%:"), "uses a trigraph or digraph"),
    (re.compile(r"#[ \t\f\v]*/[*/]|\*/[ \t\f\v]*#"), "has a comment on the line of a directive, beside the #"),
    (re.compile(r"[\0\r]"), "has a NUL or a lone carriage return"),
)


def collect_sources(root: Path, source: str) -> dict[str, bytes]:
    """The source and, transitively, every file of the submission that an `#include` of it could mean.

    Args:
        root: directory of the submission.
        source: path of the source inside it.

    Returns:
        Contents by path inside the submission, the source first.

    Raises:
        BuildRefusedError: no such file, a link, too much, or an include that is absolute, leaves the directory, is computed,
            or is hidden from this check.
    """
    files: dict[str, bytes] = {}
    waiting = [source]
    while waiting:
        name = waiting.pop()
        if name in files:
            continue
        data = read_inside(root, name)
        if data is None:
            raise BuildRefusedError(Reason.BUILD_ERROR, f"{name} does not exist.")
        files[name] = data
        if sum(map(len, files.values())) > MAX_SOURCE_BYTES:
            raise BuildRefusedError(Reason.BUILD_LIMIT, f"{source} includes more than {MAX_SOURCE_BYTES >> 20} MiB.")
        for line, target in _includes(name, data):
            _refuse_outside(name, line, target)
            # The compiler's search path is the including file's directory, the submission, and the source's directory.
            folders = (posixpath.dirname(name), "", posixpath.dirname(source))
            candidates = {posixpath.normpath(posixpath.join(folder, target)) for folder in folders}
            waiting.extend(sorted(path for path in candidates if os.path.lexists(root / path) and not (root / path).is_dir()))
    return files


def include_anything(files: dict[str, bytes]) -> bool:
    """Whether any of the files that `collect_sources` found has an `#include`, of a header of the system or of its own."""
    return any(True for name, data in files.items() for _ in _includes(name, data))


def read_inside(root: Path, name: str) -> bytes | None:
    """Contents of a plain file inside `root`, or None where there is none.

    Raises:
        BuildRefusedError: it, or a directory on the way, is a link or a special file.
    """
    path = root
    for part in name.split("/"):
        path = path / part
        try:
            mode = path.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise BuildRefusedError(
                Reason.FORBIDDEN, f"{name} is a link or a special file; a submission holds plain files only."
            )
    return path.read_bytes() if path.is_file() else None


def _includes(name: str, data: bytes) -> Iterator[tuple[int, str]]:
    """(line, path) of every include, in any branch. Latin-1 maps every byte, and names in any encoding survive it."""
    original = data.removeprefix(b"\xef\xbb\xbf").decode("latin-1").replace("\r\n", "\n")
    # Compilers differ in whether blanks may follow the backslash that joins two lines, so each reading is checked.
    views = [original, re.sub(_SPLICES[0], "", original), re.sub("|".join(_SPLICES), "", original)]
    for view in dict.fromkeys(views):
        for pattern, what in _TRICKS:
            if found := pattern.search(view):
                raise BuildRefusedError(Reason.FORBIDDEN, f"{name}:{_line(view, found.start())}: {what}, which is forbidden.")
        for found in _DIRECTIVE.finditer(view):
            line = _line(view, found.start())
            literal = _LITERAL.match(found[2])
            if found[1] != "include" or literal is None:
                text = f"#{found[1]} {found[2]}".strip()[:80]
                raise BuildRefusedError(Reason.FORBIDDEN, f'{name}:{line}: {text}: only #include "path" or <path> is allowed.')
            yield line, (literal[1] or literal[2]).encode("latin-1").decode("utf-8", "surrogateescape")


def _refuse_outside(name: str, line: int, target: str) -> None:
    if target.startswith("/") or "\\" in target or ".." in target.split("/"):
        raise BuildRefusedError(
            Reason.FORBIDDEN, f"{name}:{line}: #include of {target}: a path must be relative, without '..' and backslashes."
        )


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
