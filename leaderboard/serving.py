"""Serving: starts the app, `leaderboard/app.py`, under Streamlit."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from harness.model import MissingDependencyError

APP = Path(__file__).with_name("app.py")
OPTIONS = (
    "--browser.gatherUsageStats=false",
    "--client.toolbarMode=minimal",
    "--theme.light.primaryColor=#3182bd",
    "--theme.dark.primaryColor=#67a9cf",
)


def serve(database: str | None, port: int) -> int:
    """Run the app until it is stopped; returns its exit code.

    Raises:
        MissingDependencyError: Streamlit is not installed.
    """
    if importlib.util.find_spec("streamlit") is None:
        raise MissingDependencyError("streamlit", "leaderboard", "the app")
    environment = {**os.environ, **({"HGEMM_DATABASE": database} if database is not None else {})}
    options = [f"--server.port={port}", *OPTIONS]
    return subprocess.call([sys.executable, "-m", "streamlit", "run", str(APP), *options], env=environment)
