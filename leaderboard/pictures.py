"""Pictures: charts as PNG, drawn by the Chromium or Chrome of this machine where there is one."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from harness.model import InfraError
from leaderboard.report import Page, Section, figure_html, render

if TYPE_CHECKING:
    import plotly.graph_objects as go

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
)
WIDTH_PX = 1100
FRAME_PX = 120
"""Height of what is around a chart."""
SETTLE_MS = 3_000
"""Virtual time that a page gets for drawing."""
DEADLINE_S = 60


def browser() -> str | None:
    """Path of a browser that can take pictures; None if there is none."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def write_pictures(figures: Mapping[str, go.Figure], directory: Path, heading: str) -> list[Path]:
    """Write every chart as `NAME.png` under a heading, at twice its size in pixels.

    Raises:
        InfraError: there is no browser, or it failed.
    """
    program = browser()
    if program is None:
        raise InfraError("no Chromium or Chrome is on PATH, which draws PNG; install one (Debian: apt-get install chromium).")
    written = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, figure in figures.items():
            page = Path(scratch) / f"{name}.html"
            page.write_text(render(Page(heading, (Section(figure=figure_html(figure)),))), encoding="utf-8")
            target = directory / f"{name}.png"
            _shoot(program, page, target, int(figure.layout.height) + FRAME_PX)
            written.append(target)
    return written


def _shoot(program: str, page: Path, target: Path, height_px: int) -> None:
    """Take a picture of a page."""
    size = [f"--window-size={WIDTH_PX},{height_px}", "--force-device-scale-factor=2", f"--virtual-time-budget={SETTLE_MS}"]
    profile = f"--user-data-dir={page.parent / 'profile'}"
    command = [program, *FLAGS, *size, profile, f"--screenshot={target.resolve()}", page.as_uri()]
    target.unlink(missing_ok=True)
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InfraError(f"{program} drew no {target.name} ({error}); the HTML holds the same charts.") from error
    if not target.is_file():
        last = (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise InfraError(f"{program} drew no {target.name} ({last}); the HTML holds the same charts.")
