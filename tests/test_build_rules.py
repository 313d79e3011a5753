"""What a source may read, and what device code may not do."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path

import pytest
from builds import COMPILERS, H200, PTX, built, cuda, failed, needs_nvcc, other, write

from harness.build import BuildFailure, BuildOptions, build_kernels
from harness.cache import Cache
from harness.record import Reason


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "submission" / "kernels").mkdir(parents=True)
    return tmp_path / "submission"


@pytest.fixture
def options(tmp_path: Path) -> BuildOptions:
    return BuildOptions(cache=Cache(tmp_path / "cache"), jobs=2)


# What a source may read

REFUSED = {
    "absolute": '#include "/etc/hostname"',
    "absolute in brackets": "#include </etc/hostname>",
    "above": '#include "../secret.h"',
    "above in the middle": '#include "deep/../../secret.h"',
    "computed": '#define H "/etc/hostname"\n#include H',
    "joined lines": '#inc\\\nlude "/etc/hostname"',
    "joined lines with a blank": '#inc\\ \nlude "/etc/hostname"',
    "spaces": '  #  include   "/etc/hostname"',
    "form feed": '\f#\vinclude "/etc/hostname"',
    "comment inside": '#/**/include "/etc/hostname"',
    "comment of two lines inside": '#/*\n*/include "/etc/hostname"',
    "comment before": '/* */ #include "/etc/hostname"',
    "comment after": '#include /**/ "/etc/hostname"',
    "digraph": '%:include "/etc/hostname"',
    "trigraph": '??=include "/etc/hostname"',
    "no newline": '#if 0\n#endif\n#include "/etc/hostname"',
    "untaken branch": '#if 0\n#include "/etc/hostname"\n#endif',
    "after a quote in a string": 'const char *s = "/*";\n#include "/etc/hostname"\n/* */',
    "import": '#import "/etc/hostname"',
    "next": '#include_next "stdio.h"',
    "embed": '#embed "/etc/hostname"',
    "asks": '#if __has_include("/etc/hostname")\n#endif',
    "byte order mark": '\ufeff#include "/etc/hostname"',
    "carriage return": 'int x;\r#include "/etc/hostname"',
    "null": '#\0include "/etc/hostname"',
    "backslash": '#include "..\\secret.h"',
}


@pytest.mark.parametrize("language", ["cuda", "c"])
@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED.keys())
def test_includes_that_reach_outside_are_refused(root: Path, options: BuildOptions, text: str, language: str) -> None:
    (root.parent / "secret.h").write_text("int secret;\n")
    (root / "secret.h").write_text("int secret;\n")
    write(root, k_cu=text, inner_cuh=text)
    failure = failed(root, other(language, "k.cu", "k"), options)
    assert failure.reason is Reason.FORBIDDEN, failure
    assert failure.message.startswith("kernels/k.cu:")
    write(root, k_cu='#include "inner.cuh"\n')
    failure = failed(root, other(language, "k.cu", "k"), options)
    assert failure.reason is Reason.FORBIDDEN, failure
    assert failure.message.startswith("kernels/inner.cuh:")


def test_the_refusal_names_the_line(root: Path, options: BuildOptions) -> None:
    write(root, k_cu='\n\n#include "/etc/hostname"\n')
    assert failed(root, cuda(), options).message.startswith("kernels/k.cu:3: #include of /etc/hostname: ")


def test_ordinary_sources_are_not_refused(root: Path, options: BuildOptions) -> None:
    write(
        root,
        k_cu=(
            '/* We include "/etc" in prose, and ../paths too. */\n// #define at the end\r\n#include <cuda_fp16.h>\r\n'
            '#define JOIN(a, b) \\\n  a##b\n#  include "h.cuh" // trailing words\n#pragma once_upon_a_time\n'
            'extern "C" __global__ void k(int *p) { *p = JOIN(1, 2) % 5; }\n'
        ),
        h_cuh="#pragma once\n",
    )
    assert built(root, cuda(), options).report.entries == ("k",)


@pytest.mark.parametrize("place", ["source", "header", "directory"])
def test_links_are_refused(root: Path, options: BuildOptions, place: str) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "h.cuh").write_text("#define X 1\n")
    (outside / "k.cu").write_text('extern "C" __global__ void k() {}\n')
    write(root, k_cu='#include "h.cuh"\nextern "C" __global__ void k() {}\n', h_cuh="\n")
    if place == "source":
        (root / "kernels" / "k.cu").unlink()
        (root / "kernels" / "k.cu").symlink_to(outside / "k.cu")
    elif place == "header":
        (root / "kernels" / "h.cuh").unlink()
        (root / "kernels" / "h.cuh").symlink_to(outside / "h.cuh")
    else:
        shutil.rmtree(root / "kernels")
        (root / "kernels").symlink_to(outside)
    failure = failed(root, cuda(), options)
    assert failure.reason is Reason.FORBIDDEN
    assert "is a link or a special file" in failure.message


def test_the_assembler_may_not_read_files_either(root: Path, options: BuildOptions) -> None:
    hidden = r'asm(".macro x a\n .\\a\\()bin \"/etc/hostname\"\n.endm\n.data\ns: x inc\n.text\n");'
    write(root, k_c=f"{hidden}\nvoid k(void) {{}}\n", i_c='asm(".include \\"/etc/hostname\\"");\nvoid k(void) {}\n')
    failure = failed(root, other("c", "k.c", "k"), options)
    assert failure.reason is Reason.FORBIDDEN
    assert failure.message == "kernels/k.c reads /etc/hostname, which is outside the submission."
    assert failed(root, other("c", "i.c", "k"), options).reason in (Reason.FORBIDDEN, Reason.BUILD_ERROR)


def test_only_included_files_are_there_to_read(root: Path, options: BuildOptions) -> None:
    write(root, k_c='asm(".data\\ns: .incbin \\"kernels/secret.h\\"\\n.text\\n");\nvoid k(void) {}\n', secret_h="x")
    failure = failed(root, other("c", "k.c", "k"), options)
    assert "file not found: kernels/secret.h" in failure.message


# Rules of device code


STATE = {
    "global": ("__device__ int seen;\n", "*p = atomicAdd(&seen, 1);", "seen"),
    "initialised": ("__device__ int seen[2] = {1, 2};\n", "*p = seen[*p]++;", "seen"),
    "static local": ("", "static int seen; *p = seen++;", "seen"),
    "table": ("__device__ const int table[4] = {5, 6, 7, 8};\n", "*p = table[*p];", "table"),
    "asm": ("", 'asm volatile("{.global .u32 hidden; atom.global.add.u32 %0, [hidden], 1;}" : "=r"(*p));', "hidden"),
}


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("case", STATE)
def test_writable_module_globals_are_forbidden(root: Path, options: BuildOptions, case: str, compiler: str) -> None:
    declaration, body, name = STATE[case]
    write(root, k_cu=f'{declaration}extern "C" __global__ void k(int *p) {{ {body} }}\n')
    failure = failed(root, cuda(), dataclasses.replace(options, compiler=compiler))
    assert failure.reason is Reason.FORBIDDEN, failure
    assert "module globals that a kernel can write" in failure.message
    assert name in failure.message


@pytest.mark.parametrize("compiler", COMPILERS)
def test_constants_are_not_state(root: Path, options: BuildOptions, compiler: str) -> None:
    write(
        root,
        k_cu="struct Tile { static constexpr int M = 128; static constexpr int table[4] = {1, 2, 3, 4}; };\n"
        "__constant__ int shifts[4] = {1, 2, 3, 4};\n__device__ const int unused[2] = {1, 2};\n"
        'extern __shared__ int dynamic[];\nextern "C" __global__ void k(int *p) {\n'
        "  static constexpr int local[2] = {3, 4}; static __shared__ int tile[Tile::M];\n"
        "  tile[threadIdx.x] = p[0] + local[1] + Tile::table[2]; dynamic[threadIdx.x] = 1; __syncthreads();\n"
        "  p[threadIdx.x] = tile[127 - threadIdx.x] << shifts[threadIdx.x & 3]; p[5] += dynamic[3]; }\n",
    )
    report = built(root, cuda(), dataclasses.replace(options, compiler=compiler)).report
    assert report.static_shared_bytes == 512


@pytest.mark.parametrize("compiler", COMPILERS)
def test_stores_to_constants_are_forbidden(root: Path, options: BuildOptions, compiler: str) -> None:
    hidden = 'asm volatile("{.reg .u64 t; mov.u64 t, seen; cvta.const.u64 %0, t;}" : "=l"(q));'
    write(
        root,
        k_cu="__constant__ int seen[4];\n"
        f'extern "C" __global__ void k(int **p) {{ int *q; {hidden} *p[0] = q[1]++; *p[1] = seen[*p[0]]; }}\n',
        l_cu='__constant__ int seen[4];\nextern "C" __global__ void k(const int **p) { *p = seen; }\n',
        fine_cu='__constant__ int seen[4];\nextern "C" __global__ void k(int *p) { *p = seen[*p]; }\n',
    )
    options = dataclasses.replace(options, compiler=compiler)
    for source in ("k.cu", "l.cu"):
        failure = failed(root, cuda(source), options)
        assert failure.reason is Reason.FORBIDDEN, failure
        assert "takes the address of __constant__ data" in failure.message
    write(root, fine_cubin=built(root, cuda("fine.cu"), options).path.read_bytes())
    (given,) = build_kernels(
        root, [other("cubin", "fine.cubin", "k", generated_from="kernels/fine.cu")], H200, options
    ).values()
    assert isinstance(given, BuildFailure)
    assert "has __constant__ data" in given.message


CONVERSIONS = {
    "plain": "cvta.const.u64",
    "blank": "cvta .const.u64",
    "form feed": "cvta\f.const.u64",
    "comment": "cvta/* */.const.u64",
    "comment to the end of the line": "cvta// x\n.const.u64",
    "line marker": 'cvta\n# 1 "x"\n.const.u64',
    "type first": "cvta.u64.const",
    "comment and type first": "cvta.u64/**/.const",
    "control character": "cvta\x1a.const.u64",
    "after a number": ".loc 1 1 1cvta.const.u64",
}
INITIALISERS = {
    "plain": "generic(kept)",
    "comment": "generic/**/(kept)",
    "comment to the end of the line": "generic// x\n(kept)",
    "line marker": 'generic\n# 1 "x"\n(kept)',
}
CONSTANTS_PTX = """.version 8.0
.target sm_90a
.address_size 64
.file 1 "k.cu"
.const .align 8 .u64 kept[2] = {0, 0};
.const .align 8 .u64 where = %s;
.visible .entry k(.param .u64 p) {
  .reg .u64 a, b;
  ld.param.u64 a, [p];
  mov.u64 b, kept;
  %s b, b;
  st.u64 [a], b;
  ret;
}
"""


@pytest.mark.parametrize("case", CONVERSIONS)
def test_addresses_of_constants_are_found_however_they_are_written(root: Path, options: BuildOptions, case: str) -> None:
    write(root, k_ptx=CONSTANTS_PTX % ("0", CONVERSIONS[case]))
    failure = failed(root, other("ptx", "k.ptx", "k"), options)
    assert failure.reason is Reason.FORBIDDEN, failure
    assert "takes the address of __constant__ data" in failure.message


@pytest.mark.parametrize("case", INITIALISERS)
def test_initialisers_with_addresses_of_constants_are_found(root: Path, options: BuildOptions, case: str) -> None:
    write(root, k_ptx=CONSTANTS_PTX % (INITIALISERS[case], "cvta.to.global.u64"))
    failure = failed(root, other("ptx", "k.ptx", "k"), options)
    assert failure.reason is Reason.FORBIDDEN, failure
    assert "takes the address of __constant__ data" in failure.message


@pytest.mark.parametrize(
    "space", ["to.global.u64", "global.u64", "to.u64.shared", "shared::cta.u64", "to .const.u64", "local.u64\t"]
)
def test_other_conversions_of_addresses_are_allowed(root: Path, options: BuildOptions, space: str) -> None:
    write(root, k_ptx=CONSTANTS_PTX % ("0", f"// no cvta of constants, a generic one\n cvta.{space}"))
    assert built(root, other("ptx", "k.ptx", "k"), options).report.entries == ("k",)


HOST_STATE = {
    "variable": "static long x; #",
    "thread": "static _Thread_local long x; #",
    "named": 'static long x __attribute__((section("mine,\\"aw\\",@progbits#"))) = 1; #',
    "named, without bytes": 'static long x[9] __attribute__((section("mine,\\"aw\\",@nobits#"))); #',
    "executable": 'static long x __attribute__((section("mine,\\"awx\\",@progbits#"))) = 1; #',
    "read-only by its flags": 'static const volatile long y __attribute__((section(".data,\\"a\\",@progbits#"))) = 1;\n'
    "#define x (*(long *)&y)\n#",
}
AT_LOADING = {
    "_init": "void _init(void) {}",
    "_fini": "void _fini(void) {}",
    "constructor": '__attribute__((constructor)) static void f(void) { asm volatile(""); }',
    "destructor": '__attribute__((destructor)) static void f(void) { asm volatile(""); }',
    "ifunc": 'static void g(void) {}\nstatic void *r(void) { return g; }\nvoid f(void) __attribute__((ifunc("r")));',
    "local ifunc": "static void g(void) {}\nstatic void *r(void) { return g; }\n"
    'static void f(void) __attribute__((ifunc("r")));\nvoid h(void) { f(); }',
    "entry": 'asm(".section .dynamic,\\"aw\\"\\n.quad 12, k\\n.text");',
    "array": 'asm(".section .dynamic,\\"aw\\"\\n.quad 25, k, 27, 8\\n.text");',
    "other library": 'asm(".section .dynamic,\\"aw\\"\\n.quad 1, 1\\n.text");',
    "other names": 'asm(".section .dynamic,\\"aw\\"\\n.quad 5, k\\n.text");',
    "table of its own": 'asm(".section .dynamic,\\"aw\\"\\n.quad 5, 8, 6, 8, 0, 0\\n.text");',
}


@pytest.mark.parametrize("case", HOST_STATE)
def test_host_code_has_no_state_whatever_its_section_is_called(root: Path, options: BuildOptions, case: str) -> None:
    text = HOST_STATE[case].rpartition("#")[0]
    write(root, k_c=f"{text}\nvoid k(long *p) {{ p[0] = ++*(volatile long *)&x; }}\n")
    failure = failed(root, other("c", "k.c", "k"), options)
    assert failure.reason is Reason.FORBIDDEN, failure
    assert "variables that outlive an operation" in failure.message or case == "thread"


@pytest.mark.parametrize("case", AT_LOADING)
def test_host_code_has_nothing_that_runs_at_loading(root: Path, options: BuildOptions, case: str) -> None:
    write(root, k_c=f"{AT_LOADING[case]}\nvoid k(void) {{}}\n")
    failure = failed(root, other("c", "k.c", "k"), options)
    assert failure.reason is Reason.FORBIDDEN, failure
    assert "runs when it is loaded" in failure.message


def test_host_code_may_have_constants_and_import_functions(root: Path, options: BuildOptions) -> None:
    write(
        root,
        k_c="#include <math.h>\n#include <string.h>\nstatic const float table[] = {1, 2, 3};\n"
        'static float (*const of[])(float) = {sinf, expf};\nstatic const char *const names[] = {"a", "b"};\n'
        "const char *k(float *c, const float *a, long n) { memcpy(c, a, n); c[0] = of[n & 1](table[n]) + tanhf(*a);\n"
        "return names[n & 1]; }\n",
    )
    assert built(root, other("c", "k.c", "k"), options).report.entries == ("k",)


CALLS = {
    "printf": ('printf("x");', "vprintf|module globals"),
    "malloc": ("*(void **)p = malloc(8);", "calls malloc"),
    "launch": ("child<<<1, 1>>>();", "launch"),
}


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("case", CALLS)
def test_calls_into_the_driver_are_forbidden(root: Path, options: BuildOptions, case: str, compiler: str) -> None:
    body, expected = CALLS[case]
    write(root, k_cu=f'__global__ void child() {{}}\nextern "C" __global__ void k(int *p) {{ {body} }}\n')
    failure = failed(root, cuda(), dataclasses.replace(options, compiler=compiler))
    assert failure.reason is Reason.FORBIDDEN, failure
    assert any(word in failure.message for word in expected.split("|"))


@needs_nvcc
def test_device_launch_from_ptx_is_forbidden(root: Path, options: BuildOptions) -> None:
    call = "call (r), cudaLaunchDeviceV2, (a, b);"
    declared = ".extern .func (.param .b32 r) cudaLaunchDeviceV2(.param .b64 a, .param .b64 b);\n.visible"
    variables = ".param .b64 a; .param .b64 b; .param .b32 r;\n"
    write(root, k_ptx=PTX.replace(".visible", declared, 1).replace("  ret;", f"{variables}{call}\nret;"))
    for compiler in ("nvrtc", "nvcc"):
        failure = failed(root, other("ptx", "k.ptx", "fill"), dataclasses.replace(options, compiler=compiler))
        assert failure.reason is Reason.FORBIDDEN, failure
        assert "cudaLaunchDeviceV2" in failure.message


@needs_nvcc
def test_a_linked_cubin_with_state_or_launches_is_forbidden(root: Path, options: BuildOptions, tmp_path: Path) -> None:
    write(root, k_cu='__device__ int seen;\nextern "C" __global__ void k(int *p) { *p = seen++; }\n')
    write(root, l_cu='__global__ void child() {}\nextern "C" __global__ void k() { child<<<1, 1>>>(); }\n')
    for name, flags, word in (("k", [], "seen"), ("l", ["-rdc=true"], "LaunchDevice")):
        target = root / "kernels" / f"{name}.cubin"
        arch = "-gencode=arch=compute_90a,code=sm_90a"
        subprocess.run(["nvcc", "-cubin", arch, *flags, f"{root}/kernels/{name}.cu", "-o", target], check=True)
        failure = failed(root, other("cubin", f"{name}.cubin", "k", generated_from=f"kernels/{name}.cu"), options)
        assert failure.reason is Reason.FORBIDDEN, failure
        assert word in failure.message or "GetParameterBuffer" in failure.message
