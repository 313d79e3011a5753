"""A reader of little-endian ELF64 objects, and what a cubin or a shared library tells about its kernels.

Field layout: System V ABI (ELF-64); CUDA's section names, symbol flags and attributes: as `readelf` and `ptxas -v` show
them for CUDA 12 and 13.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from harness.artifacts import BuildRefusedError, BuildReport
from harness.record import Reason

MACHINE_CUDA = 190
MAX_SYMBOLS, MAX_NAME_BYTES = 1 << 16, 1 << 16
"""Bounds on what a crafted object can make this reader do; real ones stay far below."""

SHARED_RESERVED_BYTES = 1024
"""Shared memory per CTA that the driver keeps, and that sections of kernels include, from sm_90 on."""

DYNAMIC_SYMBOLS = 11
"""Type of the section with the symbols that a library imports and exports."""
FUNCTION = 2
"""Type of a symbol."""

_SHT_NOBITS, _SHT_SYMTAB, _SHT_RELA, _SHT_REL = 8, 2, 4, 9
_SHF_WRITE, _SHF_ALLOC, _SHF_TLS = 1, 2, 0x400
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_RELRO, _PF_W = 1, 2, 0x6474E552, 2
_DT_NEEDED, _DT_STRTAB = 1, 5
_DYNAMIC_TAGS = frozenset(
    {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 14, 16, 20, 22, 23, 24, 30, 35, 36, 37}
    | {0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFF9, 0x6FFFFFFA, 0x6FFFFFFB, 0x6FFFFFFE, 0x6FFFFFFF}
    | {0x70000001, 0x70000003, 0x70000005}
)
"""What a library may tell the loader: its tables, and nothing that names code to run (DT_INIT and the like) or places to look
in. The last are of AArch64."""
_SYSTEM_LIBRARY = re.compile(r"lib(c|m|gcc_s)\.so\.\d+|ld-linux[\w-]*\.so\.\d+")
_STT_GNU_IFUNC, _STB_GLOBAL = 10, 1
_STO_CUDA_ENTRY = 0x10
_EIFMT_SVAL = 4
_EIATTR_FRAME_SIZE, _EIATTR_MIN_STACK_SIZE, _EIATTR_REGCOUNT = 0x11, 0x12, 0x2F
_DEVICE_LAUNCH = re.compile(r"^_*cuda(CDP|LaunchDevice|GetParameterBuffer|GraphLaunch)")
_CONSTANT_ADDRESS = re.compile(
    rb"cvta(?![\w$])(?!\s+\w|(?:\s*\.(?:to\s*\.const|to|global|shared|local|param|u32|u64)\b(?:::\w+)?)+\s*[%$\w])"
    rb"|generic[\x00-\x20\x7f]*[(/#]"
)
"""What may take the generic address of a constant. ptxas takes the modifiers of `cvta` in any order, with blanks, comments
and lines that begin with # before each, so whatever is not plainly another `cvta` counts."""

_IRELATIVE = {37, 1032}
"""Relocations that call a resolver at loading: R_X86_64_IRELATIVE, R_AARCH64_IRELATIVE."""
_MATH = """
acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs fdim floor fma fmax
fmin fmod frexp hypot ldexp llrint llround log log10 log1p log2 logb lrint lround modf nearbyint nextafter pow
remainder rint round roundeven scalbln scalbn sin sincos sinh sqrt tan tanh tgamma trunc
"""
HOST_IMPORTS = frozenset(
    {"memcpy", "memmove", "memset", "memcmp", "__memcpy_chk", "__memmove_chk", "__memset_chk", "__stack_chk_fail"}
    | {"__extendhfsf2", "__truncsfhf2", "__truncdfhf2", "__extendhfdf2"}
    | {name + suffix for name in _MATH.split() for suffix in ("", "f", "l")}
)
"""All that host code for the cpu target may import."""


class Section(NamedTuple):
    """A section header."""

    name: str
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int


class Segment(NamedTuple):
    """A program header."""

    type: int
    flags: int
    offset: int
    address: int
    file_size: int
    size: int


class Symbol(NamedTuple):
    """A symbol; `section` is 0 where it is undefined."""

    name: str
    type: int
    binding: int
    other: int
    section: int
    value: int
    size: int


class Elf:
    """An ELF64 object in memory.

    Raises:
        ValueError: the bytes are not a well-formed little-endian ELF64 object.
    """

    def __init__(self, data: bytes) -> None:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a little-endian ELF64 object")
        self._data = data
        self.abi_version = self._unpack("<B", 8)[0]
        self.machine = self._unpack("<H", 18)[0]
        self.flags = self._unpack("<I", 48)[0]
        (table,) = self._unpack("<Q", 40)
        count, names = self._unpack("<HH", 60)
        headers = [self._unpack("<IIQQQQIIQQ", table + 64 * index) for index in range(count)]
        if names >= count:
            raise ValueError("no section names")
        self.sections = tuple(Section(self._text(headers[names][4], header[0]), *header[1:7]) for header in headers)

    def segments(self) -> tuple[Segment, ...]:
        """What the loader maps."""
        (table,) = self._unpack("<Q", 32)
        (count,) = self._unpack("<H", 56)
        headers = (self._unpack("<IIQQQQQQ", table + 56 * index) for index in range(count))
        return tuple(Segment(*header[:4], *header[5:7]) for header in headers)

    def dynamic(self) -> list[tuple[int, int]]:
        """Tags and values in what the loader reads."""
        parts = [part for part in self.segments() if part.type == _PT_DYNAMIC]
        tables = [self._data[part.offset : part.offset + part.file_size // 16 * 16] for part in parts]
        return [entry for table in tables for entry in struct.iter_unpack("<QQ", table) if entry[0] != 0]

    def libraries(self) -> list[str]:
        """Names of the libraries that are loaded with it."""
        entries = self.dynamic()
        names = dict(entries).get(_DT_STRTAB, 0)
        return [self._text(names, value) for tag, value in entries if tag == _DT_NEEDED]

    def content(self, section: Section) -> bytes:
        """Bytes of a section (empty for one that takes no room in the file)."""
        if section.type == _SHT_NOBITS:
            return b""
        if section.offset + section.size > len(self._data):
            raise ValueError(f"section {section.name} ends past the file")
        return self._data[section.offset : section.offset + section.size]

    def symbols(self, table: int) -> tuple[Symbol, ...]:
        """All symbols of the tables of that section type, in order."""
        found = []
        for section in self.sections:
            if section.type != table:
                continue
            if section.link >= len(self.sections) or section.size > MAX_SYMBOLS * 24:
                raise ValueError("a symbol table without names, or too large")
            for fields in struct.iter_unpack("<IBBHQQ", self.content(section)):
                name, info, other, index, value, size = fields
                text = self._text(self.sections[section.link].offset, name)
                found.append(Symbol(text, info & 15, info >> 4, other, index, value, size))
        return tuple(found)

    def kernels(self) -> list[str]:
        """Names of the entries of a cubin."""
        symbols = self.symbols(_SHT_SYMTAB)
        return [
            symbol.name for symbol in symbols if symbol.type == FUNCTION and symbol.section and symbol.other & _STO_CUDA_ENTRY
        ]

    def relocated_symbols(self) -> set[int]:
        """Indices of the symbols that relocations of code and constants name."""
        found: set[int] = set()
        for section in self.sections:
            layout = {_SHT_RELA: "<QQq", _SHT_REL: "<QQ"}.get(section.type)
            if layout is not None and not section.name.endswith(".debug_frame"):
                found.update(entry[1] >> 32 for entry in struct.iter_unpack(layout, self.content(section)))
        return found

    def relocation_types(self) -> set[int]:
        """Types of all relocations."""
        sections = [section for section in self.sections if section.type == _SHT_RELA]
        return {entry[1] & 0xFFFFFFFF for section in sections for entry in struct.iter_unpack("<QQq", self.content(section))}

    def _unpack(self, layout: str, offset: int) -> tuple[int, ...]:
        try:
            return struct.unpack_from(layout, self._data, offset)
        except (struct.error, OverflowError) as error:
            raise ValueError("truncated") from error

    def _text(self, table: int, offset: int) -> str:
        start = table + offset
        end = self._data.find(b"\0", start, start + MAX_NAME_BYTES)
        if not 0 <= start < len(self._data) or end < 0:
            raise ValueError("a name lies outside the file, or is too long")
        return self._data[start:end].decode("utf-8", "replace")


def inspect_cubin(data: bytes, ptx: bytes | None, source: str, architecture: str) -> BuildReport:
    """What a cubin holds, after the rules of device code were checked.

    Args:
        data: the cubin.
        ptx: what it was assembled from, where that is known.
        source: name to use in messages.
        architecture: target such as sm_90a.

    Raises:
        BuildRefusedError: not a cubin, another architecture, writable module globals, or calls into the driver's runtime.
    """
    try:
        report = inspect_device_code(data, source, architecture)
        elf = Elf(data)
        _check_globals(elf, elf.symbols(_SHT_SYMTAB), ptx, source)
        _check_constants(elf, ptx, source)
        return report
    except (ValueError, IndexError, struct.error) as error:
        raise BuildRefusedError(Reason.BUILD_ERROR, f"{source} is not a cubin: {error}.") from error


def inspect_device_code(data: bytes, source: str, architecture: str) -> BuildReport:
    """The same without the rules on memory that outlives an operation, which host code has anyway.

    Raises:
        BuildRefusedError: another architecture, or calls into the driver's runtime.
        ValueError, IndexError, struct.error: not a cubin.
    """
    elf = Elf(data)
    if elf.machine != MACHINE_CUDA:
        raise ValueError(f"machine {elf.machine}, not CUDA")
    symbols = elf.symbols(_SHT_SYMTAB)
    _check_architecture(elf, source, architecture)
    _check_calls(symbols, source)
    return _report(elf, symbols)


def inspect_library(data: bytes, source: str) -> BuildReport:
    """The functions that a shared library exports.

    Raises:
        BuildRefusedError: not an ELF64 object, or against the rules of `check_library`.
    """
    try:
        elf = Elf(data)
        symbols = elf.symbols(DYNAMIC_SYMBOLS)
        check_library(elf, symbols, source)
    except (ValueError, struct.error) as error:
        raise BuildRefusedError(Reason.BUILD_ERROR, f"{source} did not become a shared library: {error}.") from error
    return BuildReport(entries=tuple(sorted({s.name for s in symbols if s.type == FUNCTION and s.section and s.name})))


def check_library(elf: Elf, symbols: tuple[Symbol, ...], source: str) -> None:
    """The rules of host code for the cpu target: no state, nothing that runs at loading, memory and math functions only.

    Raises:
        BuildRefusedError: it breaks one of them.
    """
    imported = sorted(s.name for s in symbols if s.section == 0 and s.name and s.name not in HOST_IMPORTS)
    if imported:
        detail = f"imports {', '.join(imported[:5])}; it may import memory and math functions of C only"
        raise BuildRefusedError(Reason.FORBIDDEN, f"{source} {detail}.")
    early = [s.name for s in elf.sections if s.name.startswith((".init", ".fini", ".preinit")) and s.size]
    # A source can add to the linker's table, before it: what names code, what comes twice, and libraries of its own.
    tags = Counter(tag for tag, _ in elf.dynamic())
    early += [f"dynamic tag {tag:#x}" for tag in tags if tag not in _DYNAMIC_TAGS or (tags[tag] > 1 and tag != _DT_NEEDED)]
    early += [name for name in elf.libraries() if not _SYSTEM_LIBRARY.fullmatch(name)]
    if early or elf.relocation_types() & _IRELATIVE or any(s.type == _STT_GNU_IFUNC for s in symbols):
        raise BuildRefusedError(
            Reason.FORBIDDEN, f"{source} has code that runs when it is loaded ({', '.join(early) or 'ifunc'})."
        )
    if writable := _writable(elf):
        detail = "has variables that outlive an operation; state between operations is forbidden, so use the workspace"
        raise BuildRefusedError(Reason.FORBIDDEN, f"{source} {detail} ({', '.join(writable)}).")


def _writable(elf: Elf) -> list[str]:
    """Sections that can be written once the library is loaded and its addresses are bound.

    A section's name and its own flags say little: the linker puts read-only ones into writable segments too.
    """
    segments = elf.segments()
    written = [s for s in segments if s.type == _PT_LOAD and s.flags & _PF_W]
    sealed = [s for s in segments if s.type == _PT_GNU_RELRO]
    found = []
    for section in elf.sections:
        if not section.flags & _SHF_ALLOC or not section.size:
            continue
        state = section.flags & _SHF_WRITE or _overlaps(section, written)
        if section.flags & _SHF_TLS or (state and not _lies_in(section, sealed)):
            found.append(section.name)
    return found


def _overlaps(section: Section, segments: list[Segment]) -> bool:
    end = section.address + section.size
    return any(section.address < segment.address + segment.size and segment.address < end for segment in segments)


def _lies_in(section: Section, segments: list[Segment]) -> bool:
    end = section.address + section.size
    return any(segment.address <= section.address and end <= segment.address + segment.size for segment in segments)


def _check_architecture(elf: Elf, source: str, architecture: str) -> None:
    built = (elf.flags >> 8 if elf.abi_version >= 8 else elf.flags) & 0xFF
    wanted = int(architecture.removeprefix("sm_").rstrip("af"))
    # Code of one architecture runs on later ones of the same major version only.
    if built // 10 != wanted // 10 or built > wanted:
        raise BuildRefusedError(Reason.BUILD_ERROR, f"{source} is code for sm_{built}; {architecture} cannot run it.")


def _check_globals(elf: Elf, symbols: tuple[Symbol, ...], ptx: bytes | None, source: str) -> None:
    # NVRTC emits every constant of every header as a global, with relocations. A name that occurs once in the PTX is
    # declared there and used by nothing; without PTX, what no relocation names is out of the reach of instructions.
    words = Counter(re.findall(rb"[\w$]+", ptx or b""))
    used = {number for number in elf.relocated_symbols() if words[symbols[number].name.encode()] != 1}
    for index, section in enumerate(elf.sections):
        writable = section.flags & _SHF_WRITE and section.flags & _SHF_ALLOC
        if not (writable or section.name.startswith(".nv.global")) or section.name.startswith((".nv.shared", ".nv.local")):
            continue
        names = sorted(s.name or section.name for number, s in enumerate(symbols) if s.section == index and number in used)
        if not names:
            continue
        raise BuildRefusedError(
            Reason.FORBIDDEN,
            f"{source} has module globals that a kernel can write ({', '.join(names[:5])}); state between "
            "operations is forbidden, so use the workspace, and a table argument or __constant__ for constants.",
        )


def _check_constants(elf: Elf, ptx: bytes | None, source: str) -> None:
    # A store through the generic address of a constant works, and lasts as long as the module: measured on an H200.
    if ptx is None:
        taken = any(section.name == ".nv.constant3" and section.size for section in elf.sections)
        what = "has __constant__ data, and without PTX nothing shows that it never stores there"
    else:
        taken = _CONSTANT_ADDRESS.search(ptx) is not None
        what = "takes the address of __constant__ data, through which a kernel can store"
    if taken:
        raise BuildRefusedError(
            Reason.FORBIDDEN, f"{source} {what}; index the array where it is declared, or use a table argument."
        )


def _check_calls(symbols: tuple[Symbol, ...], source: str) -> None:
    for symbol in symbols:
        outside = symbol.section == 0 and symbol.binding == _STB_GLOBAL and not symbol.name.startswith(".nv.") and symbol.name
        if outside or _DEVICE_LAUNCH.match(symbol.name):
            raise BuildRefusedError(
                Reason.FORBIDDEN,
                f"{source} calls {symbol.name}, which the driver provides; kernels may not launch, allocate or print.",
            )


def _report(elf: Elf, symbols: tuple[Symbol, ...]) -> BuildReport:
    entries = elf.kernels()
    registers: dict[str, int] = {}
    stack = 0
    for section in elf.sections:
        if section.name != ".nv.info":
            continue
        for attribute, index, value in _attributes(elf.content(section)):
            if attribute == _EIATTR_REGCOUNT:
                registers[symbols[index].name] = value
            elif attribute in (_EIATTR_FRAME_SIZE, _EIATTR_MIN_STACK_SIZE):
                stack = max(stack, value)
    reserved = SHARED_RESERVED_BYTES if any(s.name == ".nv.reservedSmem.offset0" for s in symbols) else 0
    shared = [s.size - reserved for s in elf.sections if s.name.removeprefix(".nv.shared.") in entries]
    return BuildReport(
        entries=tuple(sorted(entries)),
        registers={name: registers[name] for name in sorted(entries) if name in registers},
        stack_bytes=stack,
        static_shared_bytes=max([0, *shared]),
    )


def _attributes(info: bytes) -> Iterator[tuple[int, int, int]]:
    """(attribute, symbol index, value) for those attributes of `.nv.info` that are such pairs."""
    offset = 0
    while offset + 4 <= len(info):
        layout, attribute, size = struct.unpack_from("<BBH", info, offset)
        offset += 4
        if layout != _EIFMT_SVAL:
            continue
        if size == 8 and offset + 8 <= len(info):
            yield attribute, *struct.unpack_from("<II", info, offset)
        offset += size
