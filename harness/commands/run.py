"""`hgemm run`: verify and time a submission over a set of shapes."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from harness import interrupts
from harness.model import DataError
from harness.record import Record, Status


def run(
    submission: Annotated[Path | None, typer.Argument(help="Directory of the submission.", show_default=False)] = None,
    shapes: Annotated[str | None, typer.Option(help="A set (hgemm shapes lists them), a file, or MxNxK,MxNxK,…")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda:0, …; several cards of one kind as cuda:0,cuda:1.")] = "auto",
    output: Annotated[Path, typer.Option(help="Where the run's directory is made.")] = Path("runs"),
    resume: Annotated[str | None, typer.Option(help="Go on with this run, a directory or a name in ./runs.")] = None,
    budget: Annotated[float | None, typer.Option(help="Stop cleanly after this many seconds; resume later.", min=1)] = None,
    deadline: Annotated[float, typer.Option(help="Seconds that one shape may take.", min=1, max=86_400)] = 60.0,
    sustained: Annotated[bool, typer.Option("--sustained", help="Longer windows on compute-bound shapes.")] = False,
    modes: Annotated[str, typer.Option(help="offline, server, offline,server; offline/cold for cold data alone.")] = "offline",
    requests: Annotated[int | None, typer.Option(help="Requests of each in server mode.", min=8)] = None,
    compiler: Annotated[str, typer.Option(help="nvrtc or nvcc.")] = "nvrtc",
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")] = False,
) -> None:
    """Verify and time a submission over a set of shapes.

    Every output of every timed window is verified. Kill it at any time: `--resume RUN` goes on where it stopped.

    Exit codes: 0 all verified, 1 some rejected, 3 the machine failed, 4 incomplete, 130 interrupted.
    """
    from harness.build import BuildOptions
    from harness.commands.console import RunDisplay, print_report
    from harness.commands.devices import device_for, names_of
    from harness.commands.runs import find_run
    from harness.evaluate import Evaluator
    from harness.problem_sets import resolve_shapes
    from harness.protocol import Purpose, parse_modes, protocol_for
    from harness.run import Run
    from harness.session import RunSession
    from harness.submission import Submission

    interrupts.catch(signal.SIGTERM)
    device, *others = names_of(device)
    build = BuildOptions(compiler=compiler)
    if resume is not None:
        if submission is not None or shapes is not None:
            raise DataError("--resume takes everything from the run; give no submission and no --shapes with it.")
        session = RunSession.resume(find_run(resume), device, build)
    else:
        if submission is None:
            raise DataError("give the submission's directory, as in: hgemm run submissions/cpu-blocked --shapes cpu")
        tree = Submission.read(submission)
        choice = device_for(tree.manifest, device)
        protocol = protocol_for(choice.profile, Purpose.FULL, sustained, parse_modes(modes))
        asked = {"deadline_s": deadline, "server_requests": requests or protocol.server_requests}
        protocol = protocol.model_copy(update=asked)
        usual = "cpu" if choice.profile.is_cpu else "quick"
        shape_set = resolve_shapes(usual if shapes is None else shapes, tree.manifest.track)
        evaluator = Evaluator(choice.name, protocol, build=build)
        session = RunSession.start(evaluator, tree, shape_set, output, ("hgemm", *sys.argv[1:]))
    stop_at = None if budget is None else time.monotonic() + budget
    interrupted = False
    with session, RunDisplay(session, quiet=not sys.stderr.isatty()) as display:
        try:
            session.join(others, build)
            session.go(display.step, display.record, stop_at)
        except KeyboardInterrupt:
            interrupted = True
    print_report(Run.read(session.run.path), as_json=json)
    sys.exit(130 if interrupted else exit_code(list(session.run.latest().values()), len(session.run.remaining())))


def exit_code(records: list[Record], remaining: int) -> int:
    """0 verified, 1 rejected, 3 machine, 4 incomplete; the first of 3, 1, 4 that applies."""
    statuses = {record.status for record in records}
    if Status.INFRA_ERROR in statuses:
        return 3
    if Status.REJECTED in statuses:
        return 1
    if remaining or statuses - {Status.VERIFIED}:
        return 4
    return 0
