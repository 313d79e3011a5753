"""`hgemm search` and `hgemm export`: measure configurations of the kernel families, and write submissions of the best."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Annotated

import typer

from agents.effort import Effort
from harness.commands.devices import AUTO, REFERENCE, names_of
from harness.model import InfraError
from harness.problem import Track

EFFORT = Effort()
Shapes = Annotated[str, typer.Option(help="A set of shapes, a file, or MxNxK,MxNxK,…")]
OnTrack = Annotated[Track, typer.Option(help="Accumulation track; on f16, sums in fp16 are a choice.")]


def search(
    journal: Annotated[Path, typer.Argument(help="File of results (JSON lines); an existing one is gone on with.")],
    shapes: Shapes = "grid1000",
    track: OnTrack = Track.F32,
    device: Annotated[str, typer.Option(help="auto, cuda:0, …, cuda:0,cuda:1; with --build-only a profile.")] = "auto",
    budget: Annotated[float | None, typer.Option(help="Seconds of measuring, builds not counted.", min=1)] = None,
    candidates: Annotated[int, typer.Option(help="Ways to divide a shape that are timed briefly.", min=1)] = EFFORT.candidates,
    variants: Annotated[int, typer.Option(help="Variants of a shape's fastest that follow.", min=0)] = EFFORT.variants,
    transfers: Annotated[int, typer.Option(help="What is fastest for shapes like it, after these.", min=0)] = EFFORT.transfers,
    finalists: Annotated[
        int, typer.Option(help="Configurations of a shape that are verified and scored.", min=1)
    ] = EFFORT.finalists,
    compiler: Annotated[str, typer.Option(help="nvrtc or nvcc.")] = "nvrtc",
    build_only: Annotated[
        bool, typer.Option("--build-only", help="Fill the build cache, on a machine without a GPU too.")
    ] = False,
) -> None:
    """Measure many kernel configurations over many shapes and keep everything in a journal.

    Kernels come from the build cache ($HGEMM_CACHE), which may have been filled on another machine.
    """
    from agents.journal import Journal
    from agents.measuring import Screener
    from agents.search import Search
    from agents.space import Space
    from harness.build import BuildOptions
    from harness.machine import choose_device
    from harness.problem_sets import resolve_shapes
    from harness.profiles import load_profile

    names = [device] if build_only else names_of(device)
    planned = REFERENCE if device == AUTO else device
    profile = load_profile(planned) if build_only else choose_device(names[0]).profile
    if profile.architecture != "sm_90a":
        here = f"{profile.name} is {profile.architecture}"
        raise InfraError(f"the kernel families are written for sm_90a, and {here}; --build-only needs no device.")
    problems = resolve_shapes(shapes, track).problems
    with Journal(journal) as lines:
        effort = EFFORT._replace(candidates=candidates, variants=variants, transfers=transfers, finalists=finalists)
        task = Search(Space(profile), problems, lines, effort)
        task.build(journal.with_suffix(".kernels"), BuildOptions(compiler=compiler), _say)
        if not build_only:
            with contextlib.ExitStack() as stack:
                task.run([stack.enter_context(Screener(name)) for name in names], budget, _say)
            typer.echo(f"{len(task.best())} of {len(problems)} shapes have a verified configuration; see {journal}")


def export(
    directory: Annotated[Path, typer.Argument(help="Directory of the submission to write; its name is the submission's.")],
    journal: Annotated[
        Path | None, typer.Option("--from", help="Journal of a search; without one the analytic model chooses.")
    ] = None,
    shapes: Shapes = "grid1000",
    track: OnTrack = Track.F32,
    device: Annotated[str, typer.Option(help="Device profile, as in h200.")] = "h200",
    version: Annotated[str, typer.Option(help="Version of the submission.")] = "1.0.0",
) -> None:
    """Write a submission: per shape the best configuration of a journal, or what the analytic model expects to be best."""
    from agents.export import Title, choose, export
    from agents.journal import read_journal
    from agents.search import winners
    from agents.space import Space
    from harness.problem_sets import resolve_shapes
    from harness.profiles import load_profile

    space, problems = Space(load_profile(device)), resolve_shapes(shapes, track).problems
    found = winners(list(read_journal(journal))) if journal is not None else {}
    chosen = {problem: found[problem] for problem in problems if problem in found}
    missing = [problem for problem in problems if problem not in chosen]
    chosen.update(choose(space, missing))
    measured = f"for each of {len(problems) - len(missing)} shapes the fastest kernel of a search" if journal else ""
    modelled = f"for {len(missing)} shapes the kernel that an analytic model of Hopper expects to be fastest" if missing else ""
    described = "; ".join(part for part in (measured, modelled) if part)
    title = Title(directory.name, version, f"{described[0].upper()}{described[1:]}. Generated by hgemm export.")
    submission = export({problem: chosen[problem] for problem in problems}, space.device, directory, title)
    kernels = sum(file.name.startswith("kernels/") for file in submission.files)
    typer.echo(f"{directory}: {len(problems)} shapes, {kernels} kernels")


def _say(text: str) -> None:
    typer.echo(f"{time.strftime('%H:%M:%S')} {text}", err=True)
