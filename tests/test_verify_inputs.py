"""Inputs: exact where they say so, at any K and layout; deterministic; written nowhere else."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from arithmetic import drawn, fp16, fp32
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.problem import Problem, Track
from harness.verify.inputs import EXACT_KINDS, MIN_POOL_OUTPUTS, InputKind, fill, is_exact, plan_draws

SHAPES = ("1x1x1", "2x3x2", "3x3x3", "1x7x13", "5x4x16", "7x5x17", "33x65x129", "64x64x64", "9x6x65", "16x24x5000", "70x20x30")


def absolute_sums(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """What no partial sum exceeds, in any order."""
    return a.double().abs() @ b.double().abs()


def test_modules_that_name_kinds_and_tallies_load_no_torch() -> None:
    code = "import harness.verify.checks, sys; print('torch' in sys.modules, 'harness.verify.inputs' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "True"]


@pytest.mark.parametrize("kind", InputKind)
@pytest.mark.parametrize("shape", SHAPES)
def test_fill_overwrites_everything_and_is_a_function_of_the_seed(kind: InputKind, shape: str) -> None:
    for seed in (6, 7):
        a, b = drawn(kind, shape, seed, sets=3)
        again = drawn(kind, shape, seed, sets=3)
        assert torch.isfinite(a).all()
        assert torch.isfinite(b).all()
        assert torch.equal(a, again[0])
        assert torch.equal(b, again[1])
    large = [torch.cat([each.flatten() for each in drawn(kind, "33x65x129", seed)]) for seed in (4, 6)]
    assert not torch.equal(*large)


@pytest.mark.parametrize("kind", InputKind)
def test_fill_writes_into_strided_sets_and_nowhere_else(kind: InputKind) -> None:
    m, n, k, sets, stride = 5, 7, 33, 4, 400
    arena = torch.full((2, sets, stride), 123.0, dtype=torch.float16)
    a = arena[0, :, : m * k].unflatten(1, (m, k))
    b = arena[1, :, : n * k].unflatten(1, (n, k)).transpose(1, 2)
    fill(kind, a, b, 1)
    assert (arena[0, :, m * k :] == 123).all()
    assert (arena[1, :, n * k :] == 123).all()
    assert not (a == 123).any()
    assert not torch.equal(a[0], a[1])


@pytest.mark.parametrize("shape", SHAPES)
def test_exact_kinds_are_exact_in_any_order(shape: str) -> None:
    for seed in range(4):
        for kind, limit in ((InputKind.CANCEL, 2**23), (InputKind.INTEGERS, 2048)):
            a, b = drawn(kind, shape, seed, sets=2)
            exact = a.double() @ b.double()
            assert torch.equal(a, a.round())
            assert torch.equal(b, b.round())
            assert absolute_sums(a, b).max() <= limit
            assert torch.equal(exact.half().double(), exact)
        for kind in (InputKind.PERMUTATION, InputKind.IDENTITY):
            a, b = drawn(kind, shape, seed, sets=2)
            exact = a.double() @ b.double()
            assert torch.equal(absolute_sums(a, b), exact.abs())
            assert torch.equal(exact.half().double(), exact)


@given(
    m=st.integers(1, 20),
    n=st.integers(1, 20),
    k=st.integers(1, 300),
    seed=st.integers(0, 2**62),
    kind=st.sampled_from(sorted(EXACT_KINDS)),
)
@settings(max_examples=80, deadline=None)
def test_fp32_is_exact_on_exact_kinds_and_fp16_on_all_but_cancel(m: int, n: int, k: int, seed: int, kind: InputKind) -> None:
    a, b = drawn(kind, f"{m}x{n}x{k}", seed)
    exact = a.double() @ b.double()
    assert torch.equal(fp32(a, b).double(), exact)
    if is_exact(kind, Track.F16):
        assert torch.equal(fp16(a, b, step=1).double(), exact)


@pytest.mark.parametrize("k", [3, 4, 5, 16, 17, 20, 36, 64, 65, 79, 80, 128, 129, 1000])
def test_pairs_cancel_apart_from_each_other_and_from_fixed_places(k: int) -> None:
    apart = max([chunk for chunk in (64, 32, 16) if chunk + 16 <= k] or [k // 2])
    first_places = set()
    for seed in range(12):
        a, b = drawn(InputKind.CANCEL, f"6x5x{k}", 2 * seed, sets=2)
        for left, right in zip(a.double(), b.double(), strict=True):
            places = (left[0].abs() == 2048).nonzero().flatten()
            assert torch.equal((left.abs() == 2048).all(0).nonzero().flatten(), places)
            assert len(places) == 2 * min(4, apart, k - apart)
            first, second = places.chunk(2)
            partners = [
                [p for p in second if torch.equal(left[:, p], -left[:, q]) and torch.equal(right[p], right[q])] for q in first
            ]
            assert all(any(p - q >= apart for p in found) for q, found in zip(first, partners, strict=True))
            assert torch.equal(left[:, places] @ right[places], torch.zeros(6, 5, dtype=torch.float64))
            first_places.add(int(first[0]))
    assert len(first_places) > 1 or k <= 5


@pytest.mark.parametrize(("kind", "deviation"), [(InputKind.NORMAL, 1.0), (InputKind.UNIFORM, 3**-0.5)])
def test_random_kinds_have_zero_mean_and_their_deviation(kind: InputKind, deviation: float) -> None:
    for each in drawn(kind, "300x200x500", 2):
        count = each.numel()
        assert abs(each.double().mean()) < 5 * deviation / count**0.5
        assert each.double().std().item() == pytest.approx(deviation, rel=6 / count**0.5)


def test_integers_reach_every_part_of_k() -> None:
    a, _ = drawn(InputKind.INTEGERS, "512x4x4096", 0)
    assert ((a != 0).sum(2) == 128).all()
    assert (a != 0).any(1).float().mean() == 1.0


def test_permutation_and_identity_use_distinct_places() -> None:
    a, _ = drawn(InputKind.PERMUTATION, "40x8x100", 0)
    assert ((a != 0).sum(2) == 1).all()
    assert (a != 0).sum(1).max() == 1
    _, b = drawn(InputKind.IDENTITY, "8x100x40", 0)
    assert ((b != 0).sum(1) == 1).all()
    assert (b != 0).sum(2).min() >= 2


@given(
    m=st.integers(1, 5000),
    n=st.integers(1, 5000),
    k=st.integers(1, 20000),
    track=st.sampled_from(Track),
)
def test_draws_pool_enough_outputs(m: int, n: int, k: int, track: Track) -> None:
    draws = plan_draws(Problem(m=m, n=n, k=k, track=track))
    assert draws[0].kind is InputKind.NORMAL
    assert {draw.kind for draw in draws} == set(InputKind) - ({InputKind.CANCEL} if track is Track.F16 else set())
    for draw in draws:
        least = 256 if draw.kind in EXACT_KINDS else MIN_POOL_OUTPUTS
        assert draw.sets * m * n >= least
        assert (draw.sets - 1) * m * n < least


def test_mismatched_inputs_are_refused() -> None:
    half = torch.zeros(2, 3, 4, dtype=torch.float16)
    with pytest.raises(ValueError, match="no batch of fp16"):
        fill(InputKind.NORMAL, half, half, 0)
    with pytest.raises(ValueError, match="no batch of fp16"):
        fill(InputKind.NORMAL, half, half.transpose(1, 2).float(), 0)
