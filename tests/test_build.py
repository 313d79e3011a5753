"""The build without a device. Compilers are real; each test has a cache of its own."""

from __future__ import annotations

import dataclasses
import random
import shutil
from pathlib import Path

import pytest
from builds import COMPILERS, CPU, H200, PTX, built, cuda, failed, needs_nvcc, other, write

from harness.artifacts import BuildRefusedError
from harness.build import Artifact, BuildFailure, BuildOptions, BuildReport, build_kernels
from harness.cache import Cache
from harness.compilers import read_log
from harness.elf import Elf, inspect_cubin
from harness.model import DataError, InfraError, MissingDependencyError
from harness.record import Reason

HALVES = """
#include <cuda_fp16.h>
#include "scale.cuh"
extern "C" __global__ void scale(__half *p) { p[threadIdx.x] = __hmul(p[threadIdx.x], __float2half(SCALE)); }
extern "C" __global__ void twice(__half *p) { p[threadIdx.x] = __hadd(p[threadIdx.x], p[threadIdx.x]); }
"""

# One m64n8k16 product of shared tiles; with BAD, accumulators are touched while the pipeline runs.
WGMMA = """
__device__ unsigned long long tile(void *p) {
  return (unsigned long long)(((unsigned)__cvta_generic_to_shared(p) & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
extern "C" __global__ void __launch_bounds__(128) product(float *out, int n) {
  __shared__ __align__(1024) unsigned short a[4096], b[4096];
  float d[4] = {0, 0, 0, 0};
  for (int i = 0; i < n; i++) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(tile(a)), "l"(tile(b)));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#ifdef BAD
    d[0] += 1.0f;
#endif
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }
  for (int i = 0; i < 4; i++) out[threadIdx.x * 4 + i] = d[i];
}
"""

SPILLING = """
extern "C" __global__ void spill(float *p, int n) {
  float v[96];
  __shared__ float s[96];
#pragma unroll
  for (int i = 0; i < 96; i++) v[i] = p[i * n + threadIdx.x];
  s[threadIdx.x % 96] = v[0];
  __syncthreads();
  for (int j = 0; j < n; j++)
#pragma unroll
    for (int i = 0; i < 96; i++) v[i] = v[i] * v[(i + 7) % 96] + s[i];
#pragma unroll
  for (int i = 0; i < 96; i++) p[i * n + threadIdx.x] = v[i];
}
"""

C = """
#include <math.h>
#include <stdint.h>
#include "helper.h"
void multiply(const _Float16 *a, const _Float16 *b, _Float16 *c, void *w, int64_t m, int64_t n, int64_t k) {
  c[0] = (_Float16)helper(fmaf((float)a[0], (float)b[0], 0.0f));
}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "submission" / "kernels").mkdir(parents=True)
    return tmp_path / "submission"


@pytest.fixture
def options(tmp_path: Path) -> BuildOptions:
    return BuildOptions(cache=Cache(tmp_path / "cache"), jobs=2)


# What comes out


@pytest.mark.parametrize("compiler", COMPILERS)
def test_cuda_becomes_a_cubin_and_the_second_call_is_a_hit(root: Path, options: BuildOptions, compiler: str) -> None:
    options = dataclasses.replace(options, compiler=compiler)
    write(root, halves_cu=HALVES, scale_cuh="#define SCALE 3.0f\n")
    kernels = [cuda("halves.cu", "scale"), cuda("halves.cu", "twice"), cuda("halves.cu", "thrice")]
    seen: list[tuple[int, int, str]] = []
    first = build_kernels(root, kernels, H200, options, lambda *step: seen.append(step))
    assert seen == [(1, 1, "kernels/halves.cu")]  # one compilation for all entries
    scale, twice, thrice = (first[kernel.sha256()] for kernel in kernels)
    assert isinstance(scale, Artifact)
    assert isinstance(twice, Artifact)
    assert (scale.cached, scale.path) == (False, twice.path)
    assert scale.report.entries == ("scale", "twice")
    assert set(scale.report.registers) == {"scale", "twice"}
    assert all(8 <= count <= 32 for count in scale.report.registers.values())
    assert (scale.report.spill_store_bytes, scale.report.spill_load_bytes, scale.report.serialized_wgmma) == (0, 0, False)
    elf = Elf(scale.path.read_bytes())
    assert (elf.machine, elf.flags >> 8 & 0xFF) == (190, 90)
    assert isinstance(thrice, BuildFailure)
    assert thrice.reason is Reason.BUILD_ERROR
    assert "has no entry thrice; it has scale, twice" in thrice.message
    again = build_kernels(root, kernels, H200, options)[kernels[0].sha256()]
    assert again == scale.model_copy(update={"cached": True})


@pytest.mark.parametrize("compiler", COMPILERS)
def test_wgmma_proves_sm_90a_and_serialisation_is_reported(root: Path, options: BuildOptions, compiler: str) -> None:
    options = dataclasses.replace(options, compiler=compiler)
    write(root, wgmma_cu=WGMMA)
    good = built(root, cuda("wgmma.cu", "product"), options).report
    bad = built(root, cuda("wgmma.cu", "product", defines={"BAD": "1"}), options).report
    assert (good.serialized_wgmma, bad.serialized_wgmma) == (False, True)
    assert good.static_shared_bytes == 16384
    assert any("Potential Performance Loss" in warning for warning in bad.warnings)


def test_spills_and_stack_are_reported(root: Path, options: BuildOptions) -> None:
    write(root, spill_cu=SPILLING)
    report = built(root, cuda("spill.cu", "spill", max_registers=32), options).report
    assert report.registers == {"spill": 32}
    assert report.spill_store_bytes is not None
    assert report.spill_store_bytes > 64
    assert report.spill_load_bytes is not None
    assert report.spill_load_bytes > 64
    assert report.stack_bytes > 64
    assert report.static_shared_bytes == 384
    free = built(root, cuda("spill.cu", "spill", max_registers=128), options).report
    assert free.registers["spill"] > 32


@pytest.mark.parametrize("compiler", COMPILERS)
def test_ptx_and_its_errors(root: Path, options: BuildOptions, compiler: str) -> None:
    options = dataclasses.replace(options, compiler=compiler)
    write(root, fill_ptx=PTX, bad_ptx=PTX.replace("st.global.u32", "st.global.u33"))
    bad = failed(root, other("ptx", "bad.ptx", "fill"), options)
    assert bad.reason is Reason.BUILD_ERROR
    assert bad.message.startswith("kernels/bad.ptx:10: ")
    good = built(root, other("ptx", "fill.ptx", "fill"), options)
    assert good.report.entries == ("fill",)
    assert good.report.registers["fill"] > 0


def test_a_cubin_is_checked_and_copied(root: Path, options: BuildOptions) -> None:
    write(root, wgmma_cu=WGMMA, junk_cubin=b"\x7fELF junk", torn_cubin=b"")
    made = built(root, cuda("wgmma.cu", "product"), options)
    data = made.path.read_bytes()
    write(root, given_cubin=data, torn_cubin=data[: len(data) // 2])
    given = other("cubin", "given.cubin", "product", generated_from="kernels/wgmma.cu")
    copied = built(root, given, options)
    assert copied.path.read_bytes() == data
    assert copied.report.registers == made.report.registers
    assert copied.report.spill_store_bytes is None  # nobody said
    assert built(root, given, options).cached
    options.cache.prune(max_bytes=0)
    for name in ("junk", "torn"):
        broken = failed(root, given.model_copy(update={"source": f"kernels/{name}.cubin"}), options)
        assert f"kernels/{name}.cubin is not a cubin" in broken.message
    a100 = H200.model_copy(update={"architecture": "sm_80"})
    (wrong,) = build_kernels(root, [given], a100, options).values()
    assert isinstance(wrong, BuildFailure)
    assert "is code for sm_90; sm_80 cannot run it" in wrong.message
    absent = failed(root, given.model_copy(update={"generated_from": "kernels/lost.cu"}), options)
    assert absent.message == "kernels/lost.cu does not exist."


def test_a_damaged_cubin_is_refused_or_read_but_never_breaks_the_reader(root: Path, options: BuildOptions) -> None:
    write(root, wgmma_cu=WGMMA)
    data = built(root, cuda("wgmma.cu", "product"), options).path.read_bytes()
    generator = random.Random(7)
    outcomes = set()
    for _ in range(1500):
        damaged = bytearray(data)
        # Headers lie in the first and the last part of a cubin.
        for position in generator.choices([*range(64), *range(len(data) // 2, len(data))], k=3):
            damaged[position] = generator.randrange(256)
        try:
            outcomes.add(type(inspect_cubin(bytes(damaged), None, "k.cubin", "sm_90a")))
        except BuildRefusedError as error:
            outcomes.add(type(error))
    assert outcomes == {BuildReport, BuildRefusedError}


def test_c_becomes_a_library(root: Path, options: BuildOptions) -> None:
    import ctypes

    write(root, gemm_c=C, helper_h="static float helper(float x) { return x * FACTOR; }\n")
    artifact = built(root, other("c", "gemm.c", "multiply", defines={"FACTOR": "2.0f"}), options)
    assert artifact.report.entries == ("multiply",)
    half = ctypes.c_uint16 * 1
    a, b, c = half(0x4200), half(0x4400), half(0)  # 3 · 4 · 2
    ctypes.CDLL(str(artifact.path)).multiply(a, b, c, None, *(ctypes.c_int64(1),) * 3)
    assert c[0] == 0x4E00  # 24
    assert built(root, other("c", "gemm.c", "multiply", defines={"FACTOR": "2.0f"}), options).cached


# What enters the key


@needs_nvcc
def test_everything_that_decides_the_object_changes_the_key(root: Path, options: BuildOptions) -> None:
    write(root, halves_cu=HALVES, scale_cuh="#define SCALE 3.0f\n", unused_cuh="int x;\n")
    kernel = cuda("halves.cu", "scale")
    keys = [built(root, kernel, options).key]
    write(root, unused_cuh="int y;\n")
    assert built(root, kernel, options).key == keys[0]  # a header that is not included decides nothing
    assert built(root, kernel.model_copy(update={"shared_carveout_percent": 50}), options).key == keys[0]
    write(root, scale_cuh="#define SCALE 4.0f\n")
    keys.append(built(root, kernel, options).key)
    keys.append(built(root, kernel.model_copy(update={"defines": {"X": "1"}}), options).key)
    keys.append(built(root, kernel.model_copy(update={"defines": {"X": "2"}}), options).key)
    keys.append(built(root, kernel.model_copy(update={"max_registers": 64}), options).key)
    keys.append(built(root, kernel, dataclasses.replace(options, compiler="nvcc")).key)
    (a100,) = build_kernels(root, [kernel], H200.model_copy(update={"architecture": "sm_80"}), options).values()
    assert isinstance(a100, Artifact)
    keys.append(a100.key)
    assert len(set(keys)) == len(keys)


def test_nested_headers_enter_the_key(root: Path, options: BuildOptions) -> None:
    (root / "kernels" / "deep").mkdir()
    (root / "kernels" / "deep" / "a.cuh").write_text('#pragma once\n#include "b.cuh"\n#include <kernels/c.cuh>\n')
    (root / "kernels" / "deep" / "b.cuh").write_text("#define B 1\n")
    write(root, c_cuh="#define C 2\n", k_cu='#include "deep/a.cuh"\nextern "C" __global__ void k(int *p) { *p = B + C; }\n')
    first = built(root, cuda(), options)
    (root / "kernels" / "deep" / "b.cuh").write_text("#define B 3\n")
    second = built(root, cuda(), options)
    assert first.key != second.key
    assert first.path.read_bytes() != second.path.read_bytes()


@pytest.mark.parametrize(("text", "same"), [("", True), ("#include <cuda_fp16.h>\n", False), ('#include "own.cuh"\n', False)])
def test_kernels_that_include_nothing_are_built_once_for_all_machines(
    root: Path, options: BuildOptions, monkeypatch: pytest.MonkeyPatch, text: str, same: bool
) -> None:
    from harness import compilers

    write(root, own_cuh="", k_cu=text + 'extern "C" __global__ void k(int *p) { *p = 1; }\n')
    here = built(root, cuda(), options)
    probed = compilers._probe()
    monkeypatch.setattr(compilers, "_probe", lambda: {**probed, "headers": "those of another machine"})
    there = built(root, cuda(), options)
    assert (there.key == here.key, there.cached) == (same, same)


# What goes wrong


@pytest.mark.parametrize("compiler", COMPILERS)
def test_errors_name_file_and_line(root: Path, options: BuildOptions, compiler: str) -> None:
    options = dataclasses.replace(options, compiler=compiler)
    write(
        root, k_cu='#include "h.cuh"\nextern "C" __global__ void k() {}\n', h_cuh="\n\n__device__ int f() { return nothing; }\n"
    )
    failure = failed(root, cuda(), options)
    assert failure.reason is Reason.BUILD_ERROR
    assert failure.message == 'kernels/h.cuh:3: error: identifier "nothing" is undefined'
    assert "nothing" in failure.log_tail
    assert str(options.cache.directory) not in failure.log_tail


def test_errors_of_other_stages(root: Path, options: BuildOptions) -> None:
    write(
        root,
        syntax_c="void k(void) {\n  nothing;\n}\n",
        link_c="void nothing(void);\nvoid k(void) { nothing(); }\n",
        shared_cu='extern "C" __global__ void k(int *p) { __shared__ int s[100000]; s[*p] = 1; __syncthreads(); *p = s[1]; }\n',
        asm_cu='extern "C" __global__ void k() { asm volatile("foo.bar;"); }\n',
        nolink_cu="__global__ void k() {}\n",
    )
    assert failed(root, other("c", "syntax.c", "k"), options).message.startswith("kernels/syntax.c:2: error: ")
    assert "undefined reference to `nothing'" in failed(root, other("c", "link.c", "k"), options).message
    assert "uses too much shared data" in failed(root, cuda("shared.cu"), options).message
    assert failed(root, cuda("asm.cu"), options).message.startswith("kernels/asm.cu: in its PTX: error: ")
    assert failed(root, cuda("lost.cu"), options).message == "kernels/lost.cu does not exist."
    (mangled,) = build_kernels(root, [cuda("nolink.cu")], H200, options).values()
    assert isinstance(mangled, BuildFailure)
    assert "it has _Z1kv" in mangled.message
    assert 'extern "C"' in mangled.message


def test_the_cpu_runs_c_only(root: Path, options: BuildOptions) -> None:
    write(root, k_cu='extern "C" __global__ void k() {}\n')
    (result,) = build_kernels(root, [cuda()], CPU, options).values()
    assert isinstance(result, BuildFailure)
    assert "the cpu device runs C only" in result.message


def test_one_bad_kernel_does_not_stop_the_others(root: Path, options: BuildOptions) -> None:
    write(root, good_cu='extern "C" __global__ void k() {}\n', bad_cu="?\n", worse_cu='#include "/etc/passwd"\n')
    kernels = [cuda("bad.cu"), cuda("good.cu"), cuda("worse.cu")]
    results = build_kernels(root, kernels, H200, options)
    assert [isinstance(results[kernel.sha256()], Artifact) for kernel in kernels] == [False, True, False]


# Compilers that are not there


def test_missing_compilers_say_how_to_get_them(root: Path, options: BuildOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness import compilers

    write(root, k_cu='extern "C" __global__ void k() {}\n', k_c="void k(void) {}\n", k_ptx=PTX)
    with pytest.raises(DataError, match="nvrtc and nvcc"):
        BuildOptions(compiler="clang")
    probed = {"nvrtc": None, "nvjitlink": None, "include": [], "headers": ""}
    monkeypatch.setattr(compilers, "_probe", lambda: probed)
    with pytest.raises(MissingDependencyError, match=r"nvidia-cuda-nvrtc; install it with: pip install 'hgemm-arena\[build\]'"):
        built(root, cuda(), options)
    with pytest.raises(MissingDependencyError, match="nvidia-nvjitlink"):
        built(root, other("ptx", "k.ptx", "k"), options)
    probed["nvrtc"] = "13.0"  # type: ignore[assignment]
    write(root, k_cu='#include <cuda_fp16.h>\nextern "C" __global__ void k() {}\n')
    with pytest.raises(MissingDependencyError, match="nvidia-cuda-runtime"):
        built(root, cuda(), options)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    compilers._host_c.cache_clear()
    compilers._nvcc.cache_clear()
    with pytest.raises(InfraError, match="cc is not on PATH"):
        built(root, other("c", "k.c", "k"), options)
    with pytest.raises(InfraError, match="nvcc is neither on PATH"):
        built(root, cuda(), dataclasses.replace(options, compiler="nvcc"))


def test_logs_are_read_whoever_wrote_them() -> None:
    text = (
        "ptxas info    : Compiling entry function 'k' for 'sm_90a'\n"
        "    16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads\n"
        "ptxas         .     16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n"
        'kernels/k.cu(7): warning #177-D: variable "x" was declared but never referenced\n'
        './kernels/k.cu(9): error: expected a ";"\n'
    )
    log = read_log(text, "kernels/k.cu")
    assert log.first_error == 'kernels/k.cu:9: error: expected a ";"'
    assert (log.spill_store_bytes, log.spill_load_bytes) == (20, 24)
    assert len(log.warnings) == 1
    assert read_log("", "kernels/k.cu").first_error == "kernels/k.cu: no message"
