"""Limits of a build, and a build when its disk, its cache or its parent fails."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from builds import H200, built, cuda, failed, other, write

from harness.build import DEFAULT_LIMITS, Artifact, BuildOptions, build_kernels
from harness.cache import Cache
from harness.compilers import HostC, compiler_environment
from harness.isolation import missing
from harness.model import InfraError
from harness.plan import Kernel
from harness.record import Reason


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "submission" / "kernels").mkdir(parents=True)
    return tmp_path / "submission"


@pytest.fixture
def options(tmp_path: Path) -> BuildOptions:
    return BuildOptions(cache=Cache(tmp_path / "cache"), jobs=2)


# Limits

# Constant expressions that take minutes and gigabytes.
BOMB = """
template <int N, int D> struct Tree {
  static const long value = Tree<2 * N, D - 1>::value + Tree<2 * N + 1, D - 1>::value;
};
template <int N> struct Tree<N, 0> { static const long value = N; };
extern "C" __global__ void k(long *p) { *p = Tree<1, 24>::value; }
"""


def test_limit_of_time(root: Path, options: BuildOptions) -> None:
    write(root, k_cu=BOMB)
    options = dataclasses.replace(options, limits=DEFAULT_LIMITS._replace(seconds=1.0))
    failure = failed(root, cuda(), options)
    assert failure.reason is Reason.BUILD_LIMIT
    assert failure.message == "kernels/k.cu: the compiler exceeded its limit of 1 s."


def test_a_compiler_has_no_network_where_the_system_can_take_it_away(
    root: Path, options: BuildOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, k_c="void k(void) {}\n")
    monkeypatch.setattr(HostC, "command", lambda *_: ["sh", "-c", "readlink /proc/self/ns/net >&2; exit 1"])
    log = failed(root, other("c", "k.c", "k"), options).log_tail
    assert "net:[" in log
    assert (str(Path("/proc/self/ns/net").readlink()) in log) is bool(missing())


def test_limit_of_memory(root: Path, options: BuildOptions) -> None:
    write(root, k_cu=BOMB, k_c="char big[1 << 30] = {1};\nvoid k(void) {}\n")
    options = dataclasses.replace(options, limits=DEFAULT_LIMITS._replace(memory_bytes=600 << 20))
    failure = failed(root, cuda(), options)
    assert failure.reason is Reason.BUILD_LIMIT
    assert failure.message == f"kernels/k.cu: the compiler exceeded its limit of {600 << 20} bytes of memory."


@pytest.mark.parametrize(
    "kernel", [cuda(), other("c", "k.c", "k"), cuda(defines={"LOG": "1"})], ids=["object", "library", "log"]
)
def test_limit_of_output(root: Path, options: BuildOptions, kernel: Kernel) -> None:
    flood = "#ifdef LOG\n" + "#warning long\n" * 4000 + "#endif\n"
    table = "__constant__ char big[60000] = {1};\n" + "".join(f"#define N{i} {i}\n" for i in range(10))
    write(
        root,
        k_cu=f'{flood}{table}extern "C" __global__ void k(char *p) {{ *p = big[*p]; }}\n',
        k_c="char big[1 << 22] = {1};\nvoid k(void) {}\n",
    )
    options = dataclasses.replace(options, limits=DEFAULT_LIMITS._replace(file_bytes=40 << 10))
    failure = failed(root, kernel, options)
    assert failure.reason is Reason.BUILD_LIMIT
    assert failure.message.endswith(f"exceeded its limit of {40 << 10} bytes of output.")


def test_a_compiler_sees_nothing_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-O0")
    monkeypatch.setenv("CPATH", "/etc")
    environment = compiler_environment(tmp_path)
    assert not {"SECRET_TOKEN", "NVCC_APPEND_FLAGS", "CPATH"} & set(environment)
    assert environment["HOME"] == environment["TMPDIR"] == str(tmp_path)


# The cache under it


def test_a_corrupt_entry_is_rebuilt(root: Path, options: BuildOptions) -> None:
    write(root, k_cu='extern "C" __global__ void k(int *p) { *p = 1; }\n')
    first = built(root, cuda(), options)
    good = first.path.read_bytes()
    first.path.write_bytes(good[:-1] + b"\xff")
    second = built(root, cuda(), options)
    assert (second.cached, second.path, second.path.read_bytes()) == (False, first.path, good)
    assert built(root, cuda(), options).cached


def test_two_builders_of_one_kernel_both_succeed(root: Path, options: BuildOptions) -> None:
    write(root, k_cu='extern "C" __global__ void k(int *p) { *p = 1; }\n')
    results: list[Artifact] = []
    threads = [threading.Thread(target=lambda: results.append(built(root, cuda(), options))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert len({result.path for result in results}) == 1
    assert options.cache.info().entries == 1


def test_a_killed_build_leaves_no_lock(root: Path, options: BuildOptions) -> None:
    write(root, k_cu=BOMB)
    script = (
        "import sys; from pathlib import Path; from harness.build import *; from harness.build import BuildOptions\n"
        "from harness.cache import Cache; from harness.plan import Kernel; from harness.profiles import load_profile\n"
        "kernel = Kernel(language='cuda', source='kernels/k.cu', entry='k')\n"
        "build_kernels(Path(sys.argv[1]), [kernel], load_profile('h200'), BuildOptions(cache=Cache(Path(sys.argv[2]))))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(root), str(options.cache.directory)], process_group=0)
    temporary = options.cache.directory / "tmp"
    deadline = time.monotonic() + 30
    while not list(temporary.glob("*/source/kernels/k.cu")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert len(list(temporary.iterdir())) == 1
    write(root, k_cu='extern "C" __global__ void k() {}\n')
    assert not built(root, cuda(), options).cached
    (left,) = temporary.iterdir()
    for folder, _, names in os.walk(left):
        for name in ("", *names):
            os.utime(Path(folder, name), (1.0, 1.0))
    assert options.cache.prune().removed_temporaries == 1
    # What the killed parent left running ends at its limit of CPU time; here it is ended by hand.
    for status in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if str(status.readlink()).startswith(str(temporary)):
                os.kill(int(status.parent.name), signal.SIGKILL)
        except OSError:
            continue


def test_interrupting_a_build_ends_its_compilers(root: Path, options: BuildOptions) -> None:
    write(root, k_cu='extern "C" __global__ void k() {}\n', bomb_cu=BOMB)

    def interrupt(done: int, total: int, what: str) -> None:
        raise KeyboardInterrupt

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        build_kernels(root, [cuda(), cuda("bomb.cu")], H200, options, interrupt)
    assert time.monotonic() - start < options.limits.seconds / 2
    assert options.cache.info().temporary_bytes == 0


def test_a_full_disk_while_compiling_is_the_machines_fault(
    root: Path, options: BuildOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(root, k_cu="#error No space left on device\n")
    assert failed(root, cuda(), options).reason is Reason.BUILD_ERROR  # a source that only says so
    monkeypatch.setattr(Cache, "free_bytes", lambda self: 4096)
    with pytest.raises(InfraError, match="is full"):
        failed(root, cuda(), options)


def test_a_read_only_cache_is_the_machines_fault(root: Path, options: BuildOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    write(root, k_cu='extern "C" __global__ void k() {}\n')
    built(root, cuda(), options)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    assert built(root, cuda(), options).cached
    write(root, k_cu='extern "C" __global__ void k(int) {}\n')
    with pytest.raises(InfraError, match="not writable"):
        built(root, cuda(), options)
