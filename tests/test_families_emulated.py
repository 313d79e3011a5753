"""The kernel families compute right on an emulated Hopper, whatever its units' timing, and the emulator finds faults."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import pytest
from emulated import SMALL, EmulationError, How, verify, verify_plan
from family_cases import BASIC, EVERY_SIDE, side_id

from agents.analytic import ranked
from agents.config import Family, KernelConfig, Split
from agents.export import Title, export
from agents.space import Space, broken_rules
from harness.plan import Layout, Plan
from harness.planner import make_plans
from harness.problem import Problem, Track

SHAPES = ("200x136x200", "72x328x136", "129x64x72", "264x40x320")
"""Ragged, and together over one and several waves, tiles and stages; all have rows that TMA can load in either layout."""
EDGES = ("129x67x77", "1x1x1", "65x257x130", "130x64x63")
"""Rows that TMA cannot load."""
RAGGED_FOR = {
    "unaligned": "129x67x77",
    "stream": "648x776x72",
    "stream-ping-pong": "648x392x136",
    "stream-cluster": "200x136x520",
    "wide-store": "200x352x200",
    "wide-store-ping-pong": "840x416x200",
    "wide-store-latency": "200x160x200",
    "output": "840x520x64",
    "output-one-strip": "840x520x200",
    "output-one-strip-ping-pong": "840x520x200",
    "output-ping-pong": "840x520x200",
}
"""Where a mechanism shows: tiles beyond what whole waves take, and long K over few tiles."""
EACH = 6
"""Configurations of a family that are drawn."""


@functools.cache
def space() -> Space:
    return Space(SMALL)


@pytest.mark.parametrize(("name", "layout", "swapped"), EVERY_SIDE, ids=side_id)
def test_every_mechanism_is_right(name: str, layout: Layout, swapped: bool) -> None:
    fields = dict(BASIC[name][0])
    if "splits" in fields:
        fields["splits"] = 3
    config = KernelConfig.model_validate({**fields, "layout": layout, "swapped": swapped})
    assert broken_rules(config, SMALL) == ()
    for late in (False, True) if layout is Layout.TN and not swapped else (True,):
        verify(config, Problem.parse(RAGGED_FOR.get(name, "200x136x200")), How(late=late))


def test_exported_kernels_of_every_way_to_share_tiles_compute_right(tmp_path: Path) -> None:
    """From a search's winners to a submission, its plans and their kernels."""
    winners = {}
    for split, shape in zip(
        Split, ("72x64x136", "64x72x520", "72x64x520", "64x64x520", "72x72x520", "648x520x136"), strict=True
    ):
        problem = Problem.parse(shape)
        winners[problem] = next(c for c in ranked(space(), problem, len(space().configs)) if c.split is split)
    submission = export(winners, SMALL, tmp_path / "shared", Title("shared", "1.0.0", "Of a test."))
    plans = make_plans(submission, list(winners), SMALL)
    for problem, config in winners.items():
        plan = plans[problem]
        assert isinstance(plan, Plan)
        assert plan.deterministic == config.deterministic
        files = dict.fromkeys(kernel.source for kernel in plan.kernels.values())
        texts = tuple((submission.root / file).read_text(encoding="utf-8") for file in files)
        verify_plan(plan, texts, problem, How())


@pytest.mark.parametrize("family", Family)
def test_random_configurations_are_right_for_ragged_shapes(family: Family) -> None:
    rng = random.Random(family.value)
    drawn = 0
    while drawn < EACH:
        problem = Problem.parse(rng.choice(EDGES if family is Family.UNALIGNED else SHAPES), rng.choice(list(Track)))
        legal = [config for config in space().legal(problem) if config.family is family]
        if legal:
            verify(rng.choice(legal), problem, How(seed=rng.randrange(1000), late=rng.random() < 0.7))
            drawn += 1
    assert drawn == EACH


FAULTS: dict[str, tuple[str, str, str, str]] = {
    "bytes of a stage": ("persistent", "expect(full, STAGE_BYTES)", "expect(full, P_BYTES)", "goes on"),
    "panel without a fence": ("persistent", "    fence_async();\n    named", "    named", "without a fence"),
    "panel still read": ("wide", "if (first) wait_stores<BUFFERS - ROUND>();", "", "wrong|without a fence"),
    "end before stores": ("persistent", "if (threadIdx.x % 128 == 0) wait_stores<0>();", "", "may read"),
    "stage still read": ("persistent", "multiply_wait<1>();", "", "wrong"),
    "sums still written": ("persistent", "multiply_wait<0>();", "", "wrong|before its multiplies"),
    "end before peers": ("cluster-p", "    cluster_arrive();\n    cluster_wait();\n  }\n}", "  }\n}", "end"),
    "peers not counted": ("cluster-q", " * Peers::COUNT);", ");", "goes on|more arrivals|wrong"),
    "turn of the other": ("ping-pong", "turn.skip(piece.count);", "", "goes on|more arrivals|wrong"),
    "flag left": ("stream", "      *flag = 0;", "", "dirty"),
    "sums before the flag": ("stream", "      wait_for_flag(flag);", "", "wrong|dirty"),
    "piece of another": ("stream", "piece.from = streamed ? from - first : 0;", "piece.from = 0;", "wrong|dirty"),
    "sums left": ("split-atomic", "store_global(from + index * MULTIPLIERS, Four{});", "", "dirty"),
    "counter left": ("split-workspace", "counters[tile] = 0;", ";", "dirty"),
    "strip not awaited": (
        "output-one-strip",
        "if (walk.seen < STEP) barrier_wait(memory.strip_full(walk.strip, index), walk.parity);",
        "",
        "wrong",
    ),
    "strip still read": ("output", "if (walk.of_strip() <= STEP) leave();", "leave();", "wrong|more arrivals"),
    "strip of the other": (
        "output-one-strip-ping-pong",
        "if (walk.seen == 0 && walk.of_strip() == 1) leave();",
        "",
        "goes on|wrong",
    ),
    "peers' sums gone": ("split-cluster", " the others may still read\n  cluster_arrive();\n  cluster_wait();", "", "end"),
}
"""Per fault the mechanism, a piece of its source and what stands in its place, and what the emulator says."""


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(name: str) -> None:
    mechanism, piece, instead, said = FAULTS[name]
    fields: dict[str, Any] = {**BASIC[mechanism][0], "layout": "TN"}
    fields["stages"] = min(fields["stages"], 3)
    if "splits" in fields:
        fields["splits"] = 3
    config = KernelConfig.model_validate(fields)
    shapes = {
        "cluster-p": "264x392x72",
        "stream": "264x648x136",
        "output": "256x4608x64",
        "output-one-strip": "840x520x200",
        "output-one-strip-ping-pong": "64x5120x200",
    }
    problem = Problem.parse(shapes.get(mechanism, "264x392x520"))

    def try_seeds() -> None:
        for seed in range(32):
            verify(config, problem, How(seed, mutation=(piece, instead)))

    with pytest.raises(EmulationError, match=said):
        try_seeds()


@pytest.mark.parametrize(
    ("piece", "instead"),
    [
        ("(BK * LINE / 16 << 16)", "(BK * LINE / 32 << 16)"),
        ("high = 8 * LINE / 16 |", "high = 4 * LINE / 16 |"),
        ("return offset ^ (offset >> 3 & (LINE - 16));", "return offset;"),
        ("memory.stage(turn.stage) & 0x3ffff", "memory.stage(turn.stage)"),
    ],
    ids=["distance of panels", "distance of eights", "swizzle", "rank in a descriptor"],
)
def test_wrong_layouts_are_found(piece: str, instead: str) -> None:
    config = KernelConfig.model_validate({**BASIC["cluster-p"][0], "layout": "NN"})
    with pytest.raises(EmulationError, match=r"wrong|outside"):
        verify(config, Problem.parse("264x392x72"), How(mutation=(piece, instead)))
