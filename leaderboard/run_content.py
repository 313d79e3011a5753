"""RunContent: one run as its page shows it, read from the board or, without one, from its directory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Self

from harness.profiles import DeviceProfile, load_profile
from harness.record import SUBMISSION, L2State, Measure, Mode, Record, Status
from harness.run import END, SNAPSHOT, End, Run
from harness.run_report import RunReport, report_of
from harness.scores import Regime, Score, regime
from harness.submission import Submission
from leaderboard.examine import end_hash
from leaderboard.queries import RunDetails, RunSummary, ScoreLine, SourceFile, run_details, run_scores, submission_files
from leaderboard.ranking import Origin
from leaderboard.shape_queries import ShapeRow, VerificationRow, shape_rows, verifications
from leaderboard.store import Board


class RunContent(NamedTuple):
    """Everything about a run that a page shows."""

    details: RunDetails
    scores: tuple[ScoreLine, ...]
    rows: dict[Measure, tuple[ShapeRow, ...]]
    """Per measure, every shape against its best baseline."""
    verifications: tuple[VerificationRow, ...]
    files: tuple[SourceFile, ...]

    @classmethod
    def published(cls, board: Board, run: str) -> Self:
        """A run on the board.

        Raises:
            DataError: no run of that name is published.
        """
        details = run_details(board, run)
        return cls(
            details=details,
            scores=run_scores(board, run),
            rows={measure: shape_rows(board, run, measure) for measure in details.header.protocol.measures},
            verifications=verifications(board, run),
            files=submission_files(board, details.summary.tree_sha256),
        )

    @classmethod
    def of(cls, run: Run) -> Self:
        """A run directory, published or not, finished or not.

        Raises:
            DataError: its records contradict each other, or its snapshot is none.
        """
        report, profile = report_of(run), load_profile(run.header.device.profile)
        latest = run.latest()
        records = [latest[problem] for problem in run.header.problems if problem in latest]
        submission = Submission.read(run.path / SNAPSHOT)
        return cls(
            details=_details(run, report),
            scores=tuple(_score_lines(report)),
            rows={
                measure: tuple(_shape_row(record, measure, profile) for record in records)
                for measure in run.header.protocol.measures
            },
            verifications=tuple(
                VerificationRow(str(record.problem), record.status, record.verification)
                for record in records
                if record.verification is not None
            ),
            files=tuple(SourceFile(file.name, len(file.data), file.data) for file in submission.files),
        )


def _details(run: Run, report: RunReport) -> RunDetails:
    header, reference = run.header, run.header.submission
    counts = {status: getattr(report.counts, status.value) for status in Status}
    summary = RunSummary(
        run=header.name,
        name=reference.name,
        version=reference.version,
        authors=reference.authors,
        tree_sha256=reference.tree_sha256,
        device=header.device.profile,
        shape_set=header.shape_set,
        shapes=len(header.shapes),
        verified=report.counts.verified,
        origin=Origin.OPERATOR,
        created_utc=header.created_utc,
        ended_utc=End.parse((run.path / END).read_bytes(), str(run.path / END)).ended_utc if run.complete else "not ended",
        published_utc="",
        verdict=None,
        verdict_reason="",
    )
    return RunDetails(
        summary=summary,
        header=header,
        segments=tuple(run.segments),
        description=reference.description,
        badges=(),
        code_sha256=reference.code_sha256,
        because=report.run.not_rankable_because,
        counts=counts,
        source="",
        path=str(run.path.resolve()),
        end_sha256=end_hash(run.path) if run.complete else "",
    )


def _score_lines(report: RunReport) -> Iterator[ScoreLine]:
    """Of a run that is not complete, over its verified shapes."""
    tables = report.partial or report
    for mode, states in tables.scores.items():
        for l2_state, baselines in states.items():
            for baseline, whole in baselines.items():
                yield _score_line((mode, l2_state, baseline), None, whole)
                for which, each in tables.regimes[mode][l2_state][baseline].items():
                    yield _score_line((mode, l2_state, baseline), which, each)


def _score_line(key: tuple[Mode, L2State, str], which: Regime | None, score: Score) -> ScoreLine:
    return ScoreLine(*key, which, score.shapes, score.geomean, score.total_time, score.win_rate, score.arithmetic_mean)


def _shape_row(record: Record, measure: Measure, profile: DeviceProfile) -> ShapeRow:
    """A shape against its best baseline."""
    problem = record.problem
    head = (
        str(problem),
        problem.m,
        problem.n,
        problem.k,
        regime(problem, profile),
        record.status,
        record.reason,
        record.detail,
    )
    timing = next((each for each in record.timings if each.measure == measure), None)
    if timing is None:
        return ShapeRow(*head, *[None] * (len(ShapeRow._fields) - len(head)))
    mine, theirs, ratio = (
        timing.contenders[SUBMISSION],
        timing.contenders[timing.best_baseline],
        timing.speedups[timing.best_baseline],
    )
    return ShapeRow(
        *head,
        launch_ns=mine.launch_ns,
        launch_min_ns=mine.window_min_ns / mine.launches_per_window,
        launch_max_ns=mine.window_max_ns / mine.launches_per_window,
        layout=mine.layout.value,
        description=mine.description,
        sm_clock_mhz=mine.sm_clock_median_mhz,
        baseline=timing.best_baseline,
        baseline_ns=theirs.launch_ns,
        baseline_description=theirs.description,
        speedup=ratio.value,
        speedup_low=ratio.low,
        speedup_high=ratio.high,
    )
