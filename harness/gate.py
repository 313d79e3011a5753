"""The gate: did a submission become slower than a pinned baseline says, by more than it may?

A unit is a shape, a regime or all shapes of a submission in one measure. Its slowdown is the time now over the baseline's. It

- **fails** where both its estimate and a lower bound are beyond the limit, and the same holds relative to the baselines of its
  own rounds (where those chose the same as before), or else the machine has slowed;
- **passes** where no estimate is beyond the limit, nor so uncertain that noise would hide a slowdown of twice the limit;
- is **ambiguous** else: then it is measured again.

What was not measured, or does not mean the same on both sides, is **invalid**, whatever the rest says. So a pass means that
every benchmark of the baseline was measured again, verified, in the same way on the same device.

A shape's estimate is that of Hodges and Lehmann on its rounds (`harness.timing.statistics`), its error what the 95 % interval
says; errors add in quadrature over the two sides and over the shapes of a unit. The bound holds for all units and for every
look of the gate together: `FALSE_FAIL` is shared out among them (Bonferroni). An error that all rounds of a sitting share is in
neither, which is what the limit's width, the comparison with the rounds' own baselines, and another sitting are for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from statistics import NormalDist
from typing import Annotated

from pydantic import Field

from harness.gate_data import Acceptance, Benchmark, Results, drift, figures
from harness.gate_units import ALL, Z95, Unit, group_units, other_key, shape_units
from harness.model import DataError, Document, Model, Name, Positive
from harness.record import Interval, Measure
from harness.scores import Regime

FALSE_FAIL = 0.01
"""Probability at most that a gate fails though no unit is slower than its limit."""
MISSED = 0.01
"""Probability at most that a unit passes though it became slower by twice its limit."""
MAX_SITTINGS = 4
"""Measurements of a shape at most: the first, and three more while the gate cannot decide."""
DEFAULT_LIMIT = 0.05


class Outcome(StrEnum):
    """What a gate says."""

    PASS = "pass"
    """Nothing is slower than it may be."""
    FAIL = "fail"
    """Something is, beyond chance."""
    AMBIGUOUS = "ambiguous"
    """Something may be: it may be chance or the machine."""
    INVALID = "invalid"
    """Something is missing, unverified or not comparable."""


EXIT_CODES = {Outcome.PASS: 0, Outcome.FAIL: 1, Outcome.AMBIGUOUS: 10, Outcome.INVALID: 11}


class Limits(Model):
    """How much slower things may become, as fractions: 0.05 is 5 %."""

    default: Annotated[float, Field(gt=0)] = DEFAULT_LIMIT
    """For all shapes together, and for the regimes that are not named."""
    regimes: dict[Regime, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """For a regime and for its shapes."""

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Limits:
        """Read `5%`, `2.5%` and `latency=3%`, in any number; the last one of a kind counts.

        Raises:
            DataError: it is none of these.
        """
        default, regimes = DEFAULT_LIMIT, {}
        for text in texts:
            name, _, value = text.rpartition("=")
            found = re.fullmatch(r"(\d+(?:\.\d+)?)%", value.strip())
            if found is None or not float(found[1]) > 0 or (name and name not in set(Regime)):
                raise DataError(f"{text!r} is no limit; write 5%, 2.5%, or a regime's as in latency=3% ({', '.join(Regime)}).")
            if name:
                regimes[Regime(name)] = float(found[1]) / 100
            else:
                default = float(found[1]) / 100
        return cls(default=default, regimes=regimes)

    def of(self, regime: Regime | None) -> float:
        """The limit of a regime, or of all shapes."""
        return self.default if regime is None else self.regimes.get(regime, self.default)


class Row(Model):
    """One unit."""

    submission: Name
    """Whose times."""
    measure: Measure
    """What was timed."""
    unit: str
    """A shape, a regime or `all shapes`."""
    regime: Regime | None
    """Of a regime and of a shape."""
    shapes: Positive
    """Shapes in it."""
    slowdown: Interval
    """Time now over the baseline's, relative to what the gate is relative to, with its 95 % interval."""
    relative: float | None
    """The same relative to the baselines of its own rounds; null in ratio mode, and where none chose the same."""
    bound: float
    """What both are at least, for all units of the gate together."""
    ceiling: float
    """What the more precise of both is at most, for this unit alone."""
    limit: float
    """What it may be, as a fraction: 0.05 is 5 %."""
    outcome: Outcome
    """What follows."""

    @property
    def machine(self) -> bool:
        """Whether the baselines of its rounds slowed as well, so that the machine may have."""
        allowed = 1 + self.limit
        return self.relative is not None and self.slowdown.value > allowed >= self.relative


class Verdict(Document):
    """What `hgemm gate --json` prints."""

    outcome: Outcome
    """The gravest: invalid, fail, ambiguous, pass."""
    relative_to: str
    """What times are relative to: a baseline, another submission, or empty for time itself."""
    limits: Limits
    """What was allowed."""
    faults: tuple[str, ...]
    """Why it is invalid, one sentence each."""
    elsewhere: bool
    """Whether that is all for another device, other libraries or another protocol: then a baseline of this machine would do."""
    groups: tuple[Row, ...]
    """All shapes and regimes, per submission and measure."""
    shapes: tuple[Row, ...]
    """Every shape."""
    again: int
    """Measurements that were added because the gate could not decide."""
    drift: float | None
    """Geometric mean of the time now over the anchor's, all shapes; null where nothing compares."""
    anchor_utc: str
    """When the anchor was accepted."""
    baseline: Acceptance | None
    """The acceptance that was compared with."""

    @property
    def exit_code(self) -> int:
        """What the command ends with."""
        return EXIT_CODES[self.outcome]

    @property
    def rows(self) -> tuple[Row, ...]:
        """Every unit."""
        return (*self.groups, *self.shapes)


def judge(now: Results, baseline: Results, limits: Limits, ratio: str = "") -> Verdict:
    """Compare results with a baseline.

    Args:
        now: what was measured.
        baseline: a pinned baseline.
        limits: how much slower units may be.
        ratio: a baseline of the rounds, or another submission of the same file, to take times relative to; then the card may be
            another of its kind.
    """
    elsewhere = _elsewhere(now, baseline, ratio)
    found = list(dict.fromkeys([*_faults(now, baseline, ratio), *elsewhere]))
    units = () if found else tuple(shape_units(now, baseline, ratio))
    groups = list(group_units(units))
    # Each unit has its share of FALSE_FAIL at each look.
    z = NormalDist().inv_cdf(1 - FALSE_FAIL / MAX_SITTINGS / max(1, len(units) + len(groups)))
    rows = [[_row(unit, limits, z) for unit in several] for several in (groups, units)]
    outcomes = {row.outcome for several in rows for row in several}
    grave = next((outcome for outcome in (Outcome.FAIL, Outcome.AMBIGUOUS) if outcome in outcomes), Outcome.PASS)
    pin = baseline.pin
    return Verdict(
        outcome=Outcome.INVALID if found else grave,
        relative_to=ratio,
        limits=limits,
        faults=tuple(found),
        elsewhere=bool(found) and set(found) == set(elsewhere),
        groups=tuple(rows[0]),
        shapes=tuple(rows[1]),
        again=sum(len(benchmark.sittings) - 1 for benchmark in now.benchmarks.values()),
        drift=None if pin is None or found else drift(pin.anchor, figures(now.benchmarks), ratio),
        anchor_utc="" if pin is None else pin.anchor_utc,
        baseline=None if pin is None else pin.latest,
    )


def undecided(verdict: Verdict, now: Results) -> list[str]:
    """Keys of the benchmarks that another sitting of would help to decide; none where the gate has decided."""
    if verdict.outcome is not Outcome.AMBIGUOUS:
        return []
    open_rows = [row for row in verdict.shapes if row.outcome is Outcome.AMBIGUOUS] or [
        row for row in verdict.groups if row.outcome is Outcome.AMBIGUOUS
    ]
    keys = []
    for key, benchmark in now.benchmarks.items():
        shape = str(benchmark.problem)
        for row in open_rows:
            inside = row.unit in (shape, ALL) or row.unit == benchmark.regime
            mine = benchmark.submission.name in (row.submission, verdict.relative_to)
            if inside and mine and benchmark.measure == row.measure and len(benchmark.sittings) < MAX_SITTINGS:
                keys.append(key)
                break
    return keys


def settle(
    now: Results, decide: Callable[[Results], Verdict], again: Callable[[Benchmark], Benchmark | str | None]
) -> tuple[Results, Verdict]:
    """Judge, and measure again what cannot be decided until it can, or `again` says that the budget is spent.

    Args:
        now: what was measured.
        decide: judges it.
        again: the benchmark with one more sitting, what went wrong, or None to stop.
    """
    verdict = decide(now)
    while keys := undecided(verdict, now):
        benchmarks, faults, spent = dict(now.benchmarks), list(now.faults), False
        for key in keys:
            found = again(benchmarks[key])
            if isinstance(found, Benchmark):
                benchmarks[key] = found
            elif found is None:
                spent = True
                break
            else:
                faults.append(found)
        now = now._replace(benchmarks=benchmarks, faults=tuple(faults))
        verdict = decide(now)
        if spent:
            break
    return now, verdict


def differences(now: Benchmark, before: Benchmark, another_card: bool = False) -> Iterator[str]:
    """What keeps two measurements from meaning the same, one sentence each."""
    one, other = now.device, before.device
    for field in ("profile", "name", "driver", "timer"):
        if getattr(one, field) != getattr(other, field):
            yield f"the device's {field} is {getattr(one, field)!r}, and {getattr(other, field)!r} in the baseline"
    if one.uuid != other.uuid and not another_card:
        yield f"the device is {one.uuid}, and {other.uuid} in the baseline: gate on a ratio where cards change"
    for name in sorted(one.libraries.keys() | other.libraries.keys()):
        versions = one.libraries.get(name, "absent"), other.libraries.get(name, "absent")
        if versions[0] != versions[1]:
            yield f"{name} is {versions[0]}, and {versions[1]} in the baseline"
    if now.protocol.identity != before.protocol.identity:
        yield "the protocol is another than the baseline's"
    if now.submission.track != before.submission.track:
        yield f"the track is {now.submission.track}, and {before.submission.track} in the baseline"


def _faults(now: Results, baseline: Results, ratio: str) -> list[str]:
    found = [*now.faults, *(f"in the baseline: {fault}" for fault in baseline.faults)]
    mine, theirs = now.benchmarks, baseline.benchmarks
    if not mine:
        found.append("nothing was measured")
    if not theirs:
        found.append("the baseline holds no benchmark")
    missing, extra = [key for key in theirs if key not in mine], [key for key in mine if key not in theirs]
    unmatched = ((missing, "is in the baseline and was not measured"), (extra, "is not in the baseline: accept a new one"))
    for keys, text in unmatched:
        if keys:
            more = f" (and {len(keys) - 1} more)" if len(keys) > 1 else ""
            found.append(f"{keys[0]} {text}{more}")
    for benchmark in mine.values():
        shared_card = not all(sitting.record.rankable for sitting in benchmark.sittings)
        if shared_card and not ratio and benchmark.device.profile != "cpu":
            found.append("the device cannot rank, as when others use it: gate on a ratio instead")
    if ratio and mine:
        found += _ratio_faults(mine, ratio)
    return found


def _elsewhere(now: Results, baseline: Results, ratio: str) -> list[str]:
    """What around the benchmarks that both have keeps their times from meaning the same."""
    both = [(benchmark, baseline.benchmarks[key]) for key, benchmark in now.benchmarks.items() if key in baseline.benchmarks]
    return [each for one, other in both for each in differences(one, other, another_card=bool(ratio))]


def _ratio_faults(benchmarks: Mapping[str, Benchmark], ratio: str) -> Iterator[str]:
    names = {benchmark.submission.name for benchmark in benchmarks.values()}
    if names == {ratio}:
        yield f"there is nothing beside {ratio} to compare with it"
    for key, benchmark in benchmarks.items():
        if benchmark.submission.name == ratio:
            continue
        if other_key(key, ratio) not in benchmarks and not all(ratio in sitting.lines for sitting in benchmark.sittings):
            yield f"{key} was not measured beside {ratio!r}, which is neither a baseline of its rounds nor another submission"
            return


def _row(unit: Unit, limits: Limits, z: float) -> Row:
    log, error = unit.slowdown
    limit = limits.of(unit.regime)
    most = math.log1p(limit)
    shifts = (unit.slowdown,) if unit.relative is None else (unit.slowdown, unit.relative)
    bound = min(shift.log - z * shift.error for shift in shifts)
    # What is relative to the baselines of its rounds is the more precise.
    ceiling = shifts[-1].log + NormalDist().inv_cdf(1 - MISSED) * shifts[-1].error
    # Written so that NaN is never a pass.
    if all(shift.log <= most for shift in shifts) and ceiling <= math.log1p(2 * limit):
        outcome = Outcome.PASS
    else:
        outcome = Outcome.FAIL if bound > most else Outcome.AMBIGUOUS
    return Row(
        submission=unit.submission,
        measure=unit.measure,
        unit=unit.name,
        regime=unit.regime,
        shapes=unit.shapes,
        slowdown=Interval(value=math.exp(log), low=math.exp(log - Z95 * error), high=math.exp(log + Z95 * error)),
        relative=None if unit.relative is None else math.exp(unit.relative.log),
        bound=math.exp(bound),
        ceiling=math.exp(ceiling),
        limit=limit,
        outcome=outcome,
    )
