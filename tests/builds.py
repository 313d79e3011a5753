"""What the tests of the build share."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.build import Artifact, BuildFailure, BuildOptions, build_kernels
from harness.plan import Kernel, Language
from harness.profiles import load_profile

needs_nvcc = pytest.mark.nvcc
COMPILERS = ["nvrtc", pytest.param("nvcc", marks=needs_nvcc)]

H200 = load_profile("h200")
CPU = load_profile("cpu")

PTX = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry fill(.param .u64 p) {
  .reg .u64 %rd<2>;
  .reg .u32 %r<2>;
  ld.param.u64 %rd1, [p];
  mov.u32 %r1, 7;
  st.global.u32 [%rd1], %r1;
  ret;
}
"""


def write(root: Path, **files: str | bytes) -> None:
    """Files under kernels/, the last underscore of a name standing for the dot."""
    for name, text in files.items():
        path = root / "kernels" / ".".join(name.rsplit("_", 1))
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


def cuda(source: str = "k.cu", entry: str = "k", **fields: object) -> Kernel:
    return Kernel.model_validate({"language": "cuda", "source": f"kernels/{source}", "entry": entry, **fields})


def other(language: str, source: str, entry: str, **fields: object) -> Kernel:
    return cuda(source, entry, language=language, **fields)


def built(root: Path, kernel: Kernel, options: BuildOptions) -> Artifact:
    profile = CPU if kernel.language is Language.C else H200
    (result,) = build_kernels(root, [kernel], profile, options).values()
    assert isinstance(result, Artifact), result
    return result


def failed(root: Path, kernel: Kernel, options: BuildOptions) -> BuildFailure:
    profile = CPU if kernel.language is Language.C else H200
    (result,) = build_kernels(root, [kernel], profile, options).values()
    assert isinstance(result, BuildFailure), result
    assert options.cache.info().entries == 0
    assert options.cache.info().temporary_bytes == 0
    return result
