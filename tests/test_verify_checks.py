"""Every output against float64: honest kernels pass over many seeds, and each kind of fault gets its reason."""

from __future__ import annotations

import pytest
import torch
from arithmetic import (
    NARROW_ACCUMULATORS,
    NARROW_INPUTS,
    WRONG,
    Kernel,
    drawn,
    figures,
    fp16,
    fp16_reduced_split_k,
    fp32,
    shuffled_split_k,
    truncating,
    without_last,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.problem import Problem, Track
from harness.record import Reason
from harness.verify.checks import Errors, compare, judge
from harness.verify.inputs import InputKind, plan_draws
from harness.verify.precision import tolerance
from harness.verify.reference import reference, reference_chunks, ulp16

POISON = 0x7E5A
RAGGED = ("1x1x1", "1x7x13", "33x65x129", "1000x7x333", "64x64x64", "1x4096x1", "2x3x16")


def reason_of(kernel: Kernel, kind: InputKind, shape: str, track: Track = Track.F32, seed: int = 3) -> Reason | None:
    sets = max(1, -(-4096 // (int(shape.split("x")[0]) * int(shape.split("x")[1]))))
    a, b = drawn(kind, shape, seed, sets)
    finding = judge(compare(a, b, kernel(a, b), kind, track, POISON), track)
    return finding.reason if finding else None


@pytest.mark.parametrize("shape", RAGGED)
def test_honest_kernels_pass_every_kind(shape: str) -> None:
    for seed in range(4):
        for kind, sets in plan_draws(Problem.parse(shape)):
            a, b = drawn(kind, shape, seed, sets)
            for c in (fp32(a, b), shuffled_split_k(a, b, seed), truncating(a, b)):
                assert judge(compare(a, b, c, kind, poison_bits=POISON), Track.F32) is None


@given(
    m=st.integers(1, 70), n=st.integers(1, 70), k=st.integers(1, 200), seed=st.integers(0, 2**40), track=st.sampled_from(Track)
)
@settings(max_examples=60, deadline=None)
def test_honest_kernels_pass_whatever_the_shape(m: int, n: int, k: int, seed: int, track: Track) -> None:
    for kind, _ in plan_draws(Problem(m=m, n=n, k=k, track=track)):
        a, b = drawn(kind, f"{m}x{n}x{k}", seed)
        assert judge(compare(a, b, shuffled_split_k(a, b, seed), kind, track), track) is None


def test_long_honest_sums_pass_with_truncated_accumulators() -> None:
    for seed in range(2):
        a, b = drawn(InputKind.NORMAL, "64x64x16384", seed)
        errors = compare(a, b, truncating(a, b), InputKind.NORMAL)
        assert judge(errors, Track.F32) is None
        assert errors.accumulation_units is not None
        assert errors.accumulation_units < 16
        assert errors.precision_class == "fp32_accumulate"
        assert errors.rms_relative == pytest.approx(2.08e-4, rel=0.03)


@pytest.mark.parametrize("shape", ["64x64x64", "33x65x129", "17x240x96", "48x96x1024"])
@pytest.mark.parametrize("name", [*NARROW_ACCUMULATORS, "fp16_reduced_split_k"])
def test_fp16_accumulators_are_no_f32(name: str, shape: str) -> None:
    kernel = NARROW_ACCUMULATORS.get(name, fp16_reduced_split_k)
    assert reason_of(kernel, InputKind.NORMAL, shape) is Reason.PRECISION_CLASS
    assert reason_of(kernel, InputKind.UNIFORM, shape) is Reason.PRECISION_CLASS
    assert reason_of(kernel, InputKind.CANCEL, shape) is Reason.INEXACT
    assert reason_of(kernel, InputKind.NORMAL, shape, Track.F16) is None


@pytest.mark.parametrize("name", NARROW_INPUTS)
@pytest.mark.parametrize("shape", ["3x5x4", "64x64x64", "33x65x129", "48x96x4096"])
def test_narrow_inputs_are_no_f32(name: str, shape: str) -> None:
    kernel = NARROW_INPUTS[name]
    assert reason_of(kernel, InputKind.NORMAL, shape) is Reason.PRECISION_CLASS
    for kind in (InputKind.PERMUTATION, InputKind.IDENTITY):
        for track in Track:
            assert reason_of(kernel, kind, shape, track) in {Reason.INEXACT, Reason.WRONG_RESULT}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("track", Track)
def test_wrong_results_are_called_wrong(name: str, track: Track) -> None:
    for shape in ("64x64x64", "48x48x4096"):
        assert reason_of(WRONG[name], InputKind.NORMAL, shape, track) is Reason.WRONG_RESULT
    for kind in (InputKind.INTEGERS, InputKind.PERMUTATION, InputKind.IDENTITY):
        assert reason_of(WRONG[name], kind, "64x64x64", track) is Reason.WRONG_RESULT


def test_f16_track_accepts_fp16_chains_and_refuses_narrower() -> None:
    for shape in ("64x64x64", "64x64x512"):
        assert reason_of(lambda a, b: fp16(a, b, step=1), InputKind.NORMAL, shape, Track.F16) is None
        assert reason_of(NARROW_INPUTS["int8"], InputKind.NORMAL, shape, Track.F16) is Reason.PRECISION_CLASS
    assert reason_of(lambda a, b: fp16(a, b, step=4), InputKind.NORMAL, "64x64x16384", Track.F16) is None
    assert reason_of(NARROW_INPUTS["int8"], InputKind.NORMAL, "64x64x16384", Track.F16) is Reason.PRECISION_CLASS
    assert reason_of(NARROW_INPUTS["bf16"], InputKind.NORMAL, "64x64x64", Track.F16) is Reason.PRECISION_CLASS


@pytest.mark.parametrize("shape", ["1x1x1", "70x130x65", "1x7x13"])
def test_one_bad_output_is_found_and_named(shape: str) -> None:
    a, b = drawn(InputKind.NORMAL, shape, 1, sets=3)
    honest = fp32(a, b)
    place = (2, shape.startswith("70") * 66, honest.shape[2] - 1)
    typical = float(honest.float().square().mean().sqrt())
    unwritten = torch.tensor(POISON, dtype=torch.int16).view(torch.float16)
    for value, reason in (
        (unwritten, Reason.UNWRITTEN),
        (torch.tensor(float("nan")), Reason.NOT_FINITE),
        (torch.tensor(float("-inf")), Reason.NOT_FINITE),
        (honest[place] + typical, Reason.WRONG_RESULT),
    ):
        c = honest.clone()
        c[place] = value
        finding = judge(compare(a, b, c, InputKind.NORMAL, poison_bits=POISON), Track.F32)
        assert finding is not None
        assert finding.reason is reason
        assert (finding.place.buffer_set, finding.place.row, finding.place.column) == place
        assert finding.detail.endswith(".")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_changed_inputs_do_not_make_nan_pass(value: float) -> None:
    a, b = drawn(InputKind.NORMAL, "20x30x40", 0)
    b[0, 3, 5] = value
    for c in (fp32(a, b), fp32(*drawn(InputKind.NORMAL, "20x30x40", 0))):
        finding = judge(compare(a, b, c, InputKind.NORMAL), Track.F32)
        assert finding is not None
        assert finding.reason in {Reason.NOT_FINITE, Reason.INPUT_MODIFIED}
    assert finding.reason is Reason.INPUT_MODIFIED


def test_a_patch_without_its_last_terms_is_wrong() -> None:
    a, b = drawn(InputKind.NORMAL, "128x128x16384", 2)
    c = fp32(a, b)
    c[:, 16:32, 48:64] = without_last(a, b, 16)[:, 16:32, 48:64]
    errors = compare(a, b, c, InputKind.NORMAL)
    finding = judge(errors, Track.F32)
    assert finding is not None
    assert finding.reason is Reason.WRONG_RESULT
    assert 200 < errors.over_bound <= 256
    assert 16 <= finding.place.row < 32
    assert 48 <= (finding.place.column or 0) < 64


def test_one_narrow_tile_shows_in_its_block() -> None:
    a, b = drawn(InputKind.NORMAL, "256x256x256", 2)
    c = fp32(a, b)
    c[:, 64:128, 128:192] = fp16(a, b, promote=32)[:, 64:128, 128:192]
    errors = compare(a, b, c, InputKind.NORMAL)
    assert errors.block_excess is not None
    assert errors.block_excess > 10
    assert judge(errors, Track.F32) is not None


def test_tallies_pool_like_one_batch() -> None:
    shape, kind = "70x130x65", InputKind.NORMAL
    a, b = drawn(kind, shape, 5, sets=6)
    c = fp16(a, b)
    whole = compare(a, b, c, kind)
    parts = [compare(a[part], b[part], c[part], kind) for part in (slice(0, 1), slice(1, 4), slice(4, 6))]
    pooled = parts[0].merge(parts[1]).merge(parts[2])
    assert figures(pooled) == pytest.approx(figures(whole), rel=1e-5)
    assert (pooled.worst.value, pooled.worst.exact) == (whole.worst.value, whole.worst.exact)
    assert Errors.model_validate_json(pooled.model_dump_json()) == pooled
    broken = c.clone()
    broken[0, 0, 0] = float("nan")
    spoilt = compare(a, b, broken, kind)
    for merged in (whole.merge(spoilt), spoilt.merge(whole)):
        assert merged.rms_relative is None
        assert merged.worst == spoilt.worst
        assert judge(merged, Track.F32) == judge(spoilt.merge(whole), Track.F32)
    with pytest.raises(ValueError, match="different kind"):
        whole.merge(compare(a, b, c, InputKind.UNIFORM))


def test_judging_needs_the_track_that_was_compared() -> None:
    a, b = drawn(InputKind.NORMAL, "8x8x8", 0)
    with pytest.raises(ValueError, match="track f16 cannot be judged for track f32"):
        judge(compare(a, b, fp32(a, b), InputKind.NORMAL, Track.F16), Track.F32)


def test_chunks_cover_every_output_once_with_norms() -> None:
    a, b = drawn(InputKind.NORMAL, "200x70x40", 1, sets=5)
    exact = reference(a, b)
    assert torch.equal(exact, a.double() @ b.double())
    for budget in (1, 150_000, 1_000_000, 1 << 30):
        seen = torch.full_like(exact, torch.nan)
        for chunk in reference_chunks(a, b, budget):
            assert chunk.rows.start % 64 == 0
            assert seen[chunk.sets, chunk.rows].isnan().all()
            seen[chunk.sets, chunk.rows] = chunk.values
            torch.testing.assert_close(chunk.row_norms[..., 0], a[chunk.sets, chunk.rows].double().norm(dim=2))
            torch.testing.assert_close(chunk.column_norms[:, 0], b[chunk.sets].double().norm(dim=1))
        torch.testing.assert_close(seen, exact, rtol=1e-12, atol=1e-12)


def test_small_chunks_give_the_same_tally(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = drawn(InputKind.NORMAL, "200x70x40", 1, sets=3)
    c = fp32(a, b)
    c[1, 130, 69] += 3
    whole = compare(a, b, c, InputKind.NORMAL)
    monkeypatch.setattr("harness.verify.reference._BUDGET_BYTES", 1)
    monkeypatch.setattr(reference_chunks, "__defaults__", (1,))
    parts = compare(a, b, c, InputKind.NORMAL)
    assert parts.draws == 3
    assert figures(parts) == pytest.approx(figures(whole), rel=1e-5)
    assert (parts.worst.buffer_set, parts.worst.row, parts.worst.column) == (1, 130, 69)


def test_measures_agree_with_their_definitions() -> None:
    a, b = drawn(InputKind.NORMAL, "70x130x65", 4, sets=2)
    c = fp32(a, b)
    errors = compare(a, b, c, InputKind.NORMAL)
    exact = a.double() @ b.double()
    difference = c.double() - exact
    scale = a.double().norm(dim=2, keepdim=True) * b.double().norm(dim=1, keepdim=True)
    ulps = torch.exp2(exact.abs().log2().floor().clamp(min=-14) - 10)
    allowed = tolerance(Track.F32, 65)
    excess = difference**2 / (ulps**2 / 12 + (allowed.noise * scale) ** 2)
    blocks = [difference[s, r : r + 64, q : q + 64] for s in (0, 1) for r in (0, 64) for q in (0, 64, 128)]
    assert errors.squared_error == pytest.approx(float((difference**2).sum()), rel=1e-5)
    assert errors.squared_reference == pytest.approx(float((exact**2).sum()), rel=1e-6)
    assert errors.excess == pytest.approx(float(excess.sum()), rel=1e-4)
    assert errors.bound_ratio == pytest.approx(
        float((difference.abs() / (0.51 * ulps + allowed.bound * scale)).max()), rel=1e-4
    )
    assert errors.block_squared_error == pytest.approx(max(float((block**2).mean()) for block in blocks), rel=1e-4)
    stats = errors.stats()
    assert stats.rms_relative == pytest.approx(float((difference**2).mean().sqrt() / (exact**2).mean().sqrt()), rel=1e-5)
    assert (stats.draws, stats.outputs, stats.inexact) == (2, 2 * 70 * 130, 0)


def test_ulp_follows_binary16() -> None:
    halves = torch.arange(0x7BFF, dtype=torch.int16).view(torch.float16)
    following = (halves.view(torch.int16) + 1).view(torch.float16)
    assert torch.equal(ulp16(halves.float()), following.float() - halves.float())
    assert torch.equal(ulp16(-halves.float()), ulp16(halves.float()))


def test_poison_must_be_a_nan_and_shapes_must_fit() -> None:
    a, b = drawn(InputKind.NORMAL, "4x5x6", 0)
    with pytest.raises(ValueError, match="not the bit pattern of a NaN"):
        compare(a, b, fp32(a, b), InputKind.NORMAL, poison_bits=0x7C00)
    with pytest.raises(ValueError, match="not A, B and C"):
        compare(a, b, fp32(a, b).transpose(1, 2), InputKind.NORMAL)
