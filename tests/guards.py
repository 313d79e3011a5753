"""The guards by name, and how a test switches one off: by patching what it is made of, never by a switch in the product.

Most act in the process that judges. What acts where a CUDA device is driven is patched in the worker, by a module that
the test writes and that the channel starts in place of `harness.worker`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from paths import path_with

from harness import elf, submission

Patch = pytest.MonkeyPatch
ROOT = Path(__file__).resolve().parent.parent


class Guard(NamedTuple):
    """One guard."""

    what: str
    off: Callable[[Patch], None] | None
    """Switches it off; None where nothing could be read or would ever end without it."""
    on_device: bool = False
    """Whether it acts where the device is driven, which is the worker for CUDA."""


def switch_off(names: Sequence[str], patch: Patch, scratch: Path) -> None:
    """Switch guards off, here and in every worker that starts from now on."""
    for name in names:
        off = GUARDS[name].off
        assert off is not None, f"{name} cannot be switched off"
        off(patch)
    there = [name for name in names if GUARDS[name].on_device]
    if there:
        module = scratch / "unguarded_worker.py"
        module.write_text(f"import sys\nfrom guards import serve\nserve({there!r}, sys.argv[1:])\n", encoding="utf-8")
        patch.setattr("harness.channel.WORKER", "unguarded_worker")
        patch.setenv("PYTHONPATH", path_with(scratch, Path(__file__).parent, ROOT))


def serve(names: Sequence[str], arguments: list[str]) -> None:
    """A worker without these guards."""
    from harness.worker import main

    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            off = GUARDS[name].off
            assert off is not None
            off(patch)
        main(arguments)


def replaced(target: str, value: object) -> Callable[[Patch], None]:
    """Patch one name."""
    return lambda patch: patch.setattr(target, value)


def nothing(*_: object, **__: object) -> None:
    """In place of a check."""


def integrity_without(field: str) -> Callable[[Patch], None]:
    def off(patch: Patch) -> None:
        from harness.bench import Bench

        found = Bench._integrity
        patch.setattr(
            Bench, "_integrity", lambda self, sets, before: found(self, sets, before).model_copy(update={field: False})
        )

    return off


def without_determinism(patch: Patch) -> None:
    from harness.measurement import Measurement

    accept = Measurement._accept
    patch.setattr(
        Measurement, "_accept", lambda self, found, kind: accept(self, found.model_copy(update={"repeatable": None}), kind)
    )


def without_comparison(patch: Patch) -> None:
    patch.setattr("harness.verify.checks._judge_errors", nothing)
    patch.setattr("harness.verify.checks._judge_projection", nothing)


def without_poison(patch: Patch) -> None:
    from harness.bench import Bench

    def clear(self: Bench, sets: Any, rng: Any) -> int:
        sets.c.zero_()
        self._workspace.zero_()
        return 0x7E01

    patch.setattr(Bench, "_poison_outputs", clear)


def without_fresh_inputs(patch: Patch) -> None:
    """All sets have the same normal inputs for ever."""
    from harness.verify.inputs import InputKind, fill, plan_draws

    def same(kind: InputKind, a: Any, b: Any, seed: int) -> None:
        for number in range(len(a)):
            fill(InputKind.NORMAL, a[number : number + 1], b[number : number + 1], 7)

    def normal(problem: Any) -> tuple[Any, ...]:
        return tuple(draw for draw in plan_draws(problem) if draw.kind is InputKind.NORMAL)

    patch.setattr("harness.bench.fill", same)
    patch.setattr("harness.bench.plan_draws", normal)
    patch.setattr("harness.measurement.plan_draws", normal)


def without_isolation(patch: Patch) -> None:
    patch.setattr("harness.planner.isolated", lambda command, whole: command)
    patch.setattr("harness.channel.isolated", lambda command, whole, namespaces: command)


def without_snapshot(patch: Patch) -> None:
    patch.setattr(
        submission.Submission,
        "write_to",
        lambda self, directory: shutil.copytree(self.root, directory, ignore=shutil.ignore_patterns("__pycache__")),
    )


def without_includes(patch: Patch) -> None:
    from harness import sources

    found = sources._includes
    patch.setattr(sources, "_includes", lambda name, data: [each for each in found(name, data) if not each[1].startswith("/")])


def without_device_calls(patch: Patch) -> None:
    patch.setattr(elf, "_check_calls", nothing)


def unlimited_plans(patch: Patch) -> None:
    from harness import planner

    patch.setattr(planner, "LIMITS", planner.LIMITS._replace(memory_bytes=64 << 30))


def without_strict_capture(patch: Patch) -> None:
    from harness.devices.cuda_graph import Recorder, StrictRecorder

    def relaxed(self: StrictRecorder, put: Any) -> Any:
        self.mode = Recorder.mode
        return Recorder.record(self, put)

    patch.setattr(StrictRecorder, "record", relaxed)


def without_inverted_arena(patch: Patch) -> None:
    import torch

    patch.setattr(torch.Tensor, "bitwise_not_", lambda self: self)


GUARDS: dict[str, Guard] = {
    "manifest": Guard("the manifest has known fields only", None),
    "files": Guard("a submission holds plain files of known kinds only", None),
    "snapshot": Guard("what is built is what was read and hashed", without_snapshot),
    "plan-validation": Guard("what plan.py says is data of known words", None),
    "plan-bounds": Guard("a plan reaches only its own buffers", replaced("harness.plan.Plan.check_bounds", nothing)),
    "plan-limits": Guard("plan.py has limits of time, memory and output", unlimited_plans),
    "isolation": Guard("plan.py and native code have no network and cannot trace the harness", without_isolation),
    "includes": Guard("directives name files of the submission, literally", without_includes),
    "dependencies": Guard(
        "a compilation reads files of the submission only", replaced("harness.build._check_dependencies", nothing)
    ),
    "build-limits": Guard("a compiler has limits of time, memory and output", None),
    "host-library": Guard(
        "host code has no state, no imports but memory and math, nothing that runs at loading",
        replaced("harness.elf.check_library", nothing),
    ),
    "native-imports": Guard(
        "libraries for CUDA import listed functions only", replaced("harness.native_elf.check_imports", nothing)
    ),
    "native-capture": Guard("hgemm_run is called under a strict capture", without_strict_capture, on_device=True),
    "native-nodes": Guard(
        "what it records is kernels of its own and memsets of C and the workspace",
        replaced("harness.devices.cuda_graph.check_nodes", nothing),
        on_device=True,
    ),
    "native-same-work": Guard(
        "it records the same for every call",
        replaced("harness.devices.cuda_host.NativeHost._rehearse", nothing),
        on_device=True,
    ),
    "native-blind-capture": Guard("while it is called the arena is inverted", without_inverted_arena),
    "marks": Guard(
        "operations work on inputs as they are when they begin",
        replaced("harness.devices.marks.Marks.show", lambda self, sets: True),
        on_device=True,
    ),
    "device-globals": Guard("device code has no writable globals", replaced("harness.elf._check_globals", nothing)),
    "device-constants": Guard("device code takes no address of constants", replaced("harness.elf._check_constants", nothing)),
    "device-calls": Guard("device code calls nothing of the driver", without_device_calls),
    "guard-bands": Guard("nothing is written beside C and the workspace", integrity_without("guards_changed"), on_device=True),
    "inputs-unchanged": Guard("A and B keep their bits", integrity_without("inputs_changed"), on_device=True),
    "workspace-restored": Guard("zeroed bytes are zero again", integrity_without("workspace_dirty"), on_device=True),
    "poison": Guard("C and the workspace hold random NaN before every run", without_poison, on_device=True),
    "fresh-inputs": Guard("inputs are drawn anew for every run", without_fresh_inputs, on_device=True),
    "stale-outputs": Guard(
        "new inputs under an old C give a new C", replaced("harness.bench.Bench._over_old_outputs", nothing), on_device=True
    ),
    "defects": Guard("every output is written and finite", replaced("harness.verify.checks._judge_defects", nothing)),
    "comparison": Guard("outputs are as near float64 as the track's arithmetic", without_comparison),
    "deterministic": Guard("equal inputs give equal bits where the plan says so", without_determinism),
    "timed": Guard(
        "the outputs of timed windows are verified", replaced("harness.measurement.Measurement._accept_timed", nothing)
    ),
    "parents-clock": Guard(
        "the parent's clock bounds a native worker's times", replaced("harness.devices.untrusted.CLOCK_SLACK_SHARE", 1.0)
    ),
    "speed-of-light": Guard("no time is below the device's limits", replaced("harness.measurement.LIMIT_SLACK", 0.0)),
    "protocol": Guard("a worker's answer is a validated message, one per request", None),
    "deadline": Guard("a shape has a deadline", None),
    "blame": Guard("who ends the worker is rejected", None),
    "launch-status": Guard("the driver's answer to every launch is read", None),
    "faults": Guard("a fault of the device is read after every run", None),
    "recheck": Guard(
        "a run's files and figures are recomputed before it publishes",
        replaced("leaderboard.examine.faults", lambda *_: iter(())),
    ),
}


if __name__ == "__main__":
    sys.stdout.write("\n".join(f"{name}: {guard.what}" for name, guard in GUARDS.items()) + "\n")
