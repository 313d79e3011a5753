"""Scores of a run: known values, the order of records, incomplete sets, and figures that must raise."""

from __future__ import annotations

import json
import math
import random

import pytest
from factories import make_record, make_timing, ratio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.model import DataError
from harness.problem import Problem, Track
from harness.profiles import load_profile
from harness.record import Interval, L2State, Measure, Mode, Status
from harness.scores import BEST, Counts, Regime, Score, Scores, regime, score

H200 = load_profile("h200")
COLD = Measure()
WARM = Measure(l2_state=L2State.WARM)
SERVER = Measure(mode=Mode.SERVER)
SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 12288, 16384)
GRID = [Problem(m=m, n=n, k=k) for m in SIZES for n in SIZES for k in SIZES]
BAD = [math.nan, math.inf, -math.inf, 0.0, -1.0]


def cold(scores: Scores) -> dict[str, Score]:
    return scores.scores[Mode.OFFLINE][L2State.COLD]


def scored(*speedups: float, **fields: object) -> Scores:
    problems = GRID[: len(speedups)]
    records = [make_record(p, speedups={"torch_matmul": s}, **fields) for p, s in zip(problems, speedups, strict=True)]
    return score(records, problems, H200)


def test_known_values_of_one_baseline() -> None:
    got = cold(scored(0.5, 2.0, 4.0))["torch_matmul"]
    assert got.shapes == 3
    assert got.geomean.value == pytest.approx(4 ** (1 / 3))
    half_width = 0.005 / math.sqrt(3)
    assert got.geomean.low == pytest.approx(got.geomean.value * math.exp(-half_width))
    assert got.geomean.high == pytest.approx(got.geomean.value * math.exp(half_width))
    assert got.arithmetic_mean == pytest.approx(6.5 / 3)
    assert got.win_rate == pytest.approx(2 / 3)
    assert not got.imprecise


def test_total_time_is_dominated_by_large_shapes() -> None:
    problems = GRID[:2]
    records = [
        make_record(problems[0], speedups={"torch_matmul": 4.0}, submission_ns=1_000, launches=1000),
        make_record(problems[1], speedups={"torch_matmul": 0.5}, submission_ns=1_000_000, launches=1),
    ]
    got = cold(score(records, problems, H200))["torch_matmul"]
    assert got.total_time == pytest.approx((4_000 + 500_000) / (1_000 + 1_000_000))
    assert got.geomean.value == pytest.approx(math.sqrt(2))


def test_best_is_the_baseline_chosen_for_each_shape_even_where_another_came_out_faster() -> None:
    problems = GRID[:2]
    speedups = {"torch_matmul": 1.1, "cublas": 1.3}
    records = [
        make_record(problems[0], speedups=speedups),
        make_record(problems[1], speedups=speedups, best_baseline="cublas"),
    ]
    got = cold(score(records, problems, H200))
    assert set(got) == {"torch_matmul", "cublas", BEST}
    assert got[BEST].geomean.value == pytest.approx(math.sqrt(1.1 * 1.3))
    assert got[BEST].total_time == pytest.approx((1.1 + 1.3) / 2)
    assert got["torch_matmul"].geomean.value == pytest.approx(1.1)


def test_a_thousand_shapes_of_any_ratio_neither_under_nor_overflow() -> None:
    for value in (20e-6, 1e-3, 1.0, 1e3):
        records = [make_record(problem, speedups={"torch_matmul": value}, submission_ns=10**9) for problem in GRID]
        got = cold(score(records, GRID, H200))[BEST]
        assert got.geomean.value == pytest.approx(value, rel=1e-12)
        assert got.total_time == pytest.approx(value)
        assert got.shapes == 1000


speedup_lists = st.lists(st.floats(0.01, 100), min_size=1, max_size=25)


@settings(deadline=None, max_examples=40)
@given(speedup_lists, st.randoms(use_true_random=False))
def test_order_of_records_and_problems_does_not_matter(values: list[float], rng: random.Random) -> None:
    problems = GRID[:: len(GRID) // len(values)][: len(values)]
    records = [make_record(p, speedups={"torch_matmul": v, "cublas": 1.0}) for p, v in zip(problems, values, strict=True)]
    expected = score(records, problems, H200)
    shuffled = score(rng.sample(records, len(records)), rng.sample(problems, len(problems)), H200)
    assert shuffled == expected
    assert shuffled.canonical_json() == expected.canonical_json()


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(speedup_lists, st.data())
def test_geomean_inverts_when_the_sides_are_swapped(values: list[float], data: st.DataObject) -> None:
    there, back = cold(scored(*values))[BEST].geomean, cold(scored(*(1 / v for v in values)))[BEST].geomean
    assert [there.value, there.low, there.high] == pytest.approx([1 / back.value, 1 / back.high, 1 / back.low])


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 20), st.data())
def test_any_shape_without_a_verified_record_makes_the_run_incomplete(count: int, data: st.DataObject) -> None:
    problems = GRID[:count]
    missing = data.draw(st.integers(0, count - 1))
    status = data.draw(st.sampled_from([None, *(s for s in Status if s is not Status.VERIFIED)]))
    records = [make_record(p) for i, p in enumerate(problems) if i != missing]
    if status is not None:
        records.append(make_record(problems[missing], status))
    got = score(records, problems, H200)
    assert not got.complete
    assert not got.rankable
    assert (got.scores, got.regimes, got.worst) == ({}, {}, {})
    assert got.counts == Counts(expected=count, verified=count - 1, **({status.value: 1} if status else {}))
    assert got.partial is not None
    assert got.partial.scores[Mode.OFFLINE][L2State.COLD][BEST].shapes == count - 1
    whole = score([*records, make_record(problems[missing], attempt=1)], problems, H200)
    assert whole.complete
    assert whole.partial is None
    assert cold(whole)[BEST].shapes == count


def test_no_record_at_all_is_incomplete_and_has_no_partial() -> None:
    got = score([], GRID, H200)
    assert got.counts.model_dump() == {
        "expected": 1000, "verified": 0, "rejected": 0, "unsupported": 0, "infra_error": 0, "not_attempted": 0,
    }  # fmt: skip
    assert (got.complete, got.partial) == (False, None)


def test_latest_attempt_counts_whatever_the_order() -> None:
    failed = make_record(GRID[0], Status.INFRA_ERROR)
    passed = make_record(GRID[0], attempt=1)
    for records in ([failed, passed], [passed, failed], [failed, passed, passed]):
        assert score(records, GRID[:1], H200).counts == Counts(expected=1, verified=1)
    lost = make_record(GRID[0], Status.REJECTED, attempt=2)
    got = score([passed, lost, failed], GRID[:1], H200)
    assert (got.complete, got.counts.rejected, got.counts.verified) == (False, 1, 0)


def test_two_different_records_of_one_attempt_raise() -> None:
    records = [make_record(GRID[0]), make_record(GRID[0], speedups={"torch_matmul": 3.0, "cublaslt_autotuned": 3.0})]
    with pytest.raises(DataError, match="two different records"):
        score(records, GRID[:1], H200)


def test_records_outside_the_set_do_not_count() -> None:
    records = [make_record(GRID[0]), make_record(GRID[1], Status.REJECTED)]
    got = score(records, GRID[:1], H200)
    assert got.complete
    assert got.counts == Counts(expected=1, verified=1)
    other_track = Problem(m=64, n=64, k=64, track=Track.F16)
    assert not score([make_record(other_track)], GRID[:1], H200).complete


@pytest.mark.parametrize(
    "problems",
    [[], [GRID[0], GRID[0]], [GRID[0], Problem(m=128, n=64, k=64, track=Track.F16)]],
    ids=["empty", "twice", "tracks"],
)
def test_sets_that_are_none_raise(problems: list[Problem]) -> None:
    with pytest.raises(DataError, match="set of problems"):
        score([make_record(p) for p in problems], problems, H200)


def test_records_of_different_declarations_raise() -> None:
    one = make_record(GRID[0], speedups={"torch_matmul": 2.0})
    for other in (
        make_record(GRID[1], speedups={"torch_matmul": 2.0, "cublas": 1.0}),
        make_record(GRID[1], speedups={"torch_matmul": 2.0}, measures=(COLD, WARM)),
    ):
        with pytest.raises(DataError, match="different measures or baselines"):
            score([one, other], GRID[:2], H200)


def test_a_baseline_called_best_raises() -> None:
    with pytest.raises(DataError, match="'best'"):
        score([make_record(GRID[0], speedups={"best": 1.0})], GRID[:1], H200)


def test_warm_where_not_applicable_is_fewer_shapes_and_still_complete() -> None:
    records = [
        make_record(GRID[0], measures=(COLD, WARM, SERVER)),
        make_record(GRID[1], measures=(COLD, WARM, SERVER), not_applicable=(WARM,)),
    ]
    got = score(records, GRID[:2], H200)
    assert got.complete
    assert {(mode, state): by[BEST].shapes for mode, states in got.scores.items() for state, by in states.items()} == {
        (Mode.OFFLINE, L2State.COLD): 2,
        (Mode.OFFLINE, L2State.WARM): 1,
        (Mode.SERVER, L2State.COLD): 2,
    }


def test_one_record_that_is_not_rankable_makes_the_run_so() -> None:
    assert score([make_record(GRID[0]), make_record(GRID[1])], GRID[:2], H200).rankable
    got = score([make_record(GRID[0]), make_record(GRID[1], rankable=False)], GRID[:2], H200)
    assert got.complete
    assert not got.rankable


def test_worst_ten_against_best_lowest_first() -> None:
    values = [1.0 + 0.01 * (7 * i % 30) for i in range(30)]
    worst = scored(*values).worst[Mode.OFFLINE][L2State.COLD]
    assert [entry.speedup.value for entry in worst] == pytest.approx(sorted(values)[:10])
    assert worst[0].shape == str(GRID[values.index(1.0)])
    assert worst[0].baseline == "torch_matmul"
    assert len(scored(1.0, 1.0).worst[Mode.OFFLINE][L2State.COLD]) == 2


def test_imprecise_is_wider_than_one_percent() -> None:
    def of(half_width: float) -> Score:
        record = make_record(GRID[0], speedups={"torch_matmul": ratio(1.5, half_width)})
        return cold(score([record], GRID[:1], H200))[BEST]

    assert not of(0.0099).imprecise
    assert of(0.0101).imprecise
    nan = Interval.model_construct(value=math.nan, low=math.nan, high=math.nan)
    with pytest.raises(ValueError, match="positive and finite"):
        _ = of(0.005).model_copy(update={"geomean": nan}).imprecise


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("field", ["value", "low", "high"])
@pytest.mark.parametrize("baseline", ["torch_matmul", "cublas"])
def test_speedup_that_is_not_positive_and_finite_raises(bad: float, field: str, baseline: str) -> None:
    good = make_timing(COLD, {"torch_matmul": 1.0, "cublas": 2.0})
    broken = Interval.model_construct(**{"value": 1.0, "low": 0.9, "high": 1.1, field: bad})
    timing = good.model_copy(update={"speedups": {**good.speedups, baseline: broken}})
    record = make_record(GRID[1], speedups=good.speedups).model_copy(update={"timings": (timing,)})
    first = make_record(GRID[0], speedups=good.speedups)
    with pytest.raises(DataError, match="not positive and finite"):
        score([first, record], GRID[:2], H200)
    with pytest.raises(DataError, match="not positive and finite"):
        score([first, record], GRID[:3], H200)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("contender", ["submission", "torch_matmul"])
def test_time_that_is_not_positive_and_finite_raises(bad: float, contender: str) -> None:
    good = make_timing(COLD, {"torch_matmul": 1.0})
    broken = good.contenders[contender].model_copy(update={"window_median_ns": bad})
    timing = good.model_copy(update={"contenders": {**good.contenders, contender: broken}})
    record = make_record(GRID[0], speedups=good.speedups).model_copy(update={"timings": (timing,)})
    with pytest.raises(DataError, match="not positive and finite"):
        score([record], GRID[:1], H200)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_file_with_a_figure_that_is_not_finite_is_refused(bad: float) -> None:
    data = json.loads(scored(1.0, 2.0).model_dump_json())
    data["scores"]["offline"]["cold"]["best"]["geomean"]["value"] = bad
    with pytest.raises(DataError, match="finite"):
        Scores.parse(json.dumps(data), "scores.json")


def test_scores_survive_their_file() -> None:
    incomplete = score([make_record(GRID[0], measures=(COLD, WARM))], GRID[:2], H200)
    for scores in (scored(0.5, 2.0, 3.0), incomplete):
        assert Scores.parse(scores.model_dump_json(), "scores.json") == scores


def test_scores_of_an_incomplete_run_cannot_be_built() -> None:
    whole = scored(1.0, 2.0)
    fields = {name: getattr(whole, name) for name in Scores.model_fields}
    counts = Counts(expected=3, verified=2)
    for change in (
        {"counts": counts},
        {"counts": counts, "complete": False},
        {"counts": counts, "complete": False, "rankable": False},
        {"complete": False},
        {"partial": incomplete_partial()},
    ):
        with pytest.raises(ValidationError):
            Scores(**{**fields, **change})
    with pytest.raises(ValidationError, match="more problems"):
        Counts(expected=1, verified=1, rejected=1)


def incomplete_partial() -> object:
    return score([make_record(GRID[0])], GRID[:2], H200).partial


def test_regimes_come_in_their_order() -> None:
    def of(shape: str) -> Regime:
        return regime(Problem.parse(shape), H200)

    assert of("64x64x64") is Regime.LATENCY
    assert of("1024x1024x64") is Regime.LATENCY
    assert of("64x16384x16384") is Regime.SKINNY
    assert of("16384x256x64") is Regime.LATENCY
    assert of("16384x256x256") is Regime.SKINNY
    assert of("4096x4096x256") is Regime.OUTPUT_BOUND
    assert of("4096x4096x257") is Regime.COMPUTE
    assert of("257x16384x8192") is Regime.COMPUTE


def test_regimes_of_the_grid_on_an_h200_are_those_of_the_definition() -> None:
    found = {name: sum(regime(problem, H200) is name for problem in GRID) for name in Regime}
    assert sum(found.values()) == 1000
    for problem in GRID:
        roof = max(
            2 * problem.m * problem.n * problem.k / 800e12,
            2 * (problem.m * problem.k + problem.k * problem.n + problem.m * problem.n) / 4.3e12,
        )
        latency, skinny = roof < 3e-6, min(problem.m, problem.n) <= 256
        output = problem.k <= 256 and problem.m * problem.n >= 4e6
        expected = [Regime.LATENCY, Regime.SKINNY, Regime.OUTPUT_BOUND, Regime.COMPUTE][
            [latency, skinny, output, True].index(True)
        ]
        assert regime(problem, H200) is expected


def test_regime_scores_split_the_whole() -> None:
    problems = [Problem.parse(s) for s in ("64x64x64", "64x64x128", "4096x4096x256", "4096x4096x4096")]
    records = [make_record(p, speedups={"torch_matmul": s}) for p, s in zip(problems, (1.0, 4.0, 3.0, 5.0), strict=True)]
    got = score(records, problems, H200).regimes[Mode.OFFLINE][L2State.COLD]["torch_matmul"]
    assert {name: (part.shapes, round(part.geomean.value, 9)) for name, part in got.items()} == {
        Regime.LATENCY: (2, 2.0),
        Regime.OUTPUT_BOUND: (1, 3.0),
        Regime.COMPUTE: (1, 5.0),
    }
