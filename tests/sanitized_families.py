"""Every mechanism of the kernel families on a small shape, to be run under compute-sanitizer: `.ci/gpu OUTPUT sanitize`.

The device is driven in this process, which the sanitizer watches, and not in a worker.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from fake_device import FakeDriver
from family_cases import BASIC

from agents.config import KernelConfig
from agents.export import Title, export
from agents.families.common import GROUP
from agents.families.ws_persistent import GROUPS
from agents.space import broken_rules
from harness import evaluate
from harness.devices.cuda import CudaDevice
from harness.evaluate import Evaluator, Prepared
from harness.problem import Problem
from harness.profiles import load_profile
from harness.protocol import Purpose, protocol_for
from harness.record import Status

H200 = load_profile("h200")
LONGEST_SIDE = 1024


class Sanitized(NamedTuple):
    """A mechanism and what is run of it."""

    name: str
    problem: Problem
    config: KernelConfig


def mechanisms() -> list[Sanitized]:
    """All that have sums in fp32, on a small shape each; the layouts of B take turns where both are legal."""
    found = []
    for count, (name, (fields, shape)) in enumerate(BASIC.items(), start=1):
        m, n, k = (min(side, LONGEST_SIDE) for side in map(int, shape.split("x")))
        for layout in ("TN", "NN") if count % 2 else ("NN", "TN"):
            # The shortest band, since a small C has no room for a longer one.
            config = KernelConfig.model_validate({"group": GROUPS[0], **fields, "layout": layout})
            # Another N for each, since a plan has one configuration per shape, and a stage of K for each CTA of a tile.
            problem = Problem(m=m, n=n + GROUP * count, k=max(k, config.bk * config.splits))
            if not broken_rules(config, H200, problem):
                found.append(Sanitized(name, problem, config))
                break
    return found


def main() -> int:
    """Verify them all; the sanitizer says what else is wrong."""
    evaluate.open_driver = lambda *_: FakeDriver(CudaDevice(0))  # type: ignore[attr-defined]
    chosen = {each.problem: each.config for each in mechanisms()}
    wrong = 0
    # Nothing is timed, so that a sanitizer may take as long as it likes.
    with tempfile.TemporaryDirectory() as scratch, Evaluator("cuda:0", protocol_for(H200, Purpose.CHECK)) as evaluator:
        # Before anything is built, since a sanitizer waits only so long for a program that uses CUDA.
        sys.stdout.write(f"{evaluator.info.name}\n")
        title = Title("sanitized", "1.0.0", "One configuration of each mechanism.")
        prepared = evaluator.prepare(export(chosen, H200, Path(scratch) / "sanitized", title), list(chosen))
        for each in mechanisms():
            found = outcome(evaluator, prepared, each.problem)
            wrong += found != Status.VERIFIED
            sys.stdout.write(f"{each.problem} {each.name} {found}\n")
    return int(wrong > 0)


def outcome(evaluator: Evaluator, prepared: Prepared, problem: Problem) -> str:
    """The status of one, and why; whatever goes wrong, the others are tried too."""
    try:
        *_, last = evaluator.attempts(prepared, problem)
    except Exception as error:  # noqa: BLE001 - what a worker would have died of
        return f"{type(error).__name__}: {error}"
    record = last.record
    return record.status if record.reason is None else f"{record.status}: {record.reason}: {record.detail}"


if __name__ == "__main__":
    sys.exit(main())
