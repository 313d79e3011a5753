"""Compile one kernel with NVRTC or nvJitLink: the process that `harness.compilers` starts. Needs no device and no driver.

Run as a file, not as a module: it imports nothing of ours, so that it starts in a few hundredths of a second.

    python nvrtc.py probe                          print what is installed as JSON
    python nvrtc.py cuda SOURCE OBJECT FLAG...     CUDA C++ to cubin; the log goes to standard output
    python nvrtc.py ptx SOURCE OBJECT FLAG...      PTX to cubin
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple


class Built(NamedTuple):
    """What a compiler made; no cubin where it refused the source."""

    cubin: bytes | None
    ptx: bytes
    """What the cubin was assembled from."""
    log: str


def main(arguments: list[str]) -> int:
    """Run one command; 0 when it worked, 1 when the compiler refused the source."""
    if arguments == ["probe"]:
        sys.stdout.write(json.dumps(probe()))
        return 0
    language, source, target, *flags = arguments
    compile_source = {"cuda": compile_cuda, "ptx": assemble_ptx}[language]
    built = compile_source(Path(source).read_bytes(), source, flags)
    sys.stdout.write(built.log)
    if built.cubin is None:
        return 1
    Path(target).write_bytes(built.cubin)
    if language == "cuda":
        Path(target).with_suffix(".ptx").write_bytes(built.ptx)
    return 0


def probe() -> dict[str, Any]:
    """Versions of the two libraries (null where absent), and directories of CUDA headers with their identity."""
    from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

    found: dict[str, Any] = {}
    for name in ("nvrtc", "nvJitLink"):
        try:
            path = load_nvidia_dynamic_lib(name).abs_path
        except (DynamicLibNotFoundError, RuntimeError):
            found[name.lower()] = None
            continue
        # The start of a library holds its build id, which tells patch releases apart where its version does not.
        with Path(path or "").open("rb") as library:
            found[name.lower()] = f"{_version(name)} {hashlib.sha256(library.read(1 << 20)).hexdigest()[:16]}"
    include = _include_directories()
    return {**found, "include": [str(path) for path in include], "headers": _identity(include)}


def compile_cuda(source: bytes, name: str, flags: list[str]) -> Built:
    """CUDA C++ by NVRTC."""
    from cuda.bindings import nvrtc

    program = _checked(nvrtc.nvrtcCreateProgram(source, name.encode(), 0, [], []))
    status, *_ = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
    log = bytearray(_checked(nvrtc.nvrtcGetProgramLogSize(program)))
    _checked(nvrtc.nvrtcGetProgramLog(program, log))
    text = _text(log)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        return Built(None, b"", text or status.name)
    cubin = bytearray(_checked(nvrtc.nvrtcGetCUBINSize(program)))
    _checked(nvrtc.nvrtcGetCUBIN(program, cubin))
    ptx = bytearray(_checked(nvrtc.nvrtcGetPTXSize(program)))
    _checked(nvrtc.nvrtcGetPTX(program, ptx))
    return Built(bytes(cubin), bytes(ptx).rstrip(b"\0"), text)


def assemble_ptx(source: bytes, name: str, flags: list[str]) -> Built:
    """PTX by nvJitLink."""
    from cuda.bindings import nvjitlink

    handle = nvjitlink.create(len(flags), flags)
    failure = ""
    cubin = None
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, source, len(source), name)
        nvjitlink.complete(handle)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
    except nvjitlink.nvJitLinkError as error:
        cubin, failure = None, str(error)
    logs = []
    for size, read in (
        (nvjitlink.get_error_log_size(handle), nvjitlink.get_error_log),
        (nvjitlink.get_info_log_size(handle), nvjitlink.get_info_log),
    ):
        log = bytearray(size)
        read(handle, log)
        logs.append(_text(log))
    return Built(None if cubin is None else bytes(cubin), source, "\n".join([*logs, failure]))


def _text(log: bytearray) -> str:
    """Logs of the compiler and of the assembler, each ended by a NUL."""
    return log.replace(b"\0", b"").decode("utf-8", "replace")


def _version(name: str) -> str:
    if name == "nvrtc":
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
        return f"{major}.{minor}"
    from cuda.bindings import nvjitlink

    return "{}.{}".format(*nvjitlink.version())


def _checked(result: tuple[Any, ...]) -> Any:
    """What an NVRTC call returns beside its status."""
    if int(result[0]) != 0:
        raise RuntimeError(f"NVRTC: {result[0].name}")
    return result[1] if len(result) > 1 else None


def _include_directories() -> list[Path]:
    """Headers of the installed wheels, then those of a toolkit; the first that has a file wins."""
    wheels = [path for entry in sys.path for path in sorted(Path(entry or ".").glob("nvidia/*/include"))]
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    found = [*wheels, *(Path(home) / "include" for home in homes if home)]
    both = [directory.resolve() for path in found for directory in (path, path / "cccl")]
    return [directory for directory in dict.fromkeys(both) if directory.is_dir()]


def _identity(directories: list[Path]) -> str:
    """Hash over names and sizes of all headers: tells versions apart without reading thousands of files."""
    digest = hashlib.sha256()
    for directory in directories:
        for folder, subfolders, names in os.walk(directory):
            subfolders.sort()
            for name in sorted(names):
                path = Path(folder, name)
                digest.update(f"{path.relative_to(directory)} {path.stat().st_size}\n".encode())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
