"""Build: kernels to cubins and shared libraries, in parallel, through the cache, on machines without a GPU too."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from harness.artifacts import Artifact, BuildFailure, BuildRefusedError, BuildReport, BuildResult, entry_of
from harness.cache import Cache
from harness.compilers import (
    DEVICE_COMPILERS,
    Compiler,
    Log,
    compiler_environment,
    compiler_for,
    exceeded_limit,
    read_log,
    refusal,
)
from harness.elf import inspect_cubin, inspect_library
from harness.isolation import isolated
from harness.limits import Finished, Limits, ProcessGroups
from harness.model import DataError
from harness.native_elf import inspect_native
from harness.plan import Kernel, Language
from harness.profiles import DeviceProfile
from harness.record import Reason
from harness.sources import collect_sources, include_anything, read_inside

__all__ = ["Artifact", "BuildFailure", "BuildOptions", "BuildReport", "BuildResult", "build_kernels"]

BUILD_SCHEMA = 3
"""Part of every key: raise it when equal inputs no longer give an equal object or report."""

DEFAULT_LIMITS = Limits(seconds=120.0, memory_bytes=8 << 30, file_bytes=64 << 20)

Progress = Callable[[int, int, str], None]
"""Called with compilations done, compilations in all, and the source just done."""


@dataclass(frozen=True)
class BuildOptions:
    """How to build."""

    cache: Cache = field(default_factory=Cache.default)
    """Where results are kept."""
    jobs: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    """Compilers at a time."""
    compiler: str = "nvrtc"
    """What compiles CUDA C++ and PTX: `nvrtc` or `nvcc`."""
    limits: Limits = DEFAULT_LIMITS
    """What one compiler may use."""

    def __post_init__(self) -> None:
        if self.compiler not in DEVICE_COMPILERS:
            raise DataError(f"no compiler is called {self.compiler!r}; there are {' and '.join(DEVICE_COMPILERS)}.")


class _Unit(NamedTuple):
    """One compilation, which any number of kernels may share."""

    kernel: Kernel
    files: dict[str, bytes]
    compiler: Compiler | None
    flags: tuple[str, ...]
    architecture: str

    @property
    def key(self) -> str:
        """Hash of everything that decides the object."""
        values = {
            "schema": BUILD_SCHEMA,
            "language": self.kernel.language,
            "source": self.kernel.source,
            "files": {name: hashlib.sha256(data).hexdigest() for name, data in self.files.items()},
            "flags": self.flags,
            "compiler": self.compiler.identity if self.compiler else None,
            "architecture": self.architecture,
        }
        return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def build_kernels(
    root: Path,
    kernels: Iterable[Kernel],
    profile: DeviceProfile,
    options: BuildOptions | None = None,
    progress: Progress | None = None,
) -> dict[str, BuildResult]:
    """Build kernels of one submission for a device.

    Args:
        root: directory of the submission.
        kernels: what to build. Kernels that differ only in their entry share one compilation.
        profile: the device; none needs to be present.
        options: how to build.
        progress: called in this thread after each compilation.

    Returns:
        By `kernel.sha256()`, what was built or why not.

    Raises:
        InfraError: a compiler is missing, or the cache is not writable or full.
    """
    options = options or BuildOptions()
    wanted = {kernel.sha256(): kernel for kernel in kernels}
    units: dict[str, _Unit] = {}
    prepared: dict[str, str | BuildFailure] = {}
    for name, kernel in wanted.items():
        try:
            unit = _prepare(root, kernel, profile, options)
        except BuildRefusedError as error:
            prepared[name] = error.failure
            continue
        prepared[name] = unit.key
        units.setdefault(unit.key, unit)
    built = _build_all(units, options, progress)
    return {
        name: result if isinstance(result, BuildFailure) else entry_of(built[result], wanted[name])
        for name, result in prepared.items()
    }


def _prepare(root: Path, kernel: Kernel, profile: DeviceProfile, options: BuildOptions) -> _Unit:
    if profile.is_cpu != (kernel.language is Language.C):
        runs = "the cpu device runs C only" if profile.is_cpu else "CUDA devices run host code of language native only"
        raise BuildRefusedError(Reason.BUILD_ERROR, f"{kernel.source} is {kernel.language}; {runs}.")
    if kernel.language is Language.CUBIN:
        data = read_inside(root, kernel.source)
        if data is None or (kernel.generated_from and read_inside(root, kernel.generated_from) is None):
            absent = kernel.source if data is None else kernel.generated_from
            raise BuildRefusedError(Reason.BUILD_ERROR, f"{absent} does not exist.")
        return _Unit(kernel, {kernel.source: data}, None, (), profile.architecture)
    if kernel.language is Language.PTX:
        data = read_inside(root, kernel.source)
        if data is None:
            raise BuildRefusedError(Reason.BUILD_ERROR, f"{kernel.source} does not exist.")
        files = {kernel.source: data}
    else:
        files = collect_sources(root, kernel.source)
    headers = kernel.language is not Language.PTX and include_anything(files)
    compiler = compiler_for(kernel.language, options.compiler, headers)
    flags = compiler.flags(kernel, profile.architecture) if compiler else ()
    return _Unit(kernel, files, compiler, flags, profile.architecture)


def _build_all(units: dict[str, _Unit], options: BuildOptions, progress: Progress | None) -> dict[str, BuildResult]:
    results: dict[str, BuildResult] = {}
    # Leaving the inner block, by Ctrl-C too, kills the compilers, so that the threads which the outer one waits for end.
    with ThreadPoolExecutor(max(1, options.jobs), "build") as pool, ProcessGroups() as groups:
        futures = {pool.submit(_build, key, unit, options, groups): key for key, unit in units.items()}
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                key = futures[future]
                results[key] = future.result()
                if progress is not None:
                    progress(done, len(futures), units[key].kernel.source)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return results


def _build(key: str, unit: _Unit, options: BuildOptions, groups: ProcessGroups) -> BuildResult:
    if (stored := options.cache.get(key)) is not None:
        return Artifact(path=stored.path, key=key, report=stored.report, cached=True)
    try:
        with options.cache.staging() as directory:
            target = directory / ("kernel.so" if unit.kernel.language.is_host else "kernel.cubin")
            if unit.compiler is None:
                target.write_bytes(unit.files[unit.kernel.source])
                report = inspect_cubin(target.read_bytes(), None, unit.kernel.source, unit.architecture)
            else:
                report = _compile(unit, unit.compiler, target, options, groups)
            path = options.cache.publish(key, target, report)
    except BuildRefusedError as error:
        return error.failure
    return Artifact(path=path, key=key, report=report, cached=False)


def _compile(unit: _Unit, compiler: Compiler, target: Path, options: BuildOptions, groups: ProcessGroups) -> BuildReport:
    copy, scratch, log = (target.parent / name for name in ("source", "scratch", "log"))
    scratch.mkdir()
    for name, data in unit.files.items():
        path = copy / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    source = unit.kernel.source
    command = compiler.command(source, target, unit.flags)
    finished = groups.run(isolated(command, whole=False), copy, log, options.limits, compiler_environment(scratch))
    text = log.read_text(encoding="utf-8", errors="replace").replace(f"{copy}/", "").replace(f"{target.parent}/", "")
    read = read_log(text, source)
    if finished.returncode != 0 or not target.is_file():
        _explain(finished, text, read, target, options, source)
    _check_dependencies(compiler, target.parent, copy, source)
    if unit.kernel.language is Language.C:
        report = inspect_library(target.read_bytes(), source)
        return report.model_copy(update={"warnings": read.warnings})
    if unit.kernel.language is Language.NATIVE:
        report = inspect_native(target.read_bytes(), source, unit.architecture)
        return report.model_copy(update=read.of_device_code())
    ptx = b"".join(path.read_bytes() for path in target.parent.glob("*.ptx"))
    if unit.kernel.language is Language.PTX:
        ptx = unit.files[source]
    report = inspect_cubin(target.read_bytes(), ptx, source, unit.architecture)
    return report.model_copy(update=read.of_device_code())


def _explain(finished: Finished, text: str, log: Log, target: Path, options: BuildOptions, source: str) -> None:
    """Raise what a failed compilation means."""
    # A source can print anything, so the text alone proves nothing; temporary files that filled the disk may be gone.
    needed = options.limits.file_bytes if "No space left on device" in text else 1 << 20
    if options.cache.free_bytes() < needed:
        raise options.cache.full_error()
    written = max((path.stat().st_size for path in target.parent.rglob("*") if path.is_file()), default=0)
    if (limit := exceeded_limit(finished, text, written, options.limits)) is not None:
        raise BuildRefusedError(Reason.BUILD_LIMIT, f"{source}: the compiler exceeded its limit of {limit}.", log.tail)
    if finished.returncode < 0:
        message = f"{source}: the compiler was ended by signal {-finished.returncode}."
        raise BuildRefusedError(Reason.BUILD_ERROR, message, log.tail)
    raise BuildRefusedError(refusal(text), log.first_error, log.tail)


def _check_dependencies(compiler: Compiler, directory: Path, copy: Path, source: str) -> None:
    """Refuse a source that made its compiler read a file outside its copy and the system's headers."""
    allowed = [copy.resolve(), *(path.resolve() for path in compiler.system_directories)]
    for listing in directory.glob("*.d"):
        # Make's format: "target: file file \\\n file", blanks in names escaped by a backslash.
        _, _, names = listing.read_text(encoding="utf-8", errors="surrogateescape").partition(":")
        for name in names.replace("\\\n", " ").replace("\\ ", "\0").split():
            path = (copy / name.replace("\0", " ")).resolve()
            if path.parent.name == "scratch" or any(path.is_relative_to(place) for place in allowed):
                continue
            raise BuildRefusedError(Reason.FORBIDDEN, f"{source} reads {path}, which is outside the submission.")
