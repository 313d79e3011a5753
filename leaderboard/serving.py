"""Serving: runs the app, `leaderboard/app.py`, under Streamlit in this process."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path

from harness.model import MissingDependencyError

APP = Path(__file__).with_name("app.py")
OPTIONS = (
    "--browser.gatherUsageStats=false",
    "--server.showEmailPrompt=false",
    "--client.toolbarMode=minimal",
    "--logger.hideWelcomeMessage=true",
    "--theme.light.primaryColor=#3182bd",
    "--theme.dark.primaryColor=#67a9cf",
)
FIRST = ("leaderboard.ui", "leaderboard.views", "leaderboard.charts", "leaderboard.comparing")
"""Imported before the first visitor comes, who would wait for them otherwise."""


def serve(database: str | None, port: int, options: tuple[str, ...] = ()) -> int:
    """Run the app until it is stopped; returns its exit code.

    Args:
        database: URL or file of the board; None for the default.
        port: where it listens.
        options: more of Streamlit's.

    Raises:
        MissingDependencyError: Streamlit is not installed.
    """
    if importlib.util.find_spec("streamlit") is None:
        raise MissingDependencyError("streamlit", "leaderboard", "the app")
    if database is not None:
        os.environ["HGEMM_DATABASE"] = database
    for module in FIRST:
        importlib.import_module(module)
    from streamlit.web.cli import main

    sys.argv = ["streamlit", "run", str(APP), f"--server.port={port}", *OPTIONS, *options]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0
