"""`hgemm doctor`: what this machine can do, what is missing, and whether its instrument can be trusted."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from harness.diagnosis import Check, Diagnosis, Outcome
from harness.machine import DeviceChoice, choose_device
from harness.protocol import parse_modes


def doctor(
    device: Annotated[str, typer.Option(help="Device whose instrument is tested: auto, cpu, cuda:0, …")] = "auto",
    aa_shapes: Annotated[int, typer.Option("--aa", help="Shapes of the A/A test on a CUDA device.", min=4)] = 12,
    modes: Annotated[str, typer.Option(help="Modes of the A/A test: offline, server, or offline,server.")] = "offline",
    requests: Annotated[int, typer.Option(help="Requests of each in server mode; an eighth on long shapes.", min=8)] = 32,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """Look at this machine: compilers, packages, cache, devices, and a test of the instrument that times kernels.

    Exit codes: 0 nothing failed, 3 something must be mended first.
    """
    choice = choose_device(device)
    checks = []
    for check in _all_checks(choice, aa_shapes, modes, requests):
        checks.append(check)
        if not json:
            _print(check)
    diagnosis = Diagnosis(device=choice.name, checks=tuple(checks))
    if json:
        typer.echo(diagnosis.model_dump_json(indent=2))
    sys.exit(0 if diagnosis.healthy else 3)


def _all_checks(choice: DeviceChoice, aa_shapes: int, modes: str, requests: int) -> Iterator[Check]:
    from harness.doctor_host import cpu_checks, host_checks

    yield from host_checks()
    if choice.name == "cpu":
        yield from cpu_checks()
        return
    from harness.doctor import gpu_checks

    yield from gpu_checks(choice.name, aa_shapes, parse_modes(modes), requests)


def _print(check: Check) -> None:
    """One check on its own lines, as soon as it is known."""
    from rich.text import Text

    from harness.commands.tables import plain_table, stdout

    styles = {Outcome.OK: "green", Outcome.WARN: "yellow", Outcome.FAIL: "bold red"}
    table = plain_table("", "", "")
    table.show_header = False
    table.columns[0].width, table.columns[1].width = 4, 17
    table.columns[2].overflow = "fold"
    table.add_row(Text(check.outcome, style=styles[check.outcome]), check.name, check.detail)
    if check.mend:
        table.add_row("", "", Text(check.mend, style="" if check.outcome is Outcome.OK else "bold"))
    stdout().print(table)
