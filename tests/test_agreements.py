"""What an A/A test tells: ratios of the autotuned choice to itself."""

from __future__ import annotations

from factories import make_record

from harness.doctor import AA_BASELINE, Agreements
from harness.problem import Problem
from harness.timing.statistics import Agreement


def test_the_extremes_name_their_shapes() -> None:
    ratios = {"64x64x64": 1.002, "128x64x64": 0.991, "64x128x64": 1.004}
    records = tuple(make_record(Problem.parse(shape), speedups={AA_BASELINE: value}) for shape, value in ratios.items())
    nothing = Agreement(intervals=3, coverage=1.0, geomean=1.0, median_half_width=0.01)
    found = Agreements(records, {"offline/cold": nothing}, nothing, {})
    assert found.extremes("offline/cold") == "from 0.9910 (128x64x64) to 1.0040 (64x128x64)"
