"""Libraries of kind `native` for CUDA: built by nvcc, held to their rules, loaded, and called through the C ABI."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from builds import CPU, H200, built, failed, needs_nvcc, other, write

from harness import compilers
from harness.artifacts import BuildFailure, BuildRefusedError
from harness.build import BuildOptions, build_kernels
from harness.cache import Cache
from harness.elf import Symbol
from harness.model import InfraError
from harness.native_elf import EXPORTS, check_imports, cubins, kernel_names
from harness.plan import Kernel, Language
from harness.record import Reason

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "submissions" / "native-tiled"
NATIVE = Kernel(language=Language.NATIVE, source="kernels/k.cu", entry="hgemm_run")

HEAD = '#include <hgemm.h>\nextern "C" __global__ void own(void *c) { *static_cast<int *>(c) = 1; }\n'
CREATE = "int hgemm_create(const hgemm_problem *, void **state) { *state = nullptr; return 0; }\n"
RUN = """int hgemm_run(void *, const void *, const void *, void *c, void *, void *stream) {
  own<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(c);
  return cudaGetLastError() != cudaSuccess;
}
"""
DESTROY = "void hgemm_destroy(void *) {}\n"
PLAIN = HEAD + CREATE + RUN + DESTROY

OPENS = "#include <fstream>\n" + PLAIN.replace("return 0;", 'std::ifstream{"/x"}; return 0;', 1)

RUNTIME = r"""
#include <stdint.h>
static int launches;
static const void *last;
int stub_launches(void) { return launches; }
void **__cudaRegisterFatBinary(void *image) { static void *handle; return &handle; }
void __cudaRegisterFatBinaryEnd(void **handle) {}
void __cudaUnregisterFatBinary(void **handle) {}
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *a, void *b,
                            void *c, void *d, int *e) {}
int __cudaGetKernel(void **kernel, const void *host) { *kernel = (void *)host; return 0; }
unsigned __cudaPushCallConfiguration(uint64_t a, uint32_t b, uint64_t c, uint32_t d, uint64_t e, void *stream) { return 0; }
int __cudaPopCallConfiguration(void *a, void *b, uint64_t *c, void *stream) { return 0; }
int __cudaLaunchKernel(void *kernel) { ++launches; return 0; }
int cudaGetLastError(void) { return 0; }
int cudaGetDevice(int *device) { *device = 0; return 0; }
int cudaDeviceGetAttribute(int *value, int attribute, int device) { *value = 132; return 0; }
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *host, int threads, uint64_t shared,
                                                           unsigned flags) {
  *blocks = 4;
  return 0;
}
"""
"""As much of a CUDA runtime as the sample needs, to count its launches."""

CALLER = """
import ctypes, json, sys
from types import SimpleNamespace
from harness.devices import SubmissionFault, native_library
from harness.plan import Layout
from harness.problem import Problem
runtime = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
native_library._offer_runtime = lambda: None
library = native_library.Library(__import__("pathlib").Path(sys.argv[2]))
found = {"kernels": sorted(library.kernels), "launches": []}
for shape in sys.argv[3:]:
    before = runtime.stub_launches()
    state = library.create(Problem.parse(shape), Layout.NN)
    library.run(state, [SimpleNamespace(data_ptr=lambda: 256)] * 4, 0)
    library.destroy(state)
    found["launches"].append(runtime.stub_launches() - before)
try:
    library.create(Problem.parse("64x64x64"), Layout.TN)
except SubmissionFault as error:
    found["refused"] = [error.reason, str(error)]
print(json.dumps(found))
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "kernels").mkdir()
    return tmp_path


@pytest.fixture
def options(tmp_path: Path) -> BuildOptions:
    return BuildOptions(cache=Cache(tmp_path / "cache"), jobs=2)


def undefined(*names: str) -> tuple[Symbol, ...]:
    return tuple(Symbol(name, 0, 1, 0, 0, 0, 0) for name in names)


@needs_nvcc
def test_the_sample_builds_and_reports_its_kernels(options: BuildOptions) -> None:
    kernel = Kernel(language=Language.NATIVE, source="kernels/hgemm.cu", entry="hgemm_run")
    (artifact,) = build_kernels(SAMPLE, [kernel], H200, options).values()
    assert not isinstance(artifact, BuildFailure), artifact
    data = artifact.path.read_bytes()
    assert artifact.report.entries == EXPORTS
    assert set(artifact.report.registers) == kernel_names(data)
    assert ["reduce" in name or "tiles" in name for name in sorted(kernel_names(data))] == [True, True]
    assert artifact.report.spill_store_bytes == 0
    assert artifact.report.static_shared_bytes > 0
    assert len(cubins(data)) == 1


@needs_nvcc
def test_a_built_library_is_called_through_its_abi(options: BuildOptions, tmp_path: Path) -> None:
    """The real worker's code calls the real library; only the CUDA runtime is a stub."""
    kernel = Kernel(language=Language.NATIVE, source="kernels/hgemm.cu", entry="hgemm_run")
    (artifact,) = build_kernels(SAMPLE, [kernel], H200, options).values()
    assert not isinstance(artifact, BuildFailure), artifact
    stub = tmp_path / "runtime.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(stub), "-x", "c", "-"], input=RUNTIME, text=True, check=True)
    command = [sys.executable, "-c", CALLER, str(stub), str(artifact.path), "64x64x64", "8192x8192x64", "64x64x16384"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # One tile of C is cut along K and reduced; 16,384 tiles are not.
    assert found["launches"] == [2, 1, 2]
    assert found["refused"] == [Reason.LAUNCH_ERROR, "hgemm_create returned 1"]
    assert len(found["kernels"]) == 2


@needs_nvcc
def test_nothing_but_the_three_functions_is_exported(root: Path, options: BuildOptions) -> None:
    write(root, k_cu=PLAIN + 'extern "C" __attribute__((visibility("default"))) int offered(void) { return 1; }\n')
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", built(root, NATIVE, options).path], capture_output=True, text=True, check=True
    ).stdout
    assert sorted(line.split()[-1] for line in symbols.splitlines()) == sorted(EXPORTS)


@needs_nvcc
@pytest.mark.parametrize(
    ("source", "reason", "says"),
    [
        (HEAD + CREATE + RUN, Reason.BUILD_ERROR, "kernels/k.cu defines no hgemm_destroy"),
        (PLAIN.replace("#include <hgemm.h>", "struct hgemm_problem;"), Reason.BUILD_ERROR, "defines no hgemm_create and no"),
        ('#include "/etc/passwd"\n' + PLAIN, Reason.FORBIDDEN, "a path must be relative"),
        (PLAIN + 'asm(".incbin \\"/etc/hostname\\"");\n', Reason.FORBIDDEN, "reads /etc/hostname"),
        (
            PLAIN + "#include <cstdio>\n__global__ void says() { printf(\"%d\", 1); }\n",
            Reason.FORBIDDEN,
            "calls vprintf, which the driver provides",
        ),
        (OPENS, Reason.FORBIDDEN, "imports _ZNS"),
        (PLAIN + "int x = ;\n", Reason.BUILD_ERROR, "kernels/k.cu:9: error"),
    ],
    ids=["absent", "mangled", "includes", "incbin", "prints", "files", "syntax"],
)  # fmt: skip
def test_what_is_not_a_library_is_refused(root: Path, options: BuildOptions, source: str, reason: Reason, says: str) -> None:
    write(root, k_cu=source)
    failure = failed(root, NATIVE, options)
    assert (failure.reason, says in failure.message) == (reason, True), failure


@pytest.mark.parametrize(
    "name",
    [
        "fopen", "open", "socket", "pthread_create", "clone", "fork", "system", "mmap", "dlopen", "dlsym", "getenv", "signal",
        "cudaGetDriverEntryPoint", "cudaGetDriverEntryPointByVersion", "cuGetProcAddress_v2", "cudaLaunchHostFunc",
        "cudaStreamAddCallback", "cudaDeviceSetLimit", "cudaMallocAsync", "cudaStreamBeginCapture", "cudaStreamEndCapture",
        "cudaStreamGetCaptureInfo", "cudaThreadExchangeStreamCaptureMode", "cudaStreamWaitEvent", "cudaGraphLaunch",
        "cudaLibraryLoadData", "cudaIpcGetMemHandle", "cudaStreamSetAttribute", "cublasGemmEx", "cublasLtMatmul",
        "cuLaunchKernel", "cuModuleLoadData", "_ZNSt6thread4joinEv", "_ZSt4cout",
        "_ZNSt10filesystem6removeERKNS_7__cxx114pathERSt10error_code",
        "_ZNSt13basic_filebufIcSt11char_traitsIcEE4openEPKcSt13_Ios_Openmode",
    ],
)  # fmt: skip
def test_an_import_that_is_not_listed_is_forbidden(name: str) -> None:
    with pytest.raises(BuildRefusedError) as error:
        check_imports(undefined("cudaLaunchKernel", name), "kernels/k.cu")
    assert error.value.failure.reason is Reason.FORBIDDEN
    assert name in str(error.value)


def test_what_libraries_need_may_be_imported() -> None:
    names = (
        "__cudaRegisterFatBinary", "__cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMalloc", "cudaMemcpyAsync",
        "cudaOccupancyMaxActiveBlocksPerMultiprocessor", "cuTensorMapEncodeTiled", "memcpy", "malloc", "sqrtf",
        "_Znwm", "_ZdlPvm", "_ZnwmRKSt9nothrow_t", "_ZSt20__throw_length_errorPKc", "__cxa_guard_acquire",
        "_ZNSt13runtime_errorC1EPKc", "_ZTVN10__cxxabiv117__class_type_infoE",
        "_ZNSt8ios_base4InitC1Ev",
        "_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE9_M_createERmm",
    )  # fmt: skip
    check_imports(undefined(*names), "kernels/k.cu")
    assert len(names) == len(set(names))


def test_each_device_takes_host_code_of_its_own_language(root: Path, options: BuildOptions) -> None:
    write(root, k_cu=PLAIN, k_c="void k(void) {}\n")
    for kernel, profile, says in (
        (NATIVE, CPU, "the cpu device runs C only"),
        (other("c", "k.c", "k"), H200, "CUDA devices run host code of language native only"),
    ):
        (result,) = build_kernels(root, [kernel], profile, options).values()
        assert isinstance(result, BuildFailure)
        assert (result.reason, says in result.message) == (Reason.BUILD_ERROR, True), result


def test_without_nvcc_it_is_the_machine_that_cannot(root: Path, options: BuildOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    write(root, k_cu=PLAIN)
    monkeypatch.setattr(compilers.shutil, "which", lambda name, path=None: None)
    compilers._nvcc.cache_clear()
    with pytest.raises(InfraError, match="install the CUDA toolkit") as error:
        build_kernels(root, [NATIVE], H200, options)
    assert error.value.exit_code == 3
    compilers._nvcc.cache_clear()


def test_a_native_kernel_has_one_entry() -> None:
    with pytest.raises(ValueError, match="the entry of a native library is hgemm_run"):
        Kernel(language=Language.NATIVE, source="kernels/k.cu", entry="gemm")
