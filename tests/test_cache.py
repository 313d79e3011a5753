from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.artifacts import BuildReport
from harness.cache import STALE_S, Cache
from harness.commands.cache import app
from harness.model import DataError, InfraError

KEY, OTHER, THIRD = "a" * 64, "b" * 64, "c" * 64
REPORT = BuildReport(entries=("k",), registers={"k": 32}, spill_store_bytes=8)


def store(cache: Cache, key: str = KEY, content: bytes = b"object") -> Path:
    with cache.staging() as directory:
        path = directory / "kernel.cubin"
        path.write_bytes(content)
        return cache.publish(key, path, REPORT)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def test_what_was_stored_comes_back_and_nothing_temporary_stays(cache: Cache) -> None:
    assert cache.get(KEY) is None
    path = store(cache)
    stored = cache.get(KEY)
    assert stored is not None
    assert (stored.path, stored.report, path.read_bytes(), path.suffix) == (path, REPORT, b"object", ".cubin")
    assert cache.get(OTHER) is None
    assert list((cache.directory / "tmp").iterdir()) == []


def test_default_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HGEMM_CACHE", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert Cache.default().directory == Path("/own")
    monkeypatch.delenv("HGEMM_CACHE")
    assert Cache.default().directory == Path("/xdg/hgemm")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert Cache.default().directory == Path("/home/someone/.cache/hgemm")


@pytest.mark.parametrize("damage", ["content", "entry", "no object", "empty"])
def test_a_damaged_entry_is_a_miss_and_can_be_replaced(cache: Cache, damage: str) -> None:
    path = store(cache)
    if damage == "content":
        path.write_bytes(b"objecT")
    elif damage == "entry":
        (path.parent / "entry.json").write_text('{"torn')
    elif damage == "no object":
        path.unlink()
    else:
        for file in path.parent.iterdir():
            file.unlink()
    assert cache.get(KEY) is None
    store(cache, content=b"again")
    stored = cache.get(KEY)
    assert stored is not None
    assert stored.path.read_bytes() == b"again"


def test_the_first_of_two_builders_wins_and_both_get_a_path(cache: Cache) -> None:
    with cache.staging() as one, cache.staging() as two:
        for directory, content in ((one, b"one"), (two, b"two")):
            (directory / "kernel.cubin").write_bytes(content)
        first = cache.publish(KEY, one / "kernel.cubin", REPORT)
        second = cache.publish(KEY, two / "kernel.cubin", REPORT)
    assert first == second
    assert first.read_bytes() == b"one"


def test_many_builders_of_one_key_leave_one_whole_entry(cache: Cache) -> None:
    failures: list[BaseException] = []

    def build(number: int) -> None:
        try:
            for _ in range(10):
                assert store(cache, content=b"%d" % number * 1000).read_bytes()[:1].isdigit()
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            failures.append(error)

    threads = [threading.Thread(target=build, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert cache.get(KEY) is not None
    assert cache.info().entries == 1
    assert cache.info().temporary_bytes == 0


def test_a_killed_build_leaves_only_a_temporary_that_pruning_removes(cache: Cache) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from harness.cache import Cache\n"
        "with Cache(Path(sys.argv[1])).staging() as d:\n"
        "    (d / 'kernel.cubin').write_bytes(b'x' * 100); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(cache.directory)], check=False)
    assert done.returncode == -9
    assert cache.get(KEY) is None
    assert cache.info().temporary_bytes == 100
    store(cache)  # nothing stands in the way of the next build
    assert cache.prune().removed_temporaries == 0  # it may still run, for all that anyone knows
    (left,) = (cache.directory / "tmp").iterdir()
    os.utime(left, (time.time() - STALE_S - 1,) * 2)
    pruned = cache.prune()
    assert (pruned.removed_temporaries, pruned.removed_entries, pruned.freed_bytes) == (1, 0, 100)
    assert cache.get(KEY) is not None
    assert cache.info().temporary_bytes == 0


def test_prune_by_age_and_by_size_keeps_what_was_used_last(cache: Cache) -> None:
    now = time.time()
    for key, days in ((KEY, 40), (OTHER, 20), (THIRD, 1)):
        entry = store(cache, key, b"x" * 10_000).parent / "entry.json"
        os.utime(entry, (now - days * 86400,) * 2)
    assert cache.prune(older_than_s=30 * 86400).removed_entries == 1
    assert cache.get(KEY) is None
    assert (cache.directory / "builds" / OTHER).is_dir()
    one = cache.info().size_bytes // 2
    assert cache.prune(max_bytes=one).removed_entries == 1
    assert cache.get(OTHER) is None
    assert cache.get(THIRD) is not None
    assert cache.prune(max_bytes=0).removed_entries == 1
    assert cache.info().entries == 0


def test_use_counts_as_use(cache: Cache) -> None:
    entry = store(cache).parent / "entry.json"
    os.utime(entry, (1000.0, 1000.0))
    assert cache.info().oldest_use_unix_s == 1000
    assert cache.get(KEY) is not None
    assert cache.prune(older_than_s=3600).removed_entries == 0


def test_an_absent_cache_holds_nothing(cache: Cache) -> None:
    info = cache.info()
    assert (info.entries, info.size_bytes, info.oldest_use_unix_s) == (0, 0, None)
    assert cache.prune(max_bytes=0).removed_entries == 0
    assert not cache.directory.exists()


def test_a_read_only_cache_serves_hits_and_says_so_on_a_miss(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    store(cache)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    monkeypatch.setattr("os.utime", refuse)
    assert cache.get(KEY) is not None
    with pytest.raises(InfraError) as caught:
        store(cache, OTHER)
    message = str(caught.value)
    assert str(cache.directory) in message
    assert "not writable" in message
    assert "HGEMM_CACHE" in message


def test_a_directory_without_permission_is_reported_as_such(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from harness.cache import Cache; from harness.model import InfraError\n"
        "import os\n"
        "if os.getuid() == 0: os.setgid(65534); os.setuid(65534)\n"
        "try:\n"
        "    with Cache(Path(sys.argv[1])).staging(): print('staged')\n"
        "except InfraError as error: print(error)\n"
    )
    # A directory above the test's own that any user may search; permissions do not bind root, hence another user.
    parent = tmp_path / "locked"
    parent.mkdir(mode=0o555)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o111)
    done = subprocess.run([sys.executable, "-c", script, str(parent / "cache")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "is not writable (Permission denied)" in done.stdout


def test_a_file_in_the_place_of_the_cache_is_reported(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(InfraError, match="not writable"):
        store(Cache(tmp_path / "cache"))


@pytest.mark.parametrize("operation", ["rename", "write_text", "mkdir"])
def test_a_full_disk_is_the_machines_fault(cache: Cache, monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, operation, fail)
        with pytest.raises(InfraError) as caught:
            store(cache)
    assert caught.value.exit_code == 3
    assert "is full" in str(caught.value)
    assert str(cache.directory) in str(caught.value)
    assert cache.get(KEY) is None
    store(cache)
    assert cache.get(KEY) is not None


def test_commands(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HGEMM_CACHE", str(cache.directory))
    store(cache, content=b"x" * 2048)
    runner = CliRunner()
    info = json.loads(runner.invoke(app, ["info", "--json"], catch_exceptions=False).stdout)
    assert (info["entries"], info["directory"], info["schema_version"]) == (1, str(cache.directory), 1)
    text = runner.invoke(app, ["info"], catch_exceptions=False).stdout
    assert str(cache.directory) in text
    assert "1 built kernels, 2." in text
    result = runner.invoke(app, ["prune"], catch_exceptions=False)
    assert result.stdout == ""
    assert "removed 0 built kernels" in result.stderr
    pruned = json.loads(runner.invoke(app, ["prune", "--max-size", "1K", "--json"], catch_exceptions=False).stdout)
    assert (pruned["removed_entries"], cache.info().entries) == (1, 0)
    with pytest.raises(DataError, match="not a size"):
        runner.invoke(app, ["prune", "--max-size", "much"], catch_exceptions=False)
