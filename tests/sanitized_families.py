"""Every mechanism of the kernel families on a small shape, to be run under compute-sanitizer: `.ci/gpu OUTPUT sanitize`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from family_cases import BASIC

from agents.config import KernelConfig
from agents.export import Title, export
from agents.space import broken_rules
from harness.evaluate import Evaluator
from harness.problem import Problem
from harness.profiles import load_profile
from harness.protocol import Purpose, protocol_for
from harness.record import Status

H200 = load_profile("h200")
LONGEST_SIDE = 1024
DEADLINE_S = 500.0


def main() -> int:
    """Verify them all; the sanitizer says what else is wrong."""
    chosen: dict[Problem, KernelConfig] = {}
    for count, (name, (fields, shape)) in enumerate(BASIC.items(), start=1):
        layout = "TN" if name == "registers" or count % 2 else "NN"
        config = KernelConfig.model_validate({**fields, "layout": layout})
        if config.accumulator == "f32" and not broken_rules(config, H200):
            m, n, k = (min(side, LONGEST_SIDE) for side in map(int, shape.split("x")))
            # Another N for each, since a plan has one configuration per shape.
            chosen[Problem(m=m, n=n + 8 * count, k=k)] = config
    # Nothing is timed, so that a sanitizer may take as long as it likes.
    protocol = protocol_for(H200, Purpose.CHECK).model_copy(update={"deadline_s": DEADLINE_S})
    with tempfile.TemporaryDirectory() as scratch, Evaluator("cuda:0", protocol) as evaluator:
        title = Title("sanitized", "1.0.0", "One configuration of each mechanism.")
        root = export(chosen, H200, Path(scratch) / "sanitized", title).root
        records = list(evaluator.evaluate(root, chosen))
    for record in records:
        sys.stdout.write(f"{record.problem} {chosen[record.problem].split}/{chosen[record.problem].family} {record.status}\n")
    return int(any(record.status is not Status.VERIFIED for record in records))


if __name__ == "__main__":
    sys.exit(main())
