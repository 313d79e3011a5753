"""Device profiles against the data sheets that they quote."""

from __future__ import annotations

import pytest

from harness.model import DataError
from harness.problem import Problem, Track
from harness.problem_sets import resolve_shapes
from harness.profiles import load_profile, match_profile, profile_names

# Dense tensor TFLOP/s and boost clock in GHz by the data sheets, with fp16 accumulate.
DATA_SHEETS = {
    "h200": (989.4, 1.83),
    "h100": (989.4, 1.83),
    "a100": (311.9, 1.41),
    "rtx3090": (142.3, 1.695),
    "rtx4090": (330.3, 2.52),
}


@pytest.mark.parametrize("name", sorted(DATA_SHEETS))
def test_peak_is_the_data_sheets(name: str) -> None:
    profile = load_profile(name)
    tflops, boost_ghz = DATA_SHEETS[name]
    assert profile.sm_count * profile.peak_flops_per_clock_per_sm_f16 * boost_ghz / 1e3 == pytest.approx(tflops, rel=2e-3)
    assert profile.max_clock_mhz >= boost_ghz * 1e3


@pytest.mark.parametrize(("name", "ratio"), [("h200", 1), ("h100", 1), ("a100", 1), ("rtx3090", 2), ("rtx4090", 2)])
def test_geforce_halves_the_rate_with_fp32_accumulate(name: str, ratio: int) -> None:
    profile = load_profile(name)
    f32 = profile.peak_flops_per_s(Problem(m=1, n=1, k=1))
    assert profile.peak_flops_per_s(Problem(m=1, n=1, k=1, track=Track.F16)) == ratio * f32


@pytest.mark.parametrize("name", profile_names())
def test_what_is_reached_in_practice_stays_under_the_limits(name: str) -> None:
    profile = load_profile(name)
    assert profile.source
    assert profile.copy_bandwidth_bytes_per_s < profile.pin_bandwidth_bytes_per_s
    for problem in resolve_shapes("grid1000").problems:
        assert profile.limit_ns(problem, cold=True) <= profile.roof_ns(problem)


def test_a_device_is_found_by_its_drivers_name() -> None:
    assert match_profile("NVIDIA H200").name == "h200"
    assert match_profile("NVIDIA H100 80GB HBM3").name == "h100"
    assert match_profile("NVIDIA GeForce RTX 4090").name == "rtx4090"
    # The PCIe card has fewer multiprocessors, and no profile of its own: a missing one beats a wrong one.
    with pytest.raises(DataError, match="H100 PCIe"):
        match_profile("NVIDIA H100 PCIe")
