"""What the installation knows of itself: extras, and other distributions with packages of our names."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError

import pytest

from harness import cli, doctor_host, installation
from harness.diagnosis import Outcome


def test_another_distribution_with_our_package_is_refused(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    providers = {"agents": ["openai-agents", "hgemm-arena"], "harness": ["hgemm-arena"], "numpy": ["numpy"]}
    monkeypatch.setattr(installation, "packages_distributions", lambda: providers)
    assert installation.strangers() == {"agents": ("openai-agents",)}
    monkeypatch.setattr("sys.argv", ["hgemm", "shapes"])
    for name in ("stdout", "stderr"):  # which the command line replaces
        monkeypatch.setattr(sys, name, getattr(sys, name))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: the package 'agents' is also installed by openai-agents")
    assert "pip uninstall openai-agents" in captured.err
    check = next(check for check in doctor_host.host_checks() if check.name == "packages")
    assert check.outcome is Outcome.FAIL


def test_extras_name_what_is_missing_and_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    requirements = [
        "numpy>=2.0",
        'cuda-core<2,>=1.1; extra == "build"',
        'hgemm-arena[build]; extra == "gpu"',
        "cupy-cuda13x>=14; extra == 'gpu'",
    ]
    here = {"cuda-core": "1.2.2"}

    def version(name: str) -> str:
        if name not in here:
            raise PackageNotFoundError(name)
        return here[name]

    monkeypatch.setattr(installation, "requires", lambda _: requirements)
    monkeypatch.setattr(installation, "version", version)
    build, gpu = installation.extras()
    assert (build.name, build.present, build.missing) == ("build", {"cuda-core": "1.2.2"}, ())
    assert (gpu.name, gpu.present, gpu.missing) == ("gpu", {"cuda-core": "1.2.2"}, ("cupy-cuda13x",))
    assert gpu.mend == "pip install 'hgemm-arena[gpu]'"


def test_the_real_extras_are_those_of_the_project() -> None:
    assert {"build", "gpu", "leaderboard", "agents", "llm", "cluster", "dev"} <= {extra.name for extra in installation.extras()}
