"""The same verification on a CUDA device: same tallies as on the CPU, bounded memory, honest cuBLAS accepted."""

from __future__ import annotations

import pytest
import torch
from arithmetic import drawn, figures, fp16, fp32

from harness.devices.cuda_kernels import Kernels
from harness.problem import Problem, Track
from harness.record import Reason
from harness.verify.checks import compare, judge
from harness.verify.fill_cuda import fill_normal
from harness.verify.inputs import InputKind, fill, plan_draws
from harness.verify.reference import project

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def full_precision() -> None:
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


@pytest.mark.parametrize("kind", InputKind)
def test_tallies_agree_with_the_cpu(kind: InputKind) -> None:
    a, b = drawn(kind, "130x70x200", 1, sets=3)
    for c in (fp32(a, b), fp16(a, b)):
        here = compare(a, b, c, kind)
        there = compare(a.cuda(), b.cuda(), c.cuda(), kind)
        assert figures(there) == pytest.approx(figures(here), rel=1e-4, abs=1e-9)
        assert there.worst == here.worst
        projected = project(a.cuda(), b.cuda(), c.cuda(), 1)
        assert projected.squared_value == pytest.approx(project(a, b, c, 1).squared_value, rel=1e-6)


@pytest.mark.parametrize("shape", ["1x1x1", "1x7x13", "33x65x129", "64x64x64", "1000x7x333", "256x256x16384", "4096x64x4096"])
def test_cublas_passes_every_kind_drawn_on_the_device(shape: str) -> None:
    problem = Problem.parse(shape)
    for seed in range(10):
        for kind, sets in plan_draws(problem):
            a = torch.full((sets, problem.m, problem.k), torch.nan, dtype=torch.float16, device="cuda")
            b = torch.full((sets, problem.n, problem.k), torch.nan, dtype=torch.float16, device="cuda").transpose(1, 2)
            fill(kind, a, b, seed)
            c = a @ b
            assert judge(compare(a, b, c, kind), Track.F32) is None
            assert judge(project(a, b, c, seed), Track.F32) is None
            if min(problem.m, problem.n) > 1:
                c[-1, -1, -1] += 1 + c[-1].abs().max()
                assert judge(compare(a, b, c, kind), Track.F32).reason in {Reason.WRONG_RESULT, Reason.INEXACT}


def test_memory_stays_bounded() -> None:
    a = torch.empty((1, 16384, 1024), dtype=torch.float16, device="cuda")
    b = torch.empty((1, 1024, 16384), dtype=torch.float16, device="cuda")
    fill(InputKind.NORMAL, a, b, 1)
    c = a @ b
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    assert judge(compare(a, b, c, InputKind.NORMAL), Track.F32) is None
    assert judge(project(a, b, c, 1), Track.F32) is None
    assert torch.cuda.max_memory_allocated() - before < 8 << 30


@pytest.mark.parametrize(
    ("sets", "rows", "columns", "gap"), [(3, 7, 143, 23), (5, 7, 143, 0), (1, 1, 3, 0), (2, 1024, 1024, 8)]
)
def test_normals_drawn_on_the_device(sets: int, rows: int, columns: int, gap: int) -> None:
    size = rows * columns
    memory = torch.full((2, sets * (size + gap)), torch.nan, dtype=torch.float16, device="cuda")
    a, b = (half.as_strided((sets, rows, columns), (size + gap, columns, 1), half.storage_offset()) for half in memory)
    fill_normal((a, b), 7)
    assert memory.isnan().sum() == 2 * sets * gap
    both = torch.stack((a, b)).double().cpu()
    values = both.flatten()
    error = values.numel() ** -0.5
    assert abs(values.mean()) < 5 * error
    assert abs(values.var() - 1) < 8 * error
    assert abs((values**4).mean() - 3) < 50 * error
    assert abs((values[1:] * values[:-1]).mean()) < 5 * error
    assert abs((both[0] * both[1]).mean()) < 8 * error
    if sets > 1:
        assert abs((both[:, 1:] * both[:, :-1]).mean()) < 8 * error
    again, other = torch.empty_like(a), torch.empty_like(a)
    fill_normal((again,), 7)
    fill_normal((other,), 8)
    assert torch.equal(again, a)
    assert not torch.equal(other, a)


def test_one_word_that_differs_is_seen() -> None:
    kernels = Kernels(torch.cuda.current_stream().cuda_stream, 4)
    words = torch.full((5, 1003), -7, dtype=torch.int16, device="cuda")
    views = (words[:, 1:1000], words[3:4, :1])
    assert kernels.holds(views, -7 & 0xFFFF)
    words[:, 0], words[3, 0], words[:, 1000:] = 1, -7, 1
    assert kernels.holds(views, -7 & 0xFFFF)
    for row, column in ((0, 1), (4, 999), (3, 0), (2, 500)):
        words[row, column] = -8
        assert not kernels.holds(views, -7 & 0xFFFF)
        words[row, column] = -7
