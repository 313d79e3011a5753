"""What is in the wheel, and that it works installed elsewhere, without the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("agents", "harness", "leaderboard", "shapes")


class Installed(NamedTuple):
    """A wheel, and a directory that it is installed in."""

    wheel: Path
    site: Path

    def python(self, directory: Path, *arguments: str) -> str:
        """What Python prints with the wheel's packages, run in another directory."""
        environment = {**os.environ, "PYTHONPATH": str(self.site), "XDG_RUNTIME_DIR": str(directory)}
        command = [sys.executable, "-P", *arguments]
        ended = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    target = ["--target", str(folder / "site"), str(wheel)]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", *target]
    subprocess.run(pip, check=True, capture_output=True)
    return Installed(wheel, folder / "site")


def test_the_wheel_holds_every_file_of_the_packages_and_no_other(installed: Installed) -> None:
    listed = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    held = {name for name in zipfile.ZipFile(installed.wheel).namelist() if ".dist-info/" not in name}
    assert set(listed) - held == set()
    assert {name.split("/")[0] for name in held} == set(PACKAGES)


def test_it_makes_and_checks_a_submission_and_finds_its_data(installed: Installed, tmp_path: Path) -> None:
    assert installed.python(tmp_path, "-c", "import harness; print(harness.__file__)").startswith(str(installed.site))
    assert "x/plan.py" in installed.python(tmp_path, "-m", "harness", "new", "x")
    assert "verify    ok  1 of 1 shape on cpu" in installed.python(tmp_path, "-m", "harness", "check", "x", "--shapes", "3x5x7")
    assert "grid1000" in installed.python(tmp_path, "-m", "harness", "shapes")
    method = "from leaderboard.documents import protocol_text; print(protocol_text())"
    assert "## Constants" in installed.python(tmp_path, "-c", method)
    installed.python(tmp_path, "-m", "harness", "new", "y", "--target", "sm_90a")
    assert "build     ok" in installed.python(tmp_path, "-m", "harness", "check", "y", "--build-only", "--device", "h100")
