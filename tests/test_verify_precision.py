"""Limits of the precision classes: their values, and their false alarms on what they were derived for."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.problem import Track
from harness.verify.precision import ROUNDING_RMS, classify, excess_limit, tolerance


def test_limits_are_those_of_the_protocol() -> None:
    assert ROUNDING_RMS * math.sqrt(excess_limit(4096.0)) == pytest.approx(2.39e-4, rel=0.01)
    assert excess_limit(16.0) == pytest.approx(9.17, rel=0.01)
    assert excess_limit(1e12) == pytest.approx(1.1, rel=1e-4)
    assert tolerance(Track.F32, 64) == tolerance(Track.F32, 16384) == (4 * 2.0**-24, 32 * 2.0**-24)


@given(first=st.floats(1, 1e12), second=st.floats(1, 1e12))
def test_more_outputs_never_loosen_the_limit(first: float, second: float) -> None:
    assert excess_limit(min(first, second)) >= excess_limit(max(first, second)) > 1.1


@given(k=st.integers(1, 1 << 20))
def test_f16_tolerance_is_a_chain_of_fp16_additions_until_the_cap(k: int) -> None:
    allowed = tolerance(Track.F16, k)
    assert allowed.noise * math.sqrt(k) <= 1e-2 * (1 + 1e-12)
    assert allowed.noise == pytest.approx(min(0.36 / 2048, 1e-2 / math.sqrt(k)))
    assert allowed.bound > tolerance(Track.F32, k).bound


@pytest.mark.parametrize("outputs", [1, 4, 16, 64, 256, 4096])
@pytest.mark.parametrize("shape", ["uniform", "normal"])
def test_honest_errors_never_reach_the_limit(outputs: int, shape: str) -> None:
    generator = torch.Generator().manual_seed(outputs)
    trials = 4_000_000 // outputs
    errors = torch.empty(trials, outputs)
    if shape == "uniform":
        errors.uniform_(-(3**0.5), 3**0.5, generator=generator)
    else:
        errors.normal_(generator=generator)
    means = errors.square().mean(1)
    assert means.mean().item() == pytest.approx(1.0, rel=0.01)
    assert means.max() < excess_limit(float(outputs))


@pytest.mark.parametrize(
    ("rms_relative", "k", "name"),
    [
        (0.0, 64, "fp32_accumulate"),
        (2.1e-4, 64, "fp32_accumulate"),
        (2.0e-4, 16384, "fp32_accumulate"),
        (2.9e-4, 64, "fp16_accumulate"),
        (3.3e-4, 64, "fp16_accumulate"),
        (8.4e-4, 512, "fp16_accumulate"),
        (4.7e-3, 16384, "fp16_accumulate"),
        (2.4e-3, 64, "bf16_inputs"),
        (1.3e-2, 64, "int8_inputs"),
        (1.2e-2, 16384, "int8_inputs"),
        (3.7e-2, 4096, "fp8_inputs"),
        (6.2e-2, 4096, "wrong"),
        (float("nan"), 64, "wrong"),
        (None, 64, "wrong"),
    ],
)
def test_measured_errors_get_their_class(rms_relative: float | None, k: int, name: str) -> None:
    assert classify(rms_relative, k) == name
