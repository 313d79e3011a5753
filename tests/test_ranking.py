"""The ranking as a pure function: order, ranges, standings, versions and several runs, against plain re-statements of them."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from factories import ratio
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.record import Interval
from harness.scores import Regime
from harness.timing.statistics import log_half_width
from leaderboard.ranking import ScoredRun, Standing, VerdictKind, combine_runs, rank

NUMBER = 0


def run(value: float | Interval | None = 1.0, half_width: float = 0.003, **fields: object) -> ScoredRun:
    """A complete run of a submission of its own, unless said otherwise; None is an incomplete one."""
    global NUMBER
    NUMBER += 1
    interval = value if isinstance(value, Interval | None) else ratio(value, half_width)
    defaults: dict[str, object] = {
        "name": f"kernel-{NUMBER}",
        "version": "1.0.0",
        "authors": ("Ada",),
        "description": "",
        "badges": (),
        "tree_sha256": f"{NUMBER:064x}",
        "code_sha256": f"{NUMBER:064x}",
        "verdict": None,
        "verdict_reason": "",
        "run": f"run-{NUMBER}",
        "ended_utc": f"2026-11-01T00:{NUMBER // 60 % 60:02}:{NUMBER % 60:02}Z",
        "shapes": 10,
        "verified": 10 if interval is not None else 8,
        "rejected": 0,
        "unsupported": 0 if interval is not None else 2,
        "not_attempted": 0,
        "because": "",
        "geomean": interval,
        "total_time": interval and interval.value,
        "win_rate": interval and 0.5,
        "arithmetic_mean": interval and interval.value,
        "regimes": {Regime.LATENCY: interval.value} if interval else {},
    }
    return ScoredRun(**{**defaults, **fields})  # type: ignore[arg-type]


interval_strategy = st.builds(ratio, st.floats(0.5, 2), st.sampled_from([0, 1e-3, 0.005, 0.009]))


@given(st.lists(interval_strategy, min_size=1, max_size=30))
def test_order_and_rank_ranges_are_those_of_the_definition(intervals: list[Interval]) -> None:
    ranked, apart = rank([run(interval) for interval in intervals])
    assert apart == ()
    found = [(entry.geomean, entry.rank) for entry in ranked]
    assert [geomean.low for geomean, _ in found] == sorted((i.low for i in intervals), reverse=True)
    for place, (mine, range_) in enumerate(found):
        others = [geomean for other, (geomean, _) in enumerate(found) if other != place]
        assert range_.first == 1 + sum(other.low > mine.high for other in others)
        assert range_.last == 1 + sum(other.high >= mine.low for other in others)
        assert range_.first <= place + 1 <= range_.last


def test_ties_share_their_range_and_separated_ones_have_one_place() -> None:
    ranked, _ = rank([run(1.2), run(1.0), run(1.0), run(1.001), run(0.5)])
    assert [str(entry.rank) for entry in ranked] == ["1", "2-4", "2-4", "2-4", "5"]


def mixed() -> st.SearchStrategy[list[ScoredRun]]:
    """Runs of any standing, several of one submission and several versions of one among them."""
    single = st.builds(
        lambda value, width, name, tree, fields: run(
            value, width, name=name, tree_sha256=f"{name}{tree}".encode().hex().zfill(64), **fields
        ),
        st.one_of(st.none(), st.floats(0.5, 2)),
        st.sampled_from([0.001, 0.009, 0.02]),
        st.sampled_from(["a", "b", "c"]),
        st.integers(1, 3),
        st.sampled_from([{}, {}, {"rejected": 1}, {"because": "a CPU"}, {"unsupported": 1}]),
    )
    return st.lists(single, min_size=1, max_size=12)


@given(mixed(), st.sets(st.integers(0, 11)), st.randoms(use_true_random=False))
@settings(max_examples=200)
def test_only_what_may_rank_does_whatever_the_order(runs: list[ScoredRun], judged: set[int], rng: random.Random) -> None:
    trees = {each.tree_sha256 for number, each in enumerate(runs) if number in judged}
    kinds = {tree: rng.choice(list(VerdictKind)) for tree in sorted(trees)}
    runs = [each._replace(verdict=kinds.get(each.tree_sha256), verdict_reason="x") for each in runs]
    ranked, apart = rank(runs)
    assert (ranked, apart) == rank(rng.sample(runs, len(runs)))
    assert {entry.tree_sha256 for entry in (*ranked, *apart)} == {each.tree_sha256 for each in runs}
    assert len({(entry.authors[0], entry.name) for entry in ranked}) == len(ranked), "one version of a submission ranks"
    for entry in ranked:
        mine = [each for each in runs if each.tree_sha256 == entry.tree_sha256]
        assert entry.standing is Standing.RANKED
        assert entry.rank is not None
        assert not any(each.verdict or each.rejected for each in mine)
        assert any(each.geomean is not None and not each.because for each in mine)
        assert entry.geomean is not None
        assert log_half_width(entry.geomean) <= 0.01
    for entry in apart:
        assert entry.standing is not Standing.RANKED
        assert entry.rank is None
        assert entry.because
    order = [entry.standing is Standing.SUPERSEDED for entry in apart]
    assert order == sorted(order), "superseded ones come last"


@pytest.mark.parametrize(
    ("runs", "standing", "because"),
    [
        ([run(None)], Standing.INCOMPLETE, "8 of 10 shapes are verified, 2 not supported"),
        ([run(None, verified=3, unsupported=0, not_attempted=7)], Standing.INCOMPLETE, "3 of 10 shapes are verified, 7 not"),
        ([run(None, rejected=2)], Standing.REJECTED, "2 of 10 shapes were rejected in run-"),
        ([run(1.0, 0.0101)], Standing.IMPRECISE, "its interval is ±1.01 %, wider than ±1 %"),
        ([run(1.0, because="a CPU")], Standing.NOT_RANKABLE, "a CPU"),
        ([run(1.0, verdict=VerdictKind.WITHDRAWN, verdict_reason="so")], Standing.WITHDRAWN, "so"),
        ([run(1.0, rejected=1, verdict=VerdictKind.CHEATING, verdict_reason="so")], Standing.CHEATING, "so"),
    ],
)
def test_standings_and_their_reasons(runs: list[ScoredRun], standing: Standing, because: str) -> None:
    ranked, (entry,) = rank(runs)
    assert ranked == ()
    assert entry.standing is standing
    assert entry.because.startswith(because)


def same(first: ScoredRun, *others: ScoredRun) -> list[ScoredRun]:
    """Runs of one submission."""
    return [first, *(other._replace(tree_sha256=first.tree_sha256, name=first.name) for other in others)]


def test_a_kernel_that_was_wrong_once_is_wrong() -> None:
    _, (entry,) = rank(same(run(1.5), run(None, rejected=1)))
    assert entry.standing is Standing.REJECTED


def test_an_incomplete_run_and_one_on_a_shared_machine_do_not_count_beside_a_good_one() -> None:
    (entry,), _ = rank(same(run(1.5), run(None), run(9.0, because="others used the device")))
    assert entry.geomean == ratio(1.5, 0.003)
    assert len(entry.runs) == 3
    assert not entry.single_run


def test_the_best_version_stands_and_the_others_say_which() -> None:
    old, new = run(1.3, name="k", version="1.0.0"), run(1.2, name="k", version="2.0.0")
    ranked, apart = rank([old, new, run(1.25, name="k", authors=("Bob",)), run(None, name="k", version="3.0.0")])
    assert [(entry.authors[0], entry.version) for entry in ranked] == [("Ada", "1.0.0"), ("Bob", "1.0.0")]
    assert [(entry.version, entry.standing) for entry in apart] == [
        ("3.0.0", Standing.INCOMPLETE),
        ("2.0.0", Standing.SUPERSEDED),
    ]
    assert apart[1].because.startswith("version 1.0.0 (")


def test_one_run_keeps_its_interval_and_says_that_it_is_alone() -> None:
    (entry,), _ = rank([run(1.5)])
    assert entry.geomean == ratio(1.5, 0.003)
    assert entry.single_run


def test_runs_that_agree_narrow_the_interval_and_runs_that_differ_widen_it() -> None:
    agreeing = combine_runs([ratio(1.0, 0.004)] * 4)
    assert (agreeing.value, log_half_width(agreeing)) == (pytest.approx(1.0), pytest.approx(0.002))
    apart = combine_runs([ratio(1.00, 0.001), ratio(1.02, 0.001)])
    assert apart.value == pytest.approx(math.sqrt(1.02))
    assert log_half_width(apart) == pytest.approx(1.96 * math.log(1.02) / 2)
    _, (entry,) = rank(same(run(1.0, 0.001), run(1.04, 0.001)))
    assert entry.standing is Standing.IMPRECISE


@given(st.lists(interval_strategy, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_combining_does_not_depend_on_order_and_holds_the_mean(scores: list[Interval], rng: random.Random) -> None:
    found = combine_runs(scores)
    assert combine_runs(rng.sample(scores, len(scores))).value == pytest.approx(found.value)
    mean = math.exp(sum(math.log(score.value) for score in scores) / len(scores))
    assert found.low <= mean * (1 + 1e-12)
    assert found.high >= mean * (1 - 1e-12)


def test_coverage_of_combined_intervals_is_what_the_docstring_says() -> None:
    rng = np.random.default_rng(1)
    coverage = {}
    for count in (1, 2, 3, 5):
        covered = 0
        for logs in rng.normal(0, math.sqrt(5) * 1e-3, (3000, count)):
            interval = combine_runs([ratio(math.exp(log), 1.96e-3) for log in logs])
            covered += interval.low <= 1 <= interval.high
        coverage[count] = covered / 3000
    assert [coverage[count] for count in (1, 2, 3, 5)] == pytest.approx([0.62, 0.80, 0.85, 0.89], abs=0.025)


def test_figures_of_several_runs_are_means() -> None:
    first, second = same(run(1.0, total_time=2.0, win_rate=0.2), run(1.0, total_time=8.0, win_rate=0.4))
    (entry,), _ = rank([first, second._replace(regimes={Regime.LATENCY: 4.0})])
    assert (entry.total_time, entry.win_rate) == (pytest.approx(4.0), pytest.approx(0.3))
    assert entry.regimes == {Regime.LATENCY: pytest.approx(2.0)}


def test_nothing_ranks_on_an_empty_list() -> None:
    assert rank([]) == ((), ())
