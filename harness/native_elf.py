"""The rules of libraries for kind `native` on CUDA devices, read from the object.

A library is linked with nothing: whatever of the CUDA runtime it needs is an import, bound to the runtime that the worker
offers. So its imports say what it can call, and a list of names is a rule. Host code may have variables and allocate:
its state is no use to it, since inputs are new for every window.
"""

from __future__ import annotations

import re
import struct

from harness.artifacts import BuildRefusedError, BuildReport
from harness.elf import DYNAMIC_SYMBOLS, FUNCTION, HOST_IMPORTS, Elf, Symbol, inspect_device_code
from harness.record import Reason

EXPORTS = ("hgemm_create", "hgemm_destroy", "hgemm_run")
"""All that a library exports."""

_CUDA = """
__cudaGetKernel __cudaInitModule __cudaLaunchKernel __cudaPopCallConfiguration __cudaPushCallConfiguration
__cudaRegisterFatBinary __cudaRegisterFatBinaryEnd __cudaRegisterFunction __cudaRegisterVar __cudaUnregisterFatBinary
cudaDeviceGetAttribute cudaDeviceSynchronize cudaEventCreate cudaEventCreateWithFlags cudaEventDestroy
cudaEventElapsedTime cudaEventElapsedTime_v2 cudaEventRecord cudaEventSynchronize cudaFree cudaFuncGetAttributes
cudaFuncSetAttribute cudaFuncSetCacheConfig cudaGetDevice cudaGetDeviceProperties cudaGetDeviceProperties_v2
cudaGetErrorName cudaGetErrorString cudaGetLastError cudaGetSymbolAddress cudaLaunchCooperativeKernel cudaLaunchKernel
cudaLaunchKernelExC cudaMalloc cudaMemcpy cudaMemcpyAsync cudaMemcpyToSymbol cudaMemset cudaMemset2DAsync
cudaMemsetAsync cudaOccupancyAvailableDynamicSMemPerBlock cudaOccupancyMaxActiveBlocksPerMultiprocessor
cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cudaOccupancyMaxActiveClusters
cudaOccupancyMaxPotentialClusterSize cudaPeekAtLastError cudaRuntimeGetVersion cudaStreamCreate
cudaStreamCreateWithFlags cudaStreamDestroy cudaStreamSynchronize
cuTensorMapEncodeIm2col cuTensorMapEncodeIm2colWide cuTensorMapEncodeTiled cuTensorMapReplaceAddress
"""
_C = """
_ITM_deregisterTMCloneTable _ITM_registerTMCloneTable _Unwind_Resume __cxa_allocate_exception __cxa_atexit
__cxa_begin_catch __cxa_call_unexpected __cxa_end_catch __cxa_finalize __cxa_free_exception __cxa_guard_abort
__cxa_guard_acquire __cxa_guard_release __cxa_init_primary_exception __cxa_pure_virtual __cxa_rethrow
__cxa_throw __cxa_throw_bad_array_new_length __gmon_start__ __gxx_personality_v0 __libc_single_threaded
__pthread_key_create abort atexit bsearch calloc exit free malloc memchr qsort realloc strcmp strlen strncmp strstr
"""
NATIVE_IMPORTS = HOST_IMPORTS | frozenset(_CUDA.split()) | frozenset(_C.split())
"""Functions that a library may import: launches and their attributes, memory, events and streams for `hgemm_create`; C's
memory, mathematics and what C++ makes of its language. Not among them: what finds other functions, calls back, opens
files or sockets, starts threads, or changes the device."""
_CXX = re.compile(
    r"_Zn[wa]m(St11align_val_t)?(RKSt9nothrow_t)?|_Zd[la]Pv(m|St11align_val_t|mSt11align_val_t|RKSt9nothrow_t)?"
    r"|_ZSt\d+__throw_\w+|_ZSt9terminatev|_ZSt7nothrow|_ZT[ISV]\w+"
    r"|_ZNSt8ios_base4Init[CD]\dEv|_ZNK?St\d+(bad_\w+|exception|\w+_error|invalid_argument|out_of_range)([CD]\d|4what)\w*"
    r"|_ZNK?St7__cxx1112basic_string\w+|_ZSt\d+_Rb_tree_\w+|_ZNKSt8__detail20_Prime_rehash_policy\w+|_ZSt11_Hash_bytes\w*"
)
"""The same of C++: allocation, exceptions, strings and containers, and what including <iostream> alone brings."""
_ELF_MAGIC = b"\x7fELF\x02\x01"


def inspect_native(data: bytes, source: str, architecture: str) -> BuildReport:
    """What a library holds, after its rules were checked.

    Args:
        data: the shared library.
        source: name to use in messages.
        architecture: target such as sm_90a.

    Raises:
        BuildRefusedError: not an ELF64 object, imports or exports against the rules, or kernels that call into the driver.
    """
    try:
        symbols = Elf(data).symbols(DYNAMIC_SYMBOLS)
        check_imports(symbols, source)
        _check_exports(symbols, source)
        reports = [inspect_device_code(cubin, source, architecture) for cubin in cubins(data)]
    except (ValueError, IndexError, struct.error) as error:
        raise BuildRefusedError(Reason.BUILD_ERROR, f"{source} did not become a library: {error}.") from error
    return BuildReport(
        entries=EXPORTS,
        registers={name: count for report in reports for name, count in report.registers.items()},
        stack_bytes=max([0, *(report.stack_bytes for report in reports)]),
        static_shared_bytes=max([0, *(report.static_shared_bytes for report in reports)]),
    )


def check_imports(symbols: tuple[Symbol, ...], source: str) -> None:
    """Refuse imports that are not listed.

    Raises:
        BuildRefusedError: there is one.
    """
    imported = {symbol.name for symbol in symbols if symbol.section == 0 and symbol.name}
    strange = sorted(name for name in imported - NATIVE_IMPORTS if not _CXX.fullmatch(name))
    if strange:
        detail = f"imports {', '.join(strange[:5])}; it may launch its kernels, allocate, and compute, and nothing else"
        raise BuildRefusedError(Reason.FORBIDDEN, f"{source} {detail}.")


def kernel_names(data: bytes) -> frozenset[str]:
    """Names of all kernels that a library holds."""
    return frozenset(name for cubin in cubins(data) for name in Elf(cubin).kernels())


def cubins(data: bytes) -> list[bytes]:
    """The device code that nvcc put into a library, which it does not compress for us."""
    elf = Elf(data)
    held = b"".join(elf.content(section) for section in elf.sections if section.name == ".nv_fatbin")
    starts = [found.start() for found in re.finditer(re.escape(_ELF_MAGIC), held)]
    return [held[start:end] for start, end in zip(starts, [*starts[1:], len(held)], strict=True)]


def _check_exports(symbols: tuple[Symbol, ...], source: str) -> None:
    exported = {symbol.name for symbol in symbols if symbol.section and symbol.type == FUNCTION and symbol.name}
    absent = sorted(set(EXPORTS) - exported)
    if absent:
        detail = f'defines no {" and no ".join(absent)} (include <hgemm.h>, which declares them extern "C")'
        raise BuildRefusedError(Reason.BUILD_ERROR, f"{source} {detail}.")
