"""Isolation: what code of others (plan.py, a native library) and its compilers cannot reach, where the system allows that.

`unshare` of util-linux puts a process into namespaces of its own. In another user namespace it cannot trace the harness
or read its memory, though both run as the same user; in another network namespace there is no network.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess

NAMESPACES = ("--user", "--map-current-user", "--net", "--ipc")
PROCESSES = ("--pid", "--fork", "--kill-child")
"""Whatever it started ends with it. The program becomes a grandchild, so signals that end it do not show."""
PROBE_S = 10.0

NOT_TAKEN_AWAY = (
    "the file system stays readable and writable with the user's rights, and system calls are not filtered: run submissions "
    "of strangers as a user, or in a container, of their own"
)
"""What no part of this takes away; `hgemm doctor` says it."""


def isolated(command: list[str], whole: bool, namespaces: tuple[str, ...] = NAMESPACES) -> list[str]:
    """The command in namespaces of its own where that works here, else as it is.

    Args:
        command: what to run.
        whole: end everything that it started, too. Not for a process whose signals tell something.
        namespaces: which, as options of `unshare`; none for a process that they would keep from its work.
    """
    return [*_prefix(whole, namespaces), *command] if namespaces else command


def described(namespaces: tuple[str, ...]) -> str:
    """What these namespaces take away here, in a few words, for the conditions of a run."""
    if not namespaces:
        return "none: what is needed does not work in namespaces"
    names = ", ".join(option.removeprefix("--") for option in namespaces if not option.startswith("--map"))
    return f"namespaces of its own: {names}" if _prefix(whole=False, namespaces=namespaces) else f"none: {missing()}"


def missing() -> str:
    """Why nothing can be isolated here, in a sentence; empty where it can."""
    if shutil.which("unshare") is None:
        return "unshare is not installed (util-linux), so code of submissions keeps the network and may trace the harness"
    if not _prefix(whole=False, namespaces=NAMESPACES):
        return "this system allows no user namespaces, so code of submissions keeps the network and may trace the harness"
    return ""


@functools.cache
def _prefix(whole: bool, namespaces: tuple[str, ...]) -> tuple[str, ...]:
    path = shutil.which("unshare")
    if path is None:
        return ()
    prefix = (path, *namespaces, *(PROCESSES if whole else ()), "--")
    try:
        tried = subprocess.run(
            [*prefix, "true"], stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_S, check=False, env=dict(os.environ)
        )
    except subprocess.TimeoutExpired:
        return ()
    return prefix if tried.returncode == 0 else ()
