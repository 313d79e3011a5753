"""The pytest plugin: benchmarks of a submission, and a gate on them. Nothing but pytest is imported until an option is used.

    pytest --hgemm-submission submissions/my-kernel --hgemm-shapes quick --benchmark-json=now.json
    pytest … --hgemm-gate baseline.json --hgemm-max-regression 5%

pytest-benchmark reports: `DeviceClock` is the timer that it is given, so that its statistics are device time per launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from harness.pytest_session import HgemmSession, Measurer

OPTIONS = {
    "submission": "Directory of a submission to benchmark; may be given again.",
    "shapes": "Set of shapes, file, or MxNxK,MxNxK; default quick, or cpu for the CPU.",
    "device": "auto, cpu, cuda:0, …",
    "gate": "Pinned baseline to gate on. Ends with 0 pass, 1 fail, 10 ambiguous, 11 invalid.",
    "max-regression": "How much slower things may be: 5%%, or a regime's as in latency=3%%; may be given again.",
    "ratio": "Gate on times relative to this baseline of the rounds, or to this other submission.",
    "budget": "Seconds for measuring again what the gate cannot decide; default 120.",
    "summary": "File to write the gate's verdict to as Markdown.",
    "junit": "File to write the gate's verdict to as JUnit XML.",
}
MANY = {"submission", "max-regression"}
GATE_ONLY = ("max-regression", "ratio", "budget", "summary", "junit")
SESSION = pytest.StashKey["HgemmSession"]()


class DeviceClock:
    """A timer for pytest-benchmark that stands still but while windows of a measurement pass, so it shows their time."""

    __name__ = "device_time"

    def __init__(self) -> None:
        self._now_s = 0.0

    def __call__(self) -> float:
        """Seconds that passed on the device."""
        return self._now_s

    def replay(self, benchmark: Any, window_ns: Sequence[int], launches: int) -> None:
        """Let windows of that many launches pass, in nanoseconds, each a round of pytest-benchmark's fixture."""
        launched = 0

        def launch() -> None:
            nonlocal launched
            window, place = divmod(launched, launches)
            # pytest-benchmark calls once more after the last round, for the result.
            if place == 0 and window < len(window_ns):
                self._now_s += window_ns[window] / 1e9
            launched += 1

        benchmark.pedantic(launch, rounds=len(window_ns), iterations=launches)


CLOCK = DeviceClock()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, `--hgemm-…`."""
    group = parser.getgroup("hgemm", "benchmarks of HGEMM kernels, and a gate on them")
    for name, help_text in OPTIONS.items():
        action = "append" if name in MANY else "store"
        group.addoption(f"--hgemm-{name}", action=action, default=None, help=help_text)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Load the rest where an option asks for it.

    Raises:
        pytest.UsageError: an option is wrong.
    """
    config.addinivalue_line("markers", "hgemm: a benchmark that --hgemm-submission collected.")
    used = [name for name in OPTIONS if config.getoption(_destination(name)) is not None]
    if not used:
        return
    alone = [name for name in used if name in GATE_ONLY and "gate" not in used]
    if alone:
        raise pytest.UsageError(f"--hgemm-{alone[0]} needs --hgemm-gate")
    if "shapes" in used and "submission" not in used:
        raise pytest.UsageError("--hgemm-shapes needs --hgemm-submission")
    _session(config)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every benchmark of ours the clock that shows device time."""
    for item in items:
        if "hgemm" in getattr(item, "fixturenames", ()):
            marker = item.get_closest_marker("benchmark")
            kwargs = dict(marker.kwargs) if marker is not None else {}
            item.add_marker(pytest.mark.benchmark(**{**kwargs, "timer": CLOCK}), append=False)
            # What failed before it was timed has said why already.
            item.add_marker(pytest.mark.filterwarnings("ignore:Benchmark fixture was not used"))


@pytest.fixture
def hgemm(request: pytest.FixtureRequest, benchmark: Any) -> Measurer:
    """Verify and time one shape of a submission, reported by pytest-benchmark as device time per launch.

    `record = hgemm("submissions/my-kernel", "4096x4096x64")`, once per test; a third argument names the measure, such as
    `offline/warm`. Fails the test where the record is not verified.
    """
    return _session(request.config).measurer(benchmark)


def option(config: pytest.Config, name: str) -> Any:
    """Value of `--hgemm-NAME`; None where it was not given."""
    return config.getoption(_destination(name))


def _destination(name: str) -> str:
    return f"hgemm_{name.replace('-', '_')}"


def _session(config: pytest.Config) -> HgemmSession:
    if SESSION not in config.stash:
        from harness.pytest_session import HgemmSession

        config.stash[SESSION] = HgemmSession(config)
        config.pluginmanager.register(config.stash[SESSION], "hgemm-session")
    return config.stash[SESSION]
