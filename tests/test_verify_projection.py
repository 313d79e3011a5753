"""Random projections: what they estimate, which faults they see, and that honest rows stay below the limit."""

from __future__ import annotations

import pytest
import torch
from arithmetic import NARROW_ACCUMULATORS, NARROW_INPUTS, WRONG, drawn, figures, fp16, fp32, shuffled_split_k, truncating

from harness.problem import Problem, Track
from harness.record import Reason
from harness.verify.checks import Finding, compare, judge
from harness.verify.inputs import InputKind, plan_draws
from harness.verify.precision import excess_limit
from harness.verify.reference import VECTORS, Projection, project


def finding_of(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, seed: int = 1) -> Finding:
    finding = judge(project(a, b, c, seed), Track.F32)
    assert finding is not None
    return finding


@pytest.mark.parametrize("shape", ["1x1x1", "1x7x13", "33x65x129", "1000x7x333", "64x64x64", "1x4096x1", "2x3x16"])
def test_honest_kernels_pass_every_kind(shape: str) -> None:
    for seed in range(2):
        for kind, sets in plan_draws(Problem.parse(shape)):
            a, b = drawn(kind, shape, seed, sets)
            for c in (fp32(a, b), shuffled_split_k(a, b, seed), truncating(a, b)):
                assert judge(project(a, b, c, seed + 1), Track.F32) is None


@pytest.mark.parametrize("columns", [1, 2, 3, 5, 8, 64])
def test_honest_rows_stay_far_below_the_limit(columns: int) -> None:
    a, b = drawn(InputKind.NORMAL, f"100000x{columns}x16", columns)
    projection = project(a, b, fp32(a, b), 5)
    assert projection.rows == 100_000
    assert projection.row_excess is not None
    assert projection.row_excess < 0.8 * excess_limit(float(VECTORS))
    assert projection.excess == pytest.approx(100_000, rel=0.05)
    assert judge(projection, Track.F32) is None


def test_projection_estimates_the_error() -> None:
    a, b = drawn(InputKind.NORMAL, "300x200x100", 3, sets=2)
    c = fp16(a, b)
    exact = compare(a, b, c, InputKind.NORMAL)
    projection = project(a, b, c, 9)
    assert projection.squared_error == pytest.approx(exact.squared_error, rel=0.1)
    assert projection.squared_value == pytest.approx(exact.squared_reference, rel=1e-3)


@pytest.mark.parametrize("shape", ["64x64x64", "33x65x129", "128x96x1024"])
@pytest.mark.parametrize("name", [*NARROW_ACCUMULATORS, *NARROW_INPUTS])
def test_narrow_arithmetic_is_seen_in_timed_windows(name: str, shape: str) -> None:
    a, b = drawn(InputKind.NORMAL, shape, 3, sets=4)
    kernel = {**NARROW_ACCUMULATORS, **NARROW_INPUTS}[name]
    assert finding_of(a, b, kernel(a, b)).reason is Reason.PRECISION_CLASS


@pytest.mark.parametrize("name", WRONG)
def test_wrong_results_are_called_wrong(name: str) -> None:
    a, b = drawn(InputKind.NORMAL, "96x96x640", 3)
    assert finding_of(a, b, WRONG[name](a, b)).reason is Reason.WRONG_RESULT


def test_a_patch_without_16_of_16384_terms_is_seen_in_rows_of_16384() -> None:
    a, b = drawn(InputKind.NORMAL, "64x16384x64", 2)
    c = fp32(a, b)
    # The last 16 of 16,384 terms of a patch have 1/32 of an output's rms; here all of K is 64 and the rms 8.
    missing = torch.randn(16, 16, generator=torch.Generator().manual_seed(1)) * 8 / 32
    c[0, 32:48, 4096:4112] += missing.half()
    assert judge(project(a, b, c, 7), Track.F32) is not None
    rows = [project(a[:, row : row + 1], b, c[:, row : row + 1], 7).row_excess or 0.0 for row in range(64)]
    assert 15 < sum(rows[32:48]) / 16 < 30
    assert max(rows[:32] + rows[48:]) < 4
    finding = finding_of(a, b, c)
    assert finding.reason is Reason.WRONG_RESULT
    assert 32 <= finding.place.row < 48


@pytest.mark.parametrize("seed", range(8))
def test_one_output_or_one_tile_is_seen(seed: int) -> None:
    a, b = drawn(InputKind.NORMAL, "128x4096x64", 2, sets=2)
    single, tile = fp32(a, b), fp32(a, b)
    single[1, 77, 1234] += 8.0
    tile[1, 64:128, 64:128] = 0.0
    for c, rows in ((single, range(77, 78)), (tile, range(64, 128))):
        finding = finding_of(a, b, c, seed)
        assert finding.reason is Reason.WRONG_RESULT
        assert finding.place.buffer_set == 1
        assert finding.place.row in rows


@pytest.mark.parametrize(
    ("bits", "poison", "reason"),
    [
        (0x7E5A, 0x7E5A, Reason.UNWRITTEN),
        (0x7E5A, None, Reason.NOT_FINITE),
        (0x7E5B, 0x7E5A, Reason.NOT_FINITE),
        (0x7C00, 0x7E5A, Reason.NOT_FINITE),
    ],
)
def test_outputs_without_a_number_are_found(bits: int, poison: int | None, reason: Reason) -> None:
    a, b = drawn(InputKind.NORMAL, "20x30x40", 1, sets=3)
    c = fp32(a, b)
    c.view(torch.int16)[2, 19, 29] = bits
    projection = project(a, b, c, 1, poison_bits=poison)
    finding = judge(projection, Track.F32)
    assert finding is not None
    assert finding.reason is reason
    assert projection.unwritten + projection.not_finite == 1
    assert (finding.place.buffer_set, finding.place.row) == (2, 19)


def test_nan_in_inputs_does_not_pass() -> None:
    a, b = drawn(InputKind.NORMAL, "20x30x40", 1)
    c = fp32(a, b)
    a[0, 3, 4] = float("nan")
    assert finding_of(a, b, c).reason is Reason.INPUT_MODIFIED


def test_projections_pool_like_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = drawn(InputKind.NORMAL, "40x50x60", 1, sets=4)
    c = fp16(a, b)
    whole = project(a, b, c, 1)
    pooled = project(a[:1], b[:1], c[:1], 1).merge(project(a[1:], b[1:], c[1:], 1))
    monkeypatch.setattr("harness.verify.reference._BUDGET_BYTES", 1)
    for other in (pooled, project(a, b, c, 1)):
        assert figures(other) == pytest.approx(figures(whole), rel=1e-9)
    assert Projection.model_validate_json(whole.model_dump_json()) == whole
    assert project(a, b, c, 2).squared_error != whole.squared_error
