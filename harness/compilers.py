"""The compilers: their identity, the flags that the harness gives them, and what their logs mean."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import posixpath
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from harness.limits import Finished, Limits
from harness.model import InfraError, MissingDependencyError
from harness.plan import Kernel, Language
from harness.record import Reason

HARNESS_INCLUDE = Path(__file__).parent / "include"
"""Headers of the harness, which a source may include."""

DEVICE_COMPILERS = ("nvrtc", "nvcc")
"""What turns CUDA C++ and PTX into a cubin: NVRTC and nvJitLink, as pip installs them, or nvcc of a toolkit."""

_NVRTC_SCRIPT = Path(__file__).with_name("nvrtc.py")
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH")
_DEVICE_FLAGS = ("-std=c++17", "-DNDEBUG", "-Xptxas=-v")


class Compiler(Protocol):
    """One compiler. Everything but directories of the machine is in `identity` and `flags`, which enter the cache key."""

    @property
    def identity(self) -> str:
        """Name, version and whatever else of the machine decides the output."""

    def flags(self, kernel: Kernel, architecture: str, /) -> tuple[str, ...]:
        """Flags that decide the output."""

    def command(self, source: str, target: Path, flags: tuple[str, ...]) -> list[str]:
        """Command line, to be run in a copy of the submission.

        What it read is listed in `*.d`, and the PTX of CUDA C++ is left in `*.ptx`, beside `target`.
        """

    @property
    def system_directories(self) -> tuple[Path, ...]:
        """Where it may read, beside the copy of the submission."""


@dataclass(frozen=True)
class DeviceLibrary:
    """NVRTC for CUDA C++ or nvJitLink for PTX, in a process of its own."""

    language: Language
    identity: str
    system_directories: tuple[Path, ...]

    def flags(self, kernel: Kernel, architecture: str) -> tuple[str, ...]:
        """Flags that decide the output."""
        registers = () if kernel.max_registers is None else (f"-maxrregcount={kernel.max_registers}",)
        if self.language is Language.PTX:
            return (f"-arch={architecture}", "-verbose", "-Xptxas=-v", *registers)
        return (f"-arch={architecture}", *_DEVICE_FLAGS, *_defines(kernel), *registers, *_own_includes(kernel.source))

    def command(self, source: str, target: Path, flags: tuple[str, ...]) -> list[str]:
        """Command line; see Compiler."""
        include = [] if self.language is Language.PTX else [f"-I{path}" for path in self.system_directories]
        return [sys.executable, "-P", "-s", "-B", str(_NVRTC_SCRIPT), self.language, source, str(target), *flags, *include]


@dataclass(frozen=True)
class Nvcc:
    """nvcc of a toolkit, for CUDA C++ and PTX."""

    path: Path
    identity: str
    system_directories: tuple[Path, ...]

    def flags(self, kernel: Kernel, architecture: str) -> tuple[str, ...]:
        """Flags that decide the output."""
        registers = () if kernel.max_registers is None else (f"-maxrregcount={kernel.max_registers}",)
        target = f"-gencode=arch={architecture.replace('sm_', 'compute_')},code={architecture}"
        if kernel.language is Language.PTX:
            return ("-cubin", target, "-Xptxas=-v", *registers)
        return ("-cubin", target, "-x", "cu", *_DEVICE_FLAGS, *_defines(kernel), *registers, *_own_includes(kernel.source))

    def command(self, source: str, target: Path, flags: tuple[str, ...]) -> list[str]:
        """Command line; see Compiler."""
        written = (
            ["-MD", "-MF", str(target.with_name("include.d")), "-keep", f"-keep-dir={target.parent}"] if "-x" in flags else []
        )
        return [str(self.path), *flags, *written, f"-I{HARNESS_INCLUDE}", "-o", str(target), source]


@dataclass(frozen=True)
class NvccLibrary:
    """nvcc of a toolkit, for host code with its kernels: a shared library that is linked with C and C++ and nothing of CUDA."""

    path: Path
    identity: str
    system_directories: tuple[Path, ...]

    def flags(self, kernel: Kernel, architecture: str) -> tuple[str, ...]:
        """Flags that decide the output. Device code stays as it is, so that its kernels can be read from the library."""
        target = f"-gencode=arch={architecture.replace('sm_', 'compute_')},code={architecture}"
        form = ("-shared", "-cudart=none", "-no-compress", "-Xcompiler=-fPIC", "-O3", "-x", "cu")
        registers = () if kernel.max_registers is None else (f"-maxrregcount={kernel.max_registers}",)
        return (*form, target, *_DEVICE_FLAGS, *_defines(kernel), *registers, *_own_includes(kernel.source))

    def command(self, source: str, target: Path, flags: tuple[str, ...]) -> list[str]:
        """Command line; see Compiler."""
        assembled = f"-Xcompiler=-Wa\\,--MD\\,{target.with_name('assembler.d')}"
        written = ["-MD", "-MF", str(target.with_name("include.d")), assembled]
        exports = f"-Xlinker=--version-script={HARNESS_INCLUDE / 'hgemm.map'}"
        return [str(self.path), *flags, *written, exports, f"-I{HARNESS_INCLUDE}", "-o", str(target), source]


@dataclass(frozen=True)
class HostC:
    """The system's C compiler, for shared libraries."""

    path: Path
    identity: str
    system_directories: tuple[Path, ...]
    assembler_flags: tuple[str, ...]
    """What makes the assembler list the files that it read; `.incbin` escapes the preprocessor's list."""

    def flags(self, kernel: Kernel, _architecture: str) -> tuple[str, ...]:
        """Flags that decide the output."""
        code = ("-std=gnu17", "-O3", "-march=native", "-fno-openmp", "-fPIC", "-shared", "-nostartfiles", "-DNDEBUG")
        return (*code, "-Wl,-z,defs,-z,relro,-z,now", *_defines(kernel), *_own_includes(kernel.source))

    def command(self, source: str, target: Path, flags: tuple[str, ...]) -> list[str]:
        """Command line; see Compiler."""
        include = ["-MD", "-MF", str(target.with_name("include.d"))]
        assembled = f"-Wa,--MD,{target.with_name('assembler.d')}"
        fixed = [*include, *self.assembler_flags, assembled, f"-I{HARNESS_INCLUDE}"]
        return [str(self.path), *flags, *fixed, "-o", str(target), "-x", "c", source, "-lm"]


class Log(NamedTuple):
    """What a compiler's log means."""

    first_error: str
    warnings: tuple[str, ...]
    spill_store_bytes: int
    spill_load_bytes: int
    serialized_wgmma: bool
    tail: str

    def of_device_code(self) -> dict[str, object]:
        """What a report takes over of it."""
        names = ("warnings", "spill_store_bytes", "spill_load_bytes", "serialized_wgmma")
        return {name: getattr(self, name) for name in names}


def compiler_for(language: Language, choice: str, headers: bool = True) -> Compiler | None:
    """The compiler of a language; None for cubin, which needs none. `choice` is one of DEVICE_COMPILERS.

    NVRTC reads no header that a source does not name. Without `headers` it finds none and its identity says nothing of them, so
    that kernels which include nothing are built once for all machines.

    Raises:
        InfraError: there is none on this machine (MissingDependencyError where pip mends that).
    """
    if language is Language.CUBIN:
        return None
    if language is Language.C:
        return _host_c()
    if language is Language.NATIVE:
        nvcc = _nvcc()
        return NvccLibrary(nvcc.path, nvcc.identity, nvcc.system_directories)
    return _nvcc() if choice == "nvcc" else _device_library(language, headers)


def compiler_environment(scratch: Path) -> dict[str, str]:
    """All that a compiler sees of the environment. Temporary files go to `scratch`, and nothing is cached elsewhere."""
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
    home = {"HOME": str(scratch), "TMPDIR": str(scratch), "CUDA_CACHE_DISABLE": "1"}
    # SOURCE_DATE_EPOCH fixes __DATE__ and __TIME__, so that equal inputs give equal objects.
    return {"PATH": os.defpath, **passed, **home, "PYTHONPATH": path, "LC_ALL": "C.UTF-8", "SOURCE_DATE_EPOCH": "0"}


def read_log(text: str, source: str) -> Log:
    """Errors, warnings and the assembler's report in the log of any of the compilers."""
    lines = [re.sub(r"^\./", "", line) for line in text.splitlines()]
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", text)
    warnings = [line.strip()[:300] for line in lines if re.search(r"\bwarning\b|Potential Performance Loss", line)]
    return Log(
        first_error=next((error for line in lines if (error := _error(line, source))), "") or _last_resort(lines, source),
        warnings=tuple(dict.fromkeys(warnings))[:20],
        spill_store_bytes=sum(int(stores) for stores, _ in spills),
        spill_load_bytes=sum(int(loads) for _, loads in spills),
        serialized_wgmma="wgmma.mma_async instructions are serialized" in text,
        tail="\n".join(lines[-30:])[-4000:],
    )


def exceeded_limit(finished: Finished, text: str, written: int, limits: Limits) -> str | None:
    """Which limit made a compiler fail, as text; None where none did. `written` is the size of its largest file."""
    if finished.timed_out or finished.returncode == -signal.SIGXCPU or "CPU time limit exceeded" in text:
        return f"{limits.seconds:g} s"
    too_long = r"File size limit exceeded|File too large|died due to signal 25"
    if finished.returncode == -signal.SIGXFSZ or written >= limits.file_bytes - 512 or re.search(too_long, text):
        return f"{limits.file_bytes} bytes of output"
    if re.search(r"out of memory|memory exhausted|bad_alloc|Cannot allocate memory|MemoryError|OUT_OF_MEMORY", text, re.I):
        return f"{limits.memory_bytes} bytes of memory"
    return None


def refusal(text: str) -> Reason:
    """Why a compiler refused a source: device-side launches are forbidden, anything else is an error."""
    launch = r"kernel launch|[Uu](ndefined reference to|nresolved extern function) '_*cuda(CDP|Launch|Graph|GetParameter)"
    return Reason.FORBIDDEN if re.search(launch, text) else Reason.BUILD_ERROR


_ERRORS = (
    re.compile(r"^(?P<file>[^\s(][^(]*)\((?P<line>\d+)\): (?P<text>(?:catastrophic )?error\b.*)"),
    re.compile(r"^(?P<file>[^\s:]+):(?P<line>\d+)(?::\d+)?: (?P<text>(?:fatal )?[Ee]rror: .*)"),
    re.compile(r"^ptxas (?P<file>[^,]+), line (?P<line>\d+); (?P<text>(?:error|fatal)\s*:.*)"),
)


def _error(line: str, source: str) -> str | None:
    for pattern in _ERRORS:
        if found := pattern.match(line):
            file, text = found["file"], re.sub(r"\s+", " ", found["text"]).replace(" :", ":")
            if source.endswith(".ptx"):
                return f"{source}:{found['line']}: {text}"
            if file.endswith((".ptx", " ptx input")):
                return f"{source}: in its PTX: {text}"
            return f"{file}:{found['line']}: {text}"
    return None


def _last_resort(lines: list[str], source: str) -> str:
    marked = [line for line in lines if re.search(r"error|fatal|undefined reference|unrecognized", line, re.I)]
    first = (marked or lines or ["no message"])[0]
    return f"{source}: {' '.join(first.split())[:300]}"


def _defines(kernel: Kernel) -> tuple[str, ...]:
    return tuple(f"-D{name}={value}" for name, value in sorted(kernel.defines.items()))


def _own_includes(source: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(("-I.", f"-I{posixpath.dirname(source) or '.'}")))


def _run(command: list[str]) -> str:
    environment = compiler_environment(Path(os.environ.get("TMPDIR", "/tmp")))
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise InfraError(f"{' '.join(command[:2])} failed: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout + done.stderr


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _harness_headers() -> str:
    return _digest(*(text for path in sorted(HARNESS_INCLUDE.iterdir()) for text in (path.name, path.read_text())))


@functools.cache
def _probe() -> dict[str, str | list[str] | None]:
    try:
        found: dict[str, str | list[str] | None] = json.loads(
            _run([sys.executable, "-P", "-s", "-B", str(_NVRTC_SCRIPT), "probe"])
        )
    except InfraError as error:
        if "ModuleNotFoundError" in str(error):
            raise MissingDependencyError("cuda-bindings", "build", "Compiling kernels") from error
        raise
    return found


def _device_library(language: Language, headers: bool) -> DeviceLibrary:
    library, package = ("nvrtc", "nvidia-cuda-nvrtc") if language is Language.CUDA else ("nvjitlink", "nvidia-nvjitlink")
    found = _probe()
    if found[library] is None:
        raise MissingDependencyError(package, "build", f"Compiling {language} kernels")
    if language is Language.PTX:
        return DeviceLibrary(language, f"nvJitLink {found[library]}", ())
    if not headers:
        return DeviceLibrary(language, f"NVRTC {found[library]}", ())
    directories = tuple(Path(path) for path in found["include"] or ())
    if not any((path / "cuda_fp16.h").is_file() for path in directories):
        raise MissingDependencyError("nvidia-cuda-runtime", "build", "Compiling CUDA kernels (it holds cuda_fp16.h)")
    identity = f"NVRTC {found[library]}, headers {found['headers']} {_harness_headers()}"
    return DeviceLibrary(language, identity, (HARNESS_INCLUDE, *directories))


@functools.cache
def _nvcc() -> Nvcc:
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    places = os.pathsep.join([os.environ.get("PATH", os.defpath), *(f"{home}/bin" for home in homes if home)])
    found = shutil.which("nvcc", path=places)
    if found is None:
        raise InfraError(
            "nvcc is neither on PATH nor under CUDA_HOME; install the CUDA toolkit, or build with nvrtc what is not native."
        )
    # A wrapper on PATH may stand for a compiler elsewhere, so the toolkit is where nvcc says that it looks.
    said = re.search(r"TOP=(\S+)", _run([found, "--dryrun", "-x", "cu", "-cubin", os.devnull, "-o", os.devnull]))
    toolkit = Path(said[1]) if said else Path(found).resolve().parent.parent
    identity = f"nvcc {_digest(_run([found, '--version']), _host_c().identity)}"
    return Nvcc(Path(found), identity, (toolkit.resolve(), *_host_c().system_directories))


@functools.cache
def _host_c() -> HostC:
    found = shutil.which("cc")
    if found is None:
        raise InfraError("no C compiler was found: cc is not on PATH; install gcc.")
    version = _run([found, "--version"])
    macros = _run([found, "-march=native", "-dM", "-E", "-x", "c", os.devnull])
    listed = _run([found, "-v", "-E", "-x", "c", os.devnull]).partition("search starts here:\n")[2]
    directories = [Path(line.strip()).resolve() for line in listed.splitlines() if line.startswith(" /")]
    # Only GNU as lists what it read, so clang is told to use it.
    assembler = ("-fno-integrated-as",) if "clang" in version else ()
    identity = f"{version.splitlines()[0]}, native {_digest(version, macros, _harness_headers())}"
    return HostC(Path(found), identity, (HARNESS_INCLUDE, Path("/usr/include"), *directories), assembler)
