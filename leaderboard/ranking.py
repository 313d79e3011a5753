"""Ranking: the only one. The command line, the app and the export print what `ranking` returns.

A list holds what is comparable: one GPU model, track, kind, set of shapes, protocol, cuBLAS and driver (major.minor), origin,
mode, L2 state and baseline; anything else is another list. `rank` is a pure function of its rows.

**An entry** is a submission with all its runs on the list. Its value is the geometric mean of its runs' scores. With one run
the interval is that run's, which knows nothing of the day and the card. From the second on the variance of the mean is the
larger of the runs' own (mean square of their standard errors) and the observed one between them, over their number: the
moment estimate of random effects (DerSimonian and Laird, Controlled Clinical Trials 7, 1986), with equal weights. Where
runs differ by twice their standard error the interval holds the truth in 62 % of cases with one run, 80 % with two, 85 % with
three, 89 % with five (200,000 simulated entries).

**Order**: by the lower end of the interval. Rank range: from 1 + the number of others whose lower end is above my upper end,
to 1 + the number of others whose upper end is at least my lower end. Equal ends share a place.

**Apart**, with the reason: submissions that are incomplete, rejected at some shape in any of their runs, imprecise (wider than
±1 %), measured on a machine that cannot rank, withdrawn, or cheating. Of an author's versions of one submission the best
valid one stands; the others are superseded. So a withdrawal brings the previous best back.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from enum import StrEnum
from operator import attrgetter
from typing import NamedTuple

from harness.model import Count, Document, Hash, Model, Positive
from harness.problem import Track
from harness.record import Interval, L2State, Mode
from harness.scores import IMPRECISE_HALF_WIDTH, Regime
from harness.submission import Kind
from harness.timing.statistics import log_half_width


class Origin(StrEnum):
    """Who measured a run."""

    OPERATOR = "operator"
    """Whoever keeps the board."""
    REPORTED = "reported"
    """Somebody else; listed apart."""


class VerdictKind(StrEnum):
    """Why a submission is off the lists."""

    WITHDRAWN = "withdrawn"
    """Its author, or the operator, took it back: that very tree."""
    CHEATING = "cheating"
    """It is paid for something else than the product: that code, under any name."""


class Standing(StrEnum):
    """Where an entry stands. All but the first are listed apart."""

    RANKED = "ranked"
    """Complete, precise, and measured on a machine that can rank."""
    SUPERSEDED = "superseded"
    """Would rank, but another version of the same submission by the same author is better."""
    IMPRECISE = "imprecise"
    """Its interval is wider than ±1 %."""
    INCOMPLETE = "incomplete"
    """Some shape is not verified."""
    REJECTED = "rejected"
    """It failed a check at some shape, in some run."""
    NOT_RANKABLE = "not_rankable"
    """Its machine cannot rank; a CPU only exercises the pipeline."""
    WITHDRAWN = "withdrawn"
    """Taken back."""
    CHEATING = "cheating"
    """Paid for something else than the product."""


class RankingKey(Model):
    """Names a list."""

    device: str
    """Profile of the device."""
    track: Track
    """Accumulation track."""
    kind: Kind
    """Who runs host code."""
    mode: Mode
    """How requests arrive."""
    l2_state: L2State
    """State of the data."""
    baseline: str
    """What it is against; `best` is each shape's fastest baseline."""
    shapes_sha256: Hash
    """Hash of the set of shapes."""
    protocol: str
    """Version of the measurement protocol."""
    cublas: str
    """cuBLAS, major.minor; empty on a CPU."""
    driver: str
    """Driver, major.minor."""
    origin: Origin
    """Who measured."""


class RankRange(Model):
    """The places that an entry may have."""

    first: Positive
    """Best place."""
    last: Positive
    """Worst place."""

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


class EntryRun(Model):
    """A run of an entry."""

    run: str
    """Its name."""
    ended_utc: str
    """When it ended."""
    verified: Count
    """Shapes verified."""
    geomean: Interval | None
    """Its own score; null if it is not complete."""


class Entry(Model):
    """One submission on a list."""

    rank: RankRange | None
    """Places it may have; null if it is listed apart."""
    standing: Standing
    """Where it stands."""
    because: str
    """Why it is listed apart, in a sentence; empty where it ranks."""
    name: str
    """Name of the submission."""
    version: str
    """Its version."""
    authors: tuple[str, ...]
    """Its authors."""
    description: str
    """What it is."""
    badges: tuple[str, ...]
    """`native`, `binary`."""
    tree_sha256: Hash
    """Identity of the submission."""
    code_sha256: Hash
    """Identity without its manifest: equal for copies under another name."""
    geomean: Interval | None
    """Geometric mean of speedups over its runs, with its interval; null where no run is complete."""
    total_time: float | None
    """Baseline's summed time over the submission's."""
    win_rate: float | None
    """Share of shapes that it wins."""
    arithmetic_mean: float | None
    """Mean of the speedups, which others publish. Never ranked."""
    regimes: dict[Regime, float]
    """Geometric mean per regime."""
    shapes: Positive
    """Shapes of the set."""
    verified: Count
    """Shapes verified, in the run that verified most."""
    runs: tuple[EntryRun, ...]
    """Its runs on this list, newest first."""

    @property
    def single_run(self) -> bool:
        """Whether one run is all there is, so that the interval knows nothing of what changes between runs."""
        return len(self.runs) == 1


class Ranking(Document):
    """What `hgemm rank --json` prints."""

    key: RankingKey
    """Names the list."""
    shape_set: str
    """Name of the set of shapes."""
    device_name: str
    """Device by its driver's name."""
    ranked: tuple[Entry, ...]
    """Sorted by the lower end of the interval, highest first."""
    apart: tuple[Entry, ...]
    """Not ranked, by standing; superseded ones last."""


class ScoredRun(NamedTuple):
    """A run on a list, as the store hands it over."""

    name: str
    version: str
    authors: tuple[str, ...]
    description: str
    badges: tuple[str, ...]
    tree_sha256: str
    code_sha256: str
    verdict: VerdictKind | None
    verdict_reason: str
    run: str
    ended_utc: str
    shapes: int
    verified: int
    rejected: int
    unsupported: int
    not_attempted: int
    because: str
    """Why its machine cannot rank."""
    geomean: Interval | None
    total_time: float | None
    win_rate: float | None
    arithmetic_mean: float | None
    regimes: dict[Regime, float]


def rank(runs: Iterable[ScoredRun]) -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
    """Ranked and apart. The order of the runs does not matter."""
    by_tree: dict[str, list[ScoredRun]] = {}
    for run in sorted(runs, key=attrgetter("ended_utc", "run"), reverse=True):
        by_tree.setdefault(run.tree_sha256, []).append(run)
    entries = _supersede([_entry(those) for those in by_tree.values()])
    ranked = [entry for entry in entries if entry.standing is Standing.RANKED]
    apart = [entry for entry in entries if entry.standing is not Standing.RANKED]
    order = [*(each for each in Standing if each is not Standing.SUPERSEDED), Standing.SUPERSEDED]
    apart.sort(key=lambda entry: (order.index(entry.standing), *_by_lower_end(entry)))
    return _placed(sorted(ranked, key=_by_lower_end)), tuple(apart)


def combine_runs(scores: Sequence[Interval]) -> Interval:
    """One score from those of several runs; the module's docstring says how.

    Raises:
        ValueError: no score, or one that is not positive and finite.
    """
    if len(scores) == 1:
        return scores[0]
    logs = [math.log(score.value) for score in scores]
    mean = math.fsum(logs) / len(logs)
    within = math.fsum((log_half_width(score) / _Z) ** 2 for score in scores) / len(scores)
    between = math.fsum((log - mean) ** 2 for log in logs) / (len(logs) - 1)
    half_width = _Z * math.sqrt(max(within, between) / len(logs))
    return Interval(value=math.exp(mean), low=math.exp(mean - half_width), high=math.exp(mean + half_width))


_Z = 1.96


def _entry(runs: Sequence[ScoredRun]) -> Entry:
    """The runs of one submission, newest first."""
    newest, complete = runs[0], [run for run in runs if run.geomean is not None]
    # A run on a machine that cannot rank counts only where there is no other.
    scored = [run for run in complete if not run.because] or complete
    geomean = combine_runs([run.geomean for run in scored if run.geomean is not None]) if scored else None
    standing, because = _standing(runs, geomean)
    regimes = {which: _mean_log([run.regimes[which] for run in scored]) for which in (scored[0].regimes if scored else ())}
    return Entry(
        rank=None,
        standing=standing,
        because=because,
        name=newest.name,
        version=newest.version,
        authors=newest.authors,
        description=newest.description,
        badges=newest.badges,
        tree_sha256=newest.tree_sha256,
        code_sha256=newest.code_sha256,
        geomean=geomean,
        total_time=_mean_log([run.total_time for run in scored if run.total_time is not None]),
        win_rate=_mean([run.win_rate for run in scored if run.win_rate is not None]),
        arithmetic_mean=_mean([run.arithmetic_mean for run in scored if run.arithmetic_mean is not None]),
        regimes={which: value for which, value in regimes.items() if value is not None},
        shapes=newest.shapes,
        verified=max(run.verified for run in runs),
        runs=tuple(EntryRun(run=run.run, ended_utc=run.ended_utc, verified=run.verified, geomean=run.geomean) for run in runs),
    )


class _Stand(NamedTuple):
    standing: Standing
    because: str


def _standing(runs: Sequence[ScoredRun], geomean: Interval | None) -> _Stand:
    """The gravest that applies."""
    newest = runs[0]
    if newest.verdict is not None:
        return _Stand(Standing(newest.verdict.value), newest.verdict_reason)
    rejecting = next((run for run in runs if run.rejected), None)
    if rejecting is not None:
        return _Stand(Standing.REJECTED, f"{rejecting.rejected} of {rejecting.shapes} shapes were rejected in {rejecting.run}")
    if geomean is None:
        best = max(runs, key=lambda run: run.verified)
        missing = [(best.unsupported, "not supported"), (best.not_attempted, "not attempted")]
        why = [f"{best.verified} of {best.shapes} shapes are verified", *(f"{n} {what}" for n, what in missing if n)]
        return _Stand(Standing.INCOMPLETE, ", ".join(why))
    complete = [run for run in runs if run.geomean is not None]
    if all(run.because for run in complete):
        return _Stand(Standing.NOT_RANKABLE, complete[0].because)
    half_width = log_half_width(geomean)
    if not half_width <= IMPRECISE_HALF_WIDTH:
        return _Stand(Standing.IMPRECISE, f"its interval is ±{half_width * 100:.2f} %, wider than ±1 %")
    return _Stand(Standing.RANKED, "")


def _supersede(entries: Sequence[Entry]) -> list[Entry]:
    """Of the ranked versions of one submission by one author the best stands."""
    best: dict[tuple[str, str], Entry] = {}
    for entry in entries:
        if entry.standing is Standing.RANKED:
            entrant = (entry.authors[0], entry.name)
            best[entrant] = min(best.get(entrant, entry), entry, key=_by_lower_end)
    return [_behind(entry, best.get((entry.authors[0], entry.name), entry)) for entry in entries]


def _behind(entry: Entry, better: Entry) -> Entry:
    """The entry, superseded if it would rank and is not the better one."""
    if entry.standing is not Standing.RANKED or entry is better:
        return entry
    because = f"version {better.version} ({better.tree_sha256[:12]}) is better"
    return entry.model_copy(update={"standing": Standing.SUPERSEDED, "because": because})


def _placed(ranked: Sequence[Entry]) -> tuple[Entry, ...]:
    intervals = [entry.geomean for entry in ranked if entry.geomean is not None]
    lows, highs = sorted(each.low for each in intervals), sorted(each.high for each in intervals)
    placed = []
    for entry, mine in zip(ranked, intervals, strict=True):
        above = len(lows) - bisect_right(lows, mine.high)
        # I am among those whose upper end is at least my lower end, hence no 1 is added.
        last = len(highs) - bisect_left(highs, mine.low)
        placed.append(entry.model_copy(update={"rank": RankRange(first=1 + above, last=last)}))
    return tuple(placed)


def _by_lower_end(entry: Entry) -> tuple[float, float, str, str]:
    """Highest lower end first, then highest value; without figures last; ties by name and hash, for a stable order."""
    if entry.geomean is None:
        return math.inf, math.inf, entry.name, entry.tree_sha256
    return -entry.geomean.low, -entry.geomean.value, entry.name, entry.tree_sha256


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _mean_log(values: Sequence[float]) -> float | None:
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else None
