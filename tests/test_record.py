"""Illegal records cannot be built, and a record that was written reads back as it was."""

from __future__ import annotations

import itertools
import json
import math

import pytest
from factories import make_record, make_timing, ratio
from pydantic import ValidationError

from harness.model import DataError
from harness.problem import Problem
from harness.record import (
    REASONS,
    SUBMISSION,
    ContenderTiming,
    DrawStats,
    Interval,
    L2State,
    Measure,
    Mode,
    Reason,
    Record,
    Status,
    Timing,
)

PROBLEM = Problem(m=64, n=32, k=16)
COLD, WARM = Measure(), Measure(l2_state=L2State.WARM)
SERVER = Measure(mode=Mode.SERVER)
BAD_NUMBERS = [math.nan, math.inf, -math.inf]


def rebuilt(record: Record, **fields: object) -> Record:
    """The record with other fields, validated."""
    return Record.model_validate({**dict(record), **fields})


@pytest.mark.parametrize("status", list(Status))
def test_a_legal_record_of_every_status_survives_json(status: Status) -> None:
    record = make_record(PROBLEM, status, measures=(COLD, WARM, SERVER), not_applicable=(WARM,), detail="why")
    assert Record.parse(record.model_dump_json(), "a record") == record
    assert Record.parse(json.dumps(record.model_dump(mode="json")), "a record").sha256() == record.sha256()


@pytest.mark.parametrize(("status", "reason"), list(itertools.product(Status, [None, *Reason])))
def test_a_status_has_only_its_reasons(status: Status, reason: Reason | None) -> None:
    if reason in REASONS[status]:
        assert make_record(PROBLEM, status, reason=reason).reason is reason
    else:
        with pytest.raises(ValidationError, match="has not the reason"):
            make_record(PROBLEM, status, reason=reason)


def test_every_reason_belongs_to_one_status_and_is_documented() -> None:
    counted = [reason for status in Status for reason in REASONS[status] if reason is not None]
    assert sorted(counted) == sorted(Reason)
    assert all((reason.__doc__ or "").endswith(".") for reason in Reason)


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.VERIFIED])
def test_what_is_not_verified_has_no_times(status: Status) -> None:
    with pytest.raises(ValidationError, match="has no times"):
        make_record(PROBLEM, status, timings=(make_timing(COLD),))


@pytest.mark.parametrize(
    "timings",
    [
        (),
        (make_timing(COLD),),
        (make_timing(COLD), make_timing(COLD)),
        (make_timing(COLD), make_timing(WARM), make_timing(WARM)),
        (make_timing(COLD), make_timing(WARM), make_timing(SERVER)),
        (make_timing(COLD), make_timing(WARM, {"torch_matmul": 1.0})),
        (make_timing(COLD), make_timing(WARM, {"torch_matmul": 1.0, "cublas": 1.0})),
    ],
)
def test_a_verified_record_has_exactly_the_declared_times(timings: tuple[Timing, ...]) -> None:
    with pytest.raises(ValidationError, match=r"but the run declares|declared"):
        make_record(PROBLEM, measures=(COLD, WARM), timings=timings)


def test_a_verified_record_holds_what_was_measured() -> None:
    with pytest.raises(ValidationError, match="holds what verification measured"):
        make_record(PROBLEM, verification=None)


@pytest.mark.parametrize("absent", [(COLD,), (SERVER,), (WARM, COLD)])
def test_only_warm_data_can_be_not_applicable(absent: tuple[Measure, ...]) -> None:
    with pytest.raises(ValidationError, match="not applicable"):
        make_record(PROBLEM, measures=(COLD, WARM), not_applicable=absent)


def test_nothing_is_declared_twice() -> None:
    for fields in ({"measures": (COLD, COLD)}, {"baselines": ("cublas", "cublas")}):
        with pytest.raises(ValidationError, match="declared twice"):
            rebuilt(make_record(PROBLEM, Status.REJECTED), **fields)


@pytest.mark.parametrize("bad", BAD_NUMBERS)
def test_no_number_is_nan_or_infinite(bad: float) -> None:
    good = make_record(PROBLEM)
    with pytest.raises(ValidationError):
        rebuilt(good, seconds=bad)
    for field in ("value", "low", "high"):
        with pytest.raises(ValidationError):
            Interval.model_validate({"value": 1.0, "low": 1.0, "high": 1.0, field: bad})
    stats = {"inputs": "normal", "draws": 1, "outputs": 1, "rms_relative": 0.0, "block_rms_relative": 0.0, "bound_ratio": 0.0}
    assert DrawStats.model_validate({**stats, "inexact": 0}).rms_relative == 0
    for field in ("rms_relative", "block_rms_relative", "bound_ratio"):
        with pytest.raises(ValidationError):
            DrawStats.model_validate({**stats, "inexact": 0, field: bad})
    text = good.model_dump_json().replace('"seconds":0.0', f'"seconds":{json.dumps(bad)}')
    assert text != good.model_dump_json()
    with pytest.raises(DataError, match="seconds"):
        Record.parse(text, "a record")


@pytest.mark.parametrize(
    "ends", [(1.1, 1.0, 1.2), (1.0, 0.9, 1.2), (1.2, 1.0, 1.0), (0.0, 0.0, 0.0), (-1.0, 1.0, 2.0), (0.0, 1.0, 2.0)]
)
def test_a_speedup_is_a_positive_ordered_interval(ends: tuple[float, float, float]) -> None:
    low, value, high = ends
    if low <= value <= high:
        with pytest.raises(ValidationError, match="above 0"):
            make_timing(COLD).model_validate(
                {**dict(make_timing(COLD, {"cublas": 1.0})), "speedups": {"cublas": Interval(value=value, low=low, high=high)}}
            )
    else:
        with pytest.raises(ValidationError, match="does not hold"):
            Interval(value=value, low=low, high=high)


@pytest.mark.parametrize("windows", [(2, 1, 3), (3, 2, 2), (1, 3, 2), (0, 1, 2), (1, 1, 1.5), (True, 1, 1)])
def test_windows_are_positive_ordered_integers(windows: tuple[int, int, int]) -> None:
    low, median, high = windows
    with pytest.raises(ValidationError):
        ContenderTiming.model_validate(
            {
                "layout": "NN",
                "description": "",
                "launches_per_window": 1,
                "window_min_ns": low,
                "window_median_ns": median,
                "window_max_ns": high,
            }
        )


def test_a_timing_compares_the_submission_with_every_baseline_that_was_timed() -> None:
    timing = make_timing(COLD)
    contenders = dict(timing.contenders)
    without = {name: contender for name, contender in contenders.items() if name != SUBMISSION}
    for fields, says in (
        ({"contenders": without}, "every baseline"),
        ({"contenders": {**contenders, "cublas": contenders[SUBMISSION]}}, "every baseline"),
        ({"speedups": {**timing.speedups, "cublas": ratio(1.0)}}, "every baseline"),
        ({"best_baseline": "cublas"}, "was not timed"),
        ({"best_baseline": SUBMISSION}, "was not timed"),
        ({"rounds": 0}, "rounds"),
    ):
        with pytest.raises(ValidationError, match=says):
            Timing.model_validate({**dict(timing), **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"attempt": -1},
        {"segment": None},
        {"seed": "xyz"},
        {"seed": "A" * 32},
        {"plan_sha256": "0"},
        {"seconds": -1.0},
        {"problem": "64x32x16"},
        {"speed": 1},
        {"rankable": "yes"},
        {"baselines": ("../cublas",)},
        {"schema_version": 0},
    ],
)
def test_fields_are_strict(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        rebuilt(make_record(PROBLEM, Status.REJECTED), **fields)


def test_records_are_frozen() -> None:
    record = make_record(PROBLEM)
    with pytest.raises(ValidationError, match="frozen"):
        record.status = Status.REJECTED  # type: ignore[misc]


def test_a_newer_schema_is_refused_in_one_sentence_even_if_it_has_new_fields() -> None:
    newer = {**make_record(PROBLEM).model_dump(mode="json"), "schema_version": 2, "invented": True}
    with pytest.raises(DataError) as error:
        Record.parse(json.dumps(newer), "records.jsonl, line 3")
    written = "records.jsonl, line 3 was written by a newer version (schema 2, this one reads up to 1); "
    assert str(error.value) == f"{written}upgrade hgemm-arena to read it."


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"schema_version": true}', "{" * 99_999, '{"problem": NaN}'])
def test_what_is_no_record_is_one_sentence(text: str) -> None:
    with pytest.raises(DataError) as error:
        Record.parse(text, "records.jsonl, line 3")
    assert str(error.value).startswith("records.jsonl, line 3 ")
    assert "\n" not in str(error.value)
