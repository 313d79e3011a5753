"""Views: what queries return, as tables that people read. Pure; the app and the export show the same ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from harness.compare import Comparison, MeasureComparison, p_value_text
from harness.importers.published import ReportedTable
from harness.problem import Problem
from harness.profiles import load_profile
from harness.record import SUBMISSION, Interval
from harness.scores import BEST, Regime
from leaderboard.links import Links
from leaderboard.published import Headline
from leaderboard.queries import HistoryPoint, RunDetails, ScoreLine
from leaderboard.ranking import Entry, Ranking, RankingKey
from leaderboard.sentences import command_line
from leaderboard.shape_queries import ContenderRow, ShapeRow, VerificationRow
from leaderboard.tables import Column, Row, Table, Value, figure, microseconds, percent


def ranking_table(ranking: Ranking, links: Links) -> Table:
    """The ranked entries in their order."""
    first = Column("rank", "rank", help="Range of places that the intervals allow")
    return Table((first, *_entry_columns(links)), _entry_rows(ranking.ranked, ranking.key))


def apart_table(ranking: Ranking, links: Links) -> Table:
    """The entries that do not rank, with their reasons."""
    columns = (
        Column("standing", "standing", lambda value: str(value).replace("_", " "), "Why it is not ranked"),
        *_entry_columns(links)[:1],
        Column("because", "because", prose=True),
        *_entry_columns(links)[1:],
    )
    return Table(columns, _entry_rows(ranking.apart, ranking.key))


def score_table(scores: Iterable[ScoreLine]) -> Table:
    """A run's scores; over the whole set alone they need no column for the regime."""
    scores = tuple(scores)
    regime = Column("regime", "shapes of regime", lambda value: str(value).replace("_", " "))
    columns = (
        Column("measure", "measure", help="Mode and state of the L2 cache"),
        Column("baseline", "against"),
        *([regime] if any(line.regime is not None for line in scores) else []),
        Column("shapes", "shapes"),
        *_interval_columns("geomean", "geomean", "Geometric mean of speedups; above 1 the submission wins"),
        Column("total_time", "total time", figure(3), "Baseline's summed time over the submission's"),
        Column("win_rate", "wins", percent, "Share of shapes whose speedup is above 1"),
        Column("arithmetic_mean", "arithmetic mean", figure(3), "What others publish; never ranked"),
    )
    rows = [
        {
            "measure": f"{line.mode}/{line.l2_state}",
            "baseline": line.baseline,
            "regime": "all" if line.regime is None else line.regime.value,
            "shapes": line.shapes,
            **_interval("geomean", line.geomean),
            "total_time": line.total_time,
            "win_rate": line.win_rate,
            "arithmetic_mean": line.arithmetic_mean,
        }
        for line in scores
    ]
    return Table(columns, tuple(rows))


def shape_table(rows: Iterable[ShapeRow], links: Links, key: Mapping[str, str]) -> Table:
    """Shapes of a run against a baseline."""
    columns = (
        Column("shape", "shape", link=lambda row: links.shape(str(row["shape"]), key)),
        Column("regime", "regime", lambda value: str(value).replace("_", " "), order=tuple(Regime)),
        Column("status", "status"),
        *_interval_columns("speedup", "speedup", "Baseline's time over the submission's"),
        Column("launch_ns", "µs", microseconds, "Median time per launch"),
        Column("baseline_ns", "baseline µs", microseconds, "Median time per launch of the baseline"),
        Column("baseline", "baseline"),
        Column("description", "what ran"),
        Column("reason", "reason"),
    )
    return Table(columns, tuple({**row._asdict(), "regime": row.regime.value, "status": row.status.value} for row in rows))


def worst_rows(rows: Iterable[ShapeRow], count: int = 10) -> list[ShapeRow]:
    """The shapes with the lowest speedups, lowest first."""
    known = [row for row in rows if row.speedup is not None]
    return sorted(known, key=lambda row: (row.speedup or 0.0, row.shape))[:count]


def contender_table(
    rows: Sequence[ContenderRow], links: Links, key: RankingKey, shape: str, every_baseline: bool = False
) -> Table:
    """Who is how fast at a shape, the fastest first, baselines and the speed-of-light time among them.

    Args:
        rows: everything measured at the shape.
        links: where the table leads.
        key: list whose baseline a submission's speedup is over, in its own run.
        shape: the shape.
        every_baseline: show baselines of every run, which the run beside them tells apart; else those of the run of the
            fastest submission alone.
    """
    profile, problem = load_profile(key.device), Problem.parse(shape)
    fastest = min((row for row in rows if row.contender == SUBMISSION), key=lambda row: row.launch_ns, default=None)
    over = {row.run: row for row in rows if (row.best if key.baseline == BEST else row.contender == key.baseline)}
    roof_ns = profile.roof_ns(problem)
    where = [Column("run", "in run")]
    columns = (
        Column("contender", "contender", link=lambda row: links.submission(str(row["run"])) if row["run"] else ""),
        *(where if every_baseline else []),
        Column("launch_ns", "µs", microseconds, "Median time per launch"),
        Column("launch_min_ns", "fastest µs", microseconds, "Fastest window, per launch"),
        Column("launch_max_ns", "slowest µs", microseconds, "Slowest window, per launch"),
        Column("share_of_roof", "of roof", percent, "Speed-of-light time over its time"),
        *_interval_columns(
            "speedup",
            "speedup",
            f"Baseline's time over its run's submission's, in paired rounds; of a submission: over {key.baseline}",
        ),
        Column("layout", "B"),
        Column("description", "what ran"),
        Column("sm_clock_mhz", "MHz", help="Median clock during the windows"),
        *([] if every_baseline else where),
    )
    found = [
        {
            **row._asdict(),
            **_speedup(over.get(row.run) if row.contender == SUBMISSION else row),
            "contender": f"{row.name} {row.version}" if row.contender == SUBMISSION else row.contender,
            "share_of_roof": roof_ns / row.launch_ns,
        }
        for row in rows
        if every_baseline or row.contender == SUBMISSION or (fastest is not None and row.run == fastest.run)
    ]
    nothing = dict.fromkeys(column.name for column in columns)
    roof = {**nothing, "contender": "speed of light", "launch_ns": roof_ns, "share_of_roof": 1.0}
    roof["description"] = "flops or bytes at rates reached in practice"
    return Table(columns, tuple(sorted([*found, roof], key=lambda row: float(str(row["launch_ns"])))))


def verification_table(rows: Iterable[VerificationRow]) -> Table:
    """What verification measured at every shape: the worst over all kinds of input."""
    columns = (
        Column("shape", "shape"),
        Column("status", "status"),
        Column("precision_class", "precision"),
        Column("rms_relative", "rms error", _scientific, "Relative, on normal inputs, against float64"),
        Column("block_rms_relative", "worst block", _scientific, "The same of the worst 64×64 block"),
        Column("bound_ratio", "of bound", figure(3), "Largest error over its element-wise bound, over all inputs"),
        Column("inexact", "inexact", help="Outputs on exact inputs that are not exact; 0 is required"),
        Column("outputs", "compared", figure(0), "Outputs of the correctness runs, compared with float64"),
        Column("timed", "timed, compared", figure(0), "Outputs of timed windows compared in full with float64"),
        Column("projected", "timed, projected", figure(0), "Outputs of timed windows checked by random projections"),
        Column("repeatable", "repeatable", help="Whether two runs on the same inputs agree in every bit"),
    )
    return Table(columns, tuple(map(_verification_row, rows)))


def provenance_table(details: RunDetails) -> Table:
    """Everything about where a run comes from."""
    header, device = details.header, details.header.device
    facts = {
        "run": details.summary.run,
        "SHA-256 of end.json": details.end_sha256,
        "measured": f"{details.summary.created_utc} to {details.summary.ended_utc}",
        "published": details.summary.published_utc,
        "origin": details.summary.origin.value + (f", {details.source}" if details.source else ""),
        "command": command_line(header.command),
        "harness": header.harness_version,
        "protocol": f"{header.protocol.version} ({header.protocol.purpose}), identity {header.protocol.identity[:12]}",
        "shapes": f"{header.shape_set}, {len(header.shapes)}, SHA-256 {header.shapes_sha256[:12]}",
        "submission tree": header.submission.tree_sha256,
        "submission code": details.code_sha256,
        "device": f"{device.name}, {device.uuid}",
        "driver": device.driver,
        "timer": device.timer,
        **{f"library {name}": version for name, version in device.libraries.items()},
        **{f"condition {name}": value for name, value in device.conditions.items()},
        **{f"seed commitment {each.index}": f"{each.seed_commitment}, {each.started_utc}" for each in details.segments},
        "directory": details.path,
    }
    return facts_table(facts)


def manifest_table(details: RunDetails) -> Table:
    """What the submission says of itself."""
    reference = details.header.submission
    return facts_table(
        {
            "name": f"{reference.name} {reference.version}",
            "authors": ", ".join(reference.authors),
            "license": reference.license,
            "track": reference.track.value,
            "kind": " ".join([reference.kind.value, *(each for each in details.badges if each != reference.kind.value)]),
            "targets": ", ".join(reference.targets),
            "device": details.header.device.name,
            "verified": f"{details.summary.verified}/{details.summary.shapes} of {details.summary.shape_set}",
            "protocol": details.header.protocol.version,
        }
    )


def facts_table(facts: Mapping[str, Value]) -> Table:
    """Names and values."""
    columns = (Column("fact", "fact", prose=True), Column("value", "value", prose=True))
    return Table(columns, tuple({"fact": name, "value": value} for name, value in facts.items()))


def history_table(points: Iterable[HistoryPoint], links: Links) -> Table:
    """Runs on a list, newest first, superseded ones marked."""
    columns = (
        Column("ended_utc", "ended"),
        Column("submission", "submission", link=lambda row: links.submission(str(row["run"]))),
        Column("author", "author"),
        *_interval_columns("geomean", "geomean", "Geometric mean of speedups of that run"),
        Column("standing", "stands now", lambda value: str(value).replace("_", " ")),
        Column("then", "then", help="Whether it was its author's best valid run when it ended"),
        Column("run", "run"),
    )
    rows = [
        {
            "ended_utc": point.ended_utc,
            "submission": f"{point.name} {point.version}",
            "author": point.author,
            **_interval("geomean", point.geomean),
            "standing": point.standing.value,
            "then": point.then,
            "run": point.run,
        }
        for point in points
    ]
    return Table(columns, tuple(reversed(rows)))


def difference_table(found: Comparison) -> Table:
    """What differs around two runs."""
    columns = (Column("field", "differs"), Column("a", "A"), Column("b", "B"), Column("importance", "importance"))
    rows = [{**each.model_dump(mode="json")} for each in found.differences]
    return Table(columns, tuple(rows))


def comparison_table(measure: MeasureComparison, links: Links, key: Mapping[str, str]) -> Table:
    """Shapes of two runs, the largest significant differences first."""
    columns = (
        Column("shape", "shape", link=lambda row: links.shape(str(row["shape"]), key)),
        Column("verdict", "verdict"),
        *_interval_columns("relative_ratio", "time A / time B", "Relative to shared baselines; above 1, B is faster"),
        Column("time_ratio", "raw times", figure(3), "Ratio of median times; drift between the runs is in it"),
        Column(
            "adjusted_p_value", "adjusted p", lambda value: p_value_text(float(value or 0)), "Adjusted for the number of shapes"
        ),
        Column("shared_baselines", "relative to"),
    )
    rows = [
        {
            "shape": each.shape,
            **_interval("relative_ratio", each.relative_ratio),
            "time_ratio": each.time_ratio,
            "verdict": "not told apart"
            if not each.significant
            else f"{'B' if each.relative_ratio.value > 1 else 'A'} is faster",
            "adjusted_p_value": each.adjusted_p_value,
            "shared_baselines": ", ".join(each.shared_baselines) or "nothing",
        }
        for each in sorted(measure.shapes, key=lambda one: (not one.significant, -abs(one.relative_ratio.value - 1)))
    ]
    return Table(columns, tuple(rows))


def headline_table(source: Headline) -> Table:
    """Means that others report, one row per device, track, mode and kind of mean."""
    baselines = list(dict.fromkeys(name for row in source.rows for name in row.arithmetic))
    columns = (
        Column("device", "device"),
        Column("track", "track"),
        Column("mode", "mode"),
        Column("shapes", "shapes"),
        Column("mean", "mean", help="Theirs is the arithmetic mean of ratios; the geometric mean is of the same ratios"),
        *(Column(name, f"over {name}", figure(3), "Reported speedup, not measured here") for name in baselines),
    )
    rows: list[Row] = [
        {"device": row.device, "track": row.track.value, "mode": row.mode.value, "shapes": row.shapes, "mean": mean, **values}
        for mean in ("arithmetic", "geometric")
        for row in source.rows
        for values in (row.arithmetic if mean == "arithmetic" else row.geometric,)
    ]
    return Table(columns, tuple(rows))


def reported_table(table: ReportedTable) -> Table:
    """Speedups per shape that others report."""
    columns = (Column("shape", "shape"), *(Column(name, name, figure(3)) for name in table.baselines))
    rows: list[Row] = [
        {"shape": shape, **dict(zip(table.baselines, values, strict=True))}
        for shape, values in zip(table.shapes, table.speedups, strict=True)
    ]
    return Table(columns, tuple(rows))


def _entry_columns(links: Links) -> tuple[Column, ...]:
    def address(row: Row) -> str:
        return links.submission(str(row["run"]))

    return (
        Column("submission", "submission", link=address),
        *_interval_columns("geomean", "geomean", "Geometric mean of speedups over the set; above 1 it beats the baseline"),
        Column("verified", "verified", help="Shapes verified of the set, in the run that verified most"),
        Column("kind", "kind", help="device: the harness launches it; native: its own host code; binary: a cubin", badge=True),
        Column("runs", "runs", help="With one run the interval knows nothing of the day and the card"),
        Column("protocol", "protocol", help="Version of the measurement protocol"),
        Column("win_rate", "wins", percent, "Share of shapes whose speedup is above 1"),
        Column("total_time", "total time", figure(3), "Baseline's summed time over the submission's; large shapes dominate"),
        Column("version", "version"),
        Column("authors", "authors"),
        *(
            Column(which.value, which.value.replace("_", " "), figure(3), f"Geometric mean over shapes of regime {which}")
            for which in Regime
        ),
        Column("ended_utc", "last run"),
    )


def _entry_rows(entries: Iterable[Entry], key: RankingKey) -> tuple[Row, ...]:
    return tuple(_entry_row(entry, key.protocol, key.kind.value) for entry in entries)


def _entry_row(entry: Entry, protocol: str, kind: str) -> Row:
    return {
        "rank": None if entry.rank is None else str(entry.rank),
        "standing": entry.standing.value,
        "submission": entry.name,
        "version": entry.version,
        "authors": ", ".join(entry.authors),
        "kind": " ".join(dict.fromkeys((kind, *entry.badges))),
        **_interval("geomean", entry.geomean),
        "total_time": entry.total_time,
        "win_rate": entry.win_rate,
        **{which.value: entry.regimes.get(which) for which in Regime},
        "verified": f"{entry.verified}/{entry.shapes}",
        "runs": "1 run only" if entry.single_run else str(len(entry.runs)),
        "protocol": protocol,
        "ended_utc": entry.runs[0].ended_utc,
        "because": entry.because,
        "run": entry.runs[0].run,
    }


def _verification_row(row: VerificationRow) -> Row:
    found, draws = row.verification, row.verification.draws
    normal = next((each for each in draws if each.inputs == "normal"), None)
    ratios = [each.bound_ratio for each in draws if each.bound_ratio is not None]
    return {
        "shape": row.shape,
        "status": row.status.value,
        "precision_class": found.precision_class,
        "rms_relative": normal.rms_relative if normal else None,
        "block_rms_relative": normal.block_rms_relative if normal else None,
        "bound_ratio": max(ratios, default=None),
        "inexact": sum(each.inexact for each in draws),
        "outputs": sum(each.outputs for each in draws),
        "timed": found.timed_outputs_checked,
        "projected": found.timed_outputs_projected,
        "repeatable": {True: "yes", False: "no", None: "not tested"}[found.bitwise_repeatable],
    }


def _interval_columns(name: str, title: str, meaning: str) -> tuple[Column, ...]:
    return (
        Column(name, title, _RATIO, meaning),
        Column(f"{name}_low", "95 % low", _RATIO, f"Lower end of the 95 % interval of {title}"),
        Column(f"{name}_high", "high", _RATIO, f"Upper end of the 95 % interval of {title}"),
    )


def _interval(name: str, interval: Interval | None) -> Row:
    if interval is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _speedup(row: ContenderRow | None) -> Row:
    low_high = (None, None, None) if row is None else (row.speedup, row.speedup_low, row.speedup_high)
    return dict(zip(("speedup", "speedup_low", "speedup_high"), low_high, strict=True))


def _scientific(value: Value) -> str:
    return "" if value is None else f"{float(value):.3e}"


_RATIO = figure(4)
