"""Kind `native` on a real card: what the fakes of tests/fake_cuda.py take for granted, and what it costs."""

from __future__ import annotations

import shutil
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from redteam_cases import BENIGN, REDTEAM

from harness.devices.cuda_native import NativeCudaDevice
from harness.drivers import LocalDriver
from harness.evaluate import Evaluator
from harness.machine import choose_device
from harness.model import DataError
from harness.problem import Problem
from harness.problem_sets import resolve_shapes
from harness.protocol import CUDA_BASELINES, Protocol, Purpose, protocol_for
from harness.record import SUBMISSION, L2State, Measure, Mode, Reason, Record, Status
from harness.submission import Submission

pytestmark = [pytest.mark.gpu, pytest.mark.nvcc]

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "submissions" / "native-tiled"
SMALL, LARGE = Problem(m=128, n=96, k=160), Problem(m=4096, n=4096, k=512)
TOLERANCE = 0.05
"""How far times of one kernel may differ between the two kinds."""

TRAPS = """#include <hgemm.h>
__global__ void reaches_nowhere(int *at) { *at = 1; }
int hgemm_create(const hgemm_problem *, void **) { return 0; }
int hgemm_run(void *, const void *, const void *, void *, void *, void *stream) {
  reaches_nowhere<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(reinterpret_cast<int *>(8));
  return cudaGetLastError() != cudaSuccess;
}
void hgemm_destroy(void *) {}
"""


def say(text: str) -> None:
    """A figure for whoever runs with -s."""
    sys.stdout.write(f"\n{text}\n")


def short(*measures: Measure) -> Protocol:
    """Every round against every baseline, and the first look is the last."""
    full = protocol_for(choose_device("cuda:0").profile)
    return full.model_copy(update={"measures": measures or full.measures, "target_half_width": 0.9})


@pytest.fixture(scope="class")
def check() -> Iterator[Evaluator]:
    """It verifies and times nothing."""
    with Evaluator("cuda:0", purpose=Purpose.CHECK) as evaluator:
        yield evaluator


def measured(evaluator: Evaluator, directory: Path, *problems: Problem) -> list[Record]:
    return list(evaluator.evaluate(Submission.read(directory), problems))


def submission(parent: Path, root: Path) -> Path:
    return Path(shutil.copytree(root, parent / root.name, ignore=shutil.ignore_patterns("expected.toml", "__pycache__")))


def device_of(evaluator: Evaluator) -> NativeCudaDevice:
    driver = evaluator._driver
    assert isinstance(driver, LocalDriver)
    assert isinstance(driver._device, NativeCudaDevice)
    return driver._device


class TestVerified:
    """What one evaluator, which holds the card, verifies."""

    def test_the_sample_is_verified_on_every_kind_of_shape(self, check: Evaluator) -> None:
        problems = tuple(dict.fromkeys((*resolve_shapes("quick").problems, *resolve_shapes("ragged").problems)))
        records = measured(check, SAMPLE, *problems)
        assert [(str(record.problem), record.status, record.detail) for record in records] == [
            (str(problem), Status.VERIFIED, "") for problem in problems
        ]
        say(f"isolation: {device_of(check).info.conditions['isolation']}")

    def test_memory_that_both_map_grows_and_is_used_again(self, check: Evaluator) -> None:
        records = measured(check, SAMPLE, SMALL, LARGE, SMALL)
        assert [record.status for record in records] == [Status.VERIFIED] * 3
        assert len({record.segment for record in records}) == 1

    def test_a_fault_costs_the_worker_and_not_the_parents_context(self, check: Evaluator, tmp_path: Path) -> None:
        bad = submission(tmp_path, BENIGN / "native-plain")
        (bad / "kernels" / "gemm.cu").write_text(TRAPS, encoding="utf-8")
        (trapped,) = measured(check, bad, SMALL)
        assert (trapped.status, trapped.reason) == (Status.REJECTED, Reason.ILLEGAL_ACCESS), trapped.detail
        (fine,) = measured(check, SAMPLE, SMALL)
        assert (fine.status, fine.detail) == (Status.VERIFIED, "")

    def test_each_submission_has_a_worker_of_its_own(self, check: Evaluator, tmp_path: Path) -> None:
        one, other = SAMPLE, submission(tmp_path, BENIGN / "native-plain")
        records = [measured(check, directory, SMALL)[0] for directory in (one, other, one)]
        assert [record.status for record in records] == [Status.VERIFIED] * 3
        assert len({record.segment for record in records}) == 3

    def test_a_node_that_is_no_kernel_is_named_in_the_refusal(self, check: Evaluator, tmp_path: Path) -> None:
        (record,) = measured(check, submission(tmp_path, REDTEAM / "native-copies"), SMALL)
        assert (record.status, record.reason) == (Status.REJECTED, Reason.FORBIDDEN)
        assert "enqueues a memcpy" in record.detail


def test_a_timed_run_has_every_baseline_and_the_clocks_agree() -> None:
    with Evaluator("cuda:0", short()) as evaluator:
        for record in measured(evaluator, SAMPLE, SMALL, LARGE):
            assert (record.status, record.detail) == (Status.VERIFIED, "")
            for timing in record.timings:
                assert set(timing.contenders) == {*CUDA_BASELINES, SUBMISSION}
                mine = timing.contenders[SUBMISSION]
                say(f"{record.problem} {timing.measure}: {mine.launch_ns:.0f} ns, {mine.description}")
                assert "loaded and created in" in mine.description
        overheads = device_of(evaluator)._overheads_ns
        usual, most = statistics.median(overheads) / 1000, max(overheads) / 1000
        say(f"beside the operations of a baseline's window {usual:.0f} µs pass, at most {most:.0f}")
        assert usual <= most


def test_one_kernel_takes_as_long_in_either_kind(tmp_path: Path) -> None:
    times = {}
    with Evaluator("cuda:0", short(Measure())) as evaluator:
        for name in ("cuda-plain", "native-plain"):
            (record,) = measured(evaluator, submission(tmp_path, BENIGN / name), Problem(m=512, n=512, k=512))
            assert (record.status, record.detail) == (Status.VERIFIED, "")
            times[name] = record.timings[0].contenders[SUBMISSION].launch_ns
    say(" ".join(f"{name} {time:.0f} ns" for name, time in times.items()))
    assert abs(times["native-plain"] / times["cuda-plain"] - 1) < TOLERANCE


def test_server_mode_is_refused() -> None:
    server = Measure(mode=Mode.SERVER, l2_state=L2State.COLD)
    with Evaluator("cuda:0", short(server)) as evaluator, pytest.raises(DataError, match="kind device only"):
        measured(evaluator, SAMPLE, SMALL)
