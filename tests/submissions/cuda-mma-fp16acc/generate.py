"""Write tests/submissions/cuda-mma-fp16acc-*: the kernel of submissions/cuda-mma with fp16 accumulators.

Run it after a change to that kernel or to the templates beside this file:

    python tests/submissions/cuda-mma-fp16acc/generate.py
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parent
KERNELS = HERE.parents[2] / "submissions" / "cuda-mma" / "kernels"
INTERVALS = {"never": 0, "16": 16, "32": 32, "64": 64}
MANIFEST = """\
name = "cuda-mma-fp16acc-{name}"
version = "1.0.0"
authors = ["HGEMM Arena authors"]
license = "MIT"
description = "A test: cuda-mma with fp16 accumulators promoted to fp32 {when}. It must be rejected on the f32 track."
track = "f32"
targets = ["sm_80"]
kind = "device"
"""


def directory(name: str) -> Path:
    """Where the variant of that name lies."""
    return HERE.parent / f"cuda-mma-fp16acc-{name}"


def files(name: str) -> dict[str, str]:
    """Text of every file of a variant, by path inside it."""
    interval = INTERVALS[name]
    when = f"every {interval} of K" if interval else "only at the end"
    plan = (HERE / "plan.py").read_text(encoding="utf-8").replace("PROMOTE_EVERY = 0\n", f"PROMOTE_EVERY = {interval}\n", 1)
    shared = {f"kernels/{part}": (KERNELS / part).read_text(encoding="utf-8") for part in ("hgemm.cu", "tile.cuh", "ptx.cuh")}
    own = {"kernels/accumulator.cuh": (HERE / "accumulator.cuh").read_text(encoding="utf-8"), "plan.py": plan}
    return {**shared, **own, "submission.toml": MANIFEST.format(name=name, when=when)}


def main() -> None:
    """Write all variants."""
    for name in INTERVALS:
        for path, text in files(name).items():
            target = directory(name) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
