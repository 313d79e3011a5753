"""The action space: each rule bites, every problem has legal actions, and legal configurations build as they must."""

from __future__ import annotations

import functools
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agents.config import REGISTERS, Family, KernelConfig, Split, Store
from agents.space import ACTIONS, FAMILIES, PROBLEM_RULES, RULES, Space, broken_rules, plan_for, sources_for
from harness.build import Artifact, build_kernels
from harness.model import DataError
from harness.plan import Kernel
from harness.problem import Problem, Track
from harness.problem_sets import resolve_shapes
from harness.profiles import load_profile

H200 = load_profile("h200")
SQUARE = Problem.parse("4096x4096x4096")

TOGETHER = {"family": "ws_persistent", "layout": "TN", "bm": 128, "bn": 128, "stages": 4, "warpgroups": 2, "buffers": 2}
SHARED = {"family": "splitk", "layout": "TN", "bm": 64, "bn": 64, "stages": 8, "splits": 4, "store": "direct"}

BROKEN: tuple[dict[str, Any], ...] = (
    {"profile": "a100"},
    {"bm": 96},
    {"bn": 264, "stages": 2},
    {"bk": 32},
    {"stages": 1},
    {"layout": "NN", "bn": 136},
    {"cluster_p": 2, "bn": 24},
    {"bm": 320, "warpgroups": 1, "bn": 8, "stages": 2},
    {**SHARED, "split": "cluster", "cluster_p": 2},
    {"held": 1},
    {"cluster_p": 8, "cluster_q": 2},
    {"cache": "ahead"},
    {"ping_pong": True, "warpgroups": 3, "bm": 64},
    {"bm": 256, "warpgroups": 4, "bn": 64},
    {"stages": 8},
    {"ctas_per_sm": 2, "stages": 4},
    {"bm": 256, "bn": 208, "stages": 2},
    {"store": "rows"},
    {"store": "wide", "buffers": 0, "layout": "NN"},
    {"splits": 2},
    {**SHARED, "split": "cluster", "store": "tma"},
    {**SHARED, "split": "cluster", "accumulator": "f16"},
    {"buffers": 0},
)
"""Per rule, in the order of RULES, what a configuration breaks it with."""

BROKEN_FOR: tuple[tuple[dict[str, Any], str], ...] = (
    ({"cluster_p": 2}, "128x4096x4096"),
    ({}, "4096x4096x4095"),
    ({"family": "unaligned", "layout": "NN", "bm": 64, "bn": 64, "bk": 32, "stages": 1, "store": "direct"}, "64x63x63"),
    ({}, "4096x4095x4096"),
    ({"store": "wide", "buffers": 0}, "4096x4088x4096"),
    ({"held": 2}, "4096x4096x4096"),
    ({"accumulator": "f16"}, "4096x4096x4096"),
    ({**SHARED, "split": "kernel"}, "64x64x128"),
    ({**SHARED, "split": "kernel", "splits": 16}, "16384x16384x16384"),
    ({**SHARED, "split": "workspace", "splits": 2, "bn": 8}, "262144x8192x256"),
    ({**SHARED, "split": "none", "splits": 1, "bn": 8}, "64x1048576x64"),
    ({**SHARED, "split": "none", "splits": 1, "bn": 8}, "1048576x2097152x64"),
    ({"group": 16}, "128x4096x4096"),
)
"""The same for PROBLEM_RULES, with the problem."""


BUILT = (
    *(Problem.parse("4096x4096x4096", track) for track in Track),
    *(
        Problem.parse(shape)
        for shape in (
            "8192x8192x64",
            "8192x8192x128",
            "8192x8192x256",
            "8192x8192x512",
            "512x128x16384",
            "128x512x16384",
            "4096x4095x4095",
            "4095x4096x4095",
        )
    ),
)
"""Problems of which one is legal for every configuration."""


@functools.cache
def space() -> Space:
    return Space(H200)


def config(**fields: Any) -> KernelConfig:
    base = TOGETHER if "family" not in fields else {}
    return KernelConfig.model_validate({**base, **fields})


def problems(*names: str) -> tuple[Problem, ...]:
    return tuple(dict.fromkeys(problem for name in names for problem in resolve_shapes(name).problems))


def test_every_rule_has_a_reason_of_its_own() -> None:
    reasons = [rule.reason for rule in RULES] + [rule.reason for rule in PROBLEM_RULES]
    assert max(Counter(reasons).values()) == 1
    assert broken_rules(config(), H200, SQUARE) == ()


@pytest.mark.parametrize("warpgroups", REGISTERS)
def test_registers_that_are_reassigned_are_there(warpgroups: int) -> None:
    """What setmaxnreg asks for: multiples of 8 from 24 to 256, and no more in all than a multiprocessor has."""
    given, taken = REGISTERS[warpgroups]
    at_launch = H200.registers_per_sm // (128 * (warpgroups + 1)) // 8 * 8
    assert 24 <= given <= at_launch <= taken <= 256
    assert given % 8 == taken % 8 == 0
    assert given + warpgroups * taken <= at_launch * (warpgroups + 1)


@pytest.mark.parametrize("index", range(len(RULES)))
def test_every_rule_is_broken_by_something(index: int) -> None:
    fields = dict(BROKEN[index])
    device = load_profile(fields.pop("profile", "h200"))
    assert RULES[index].reason in broken_rules(config(**fields), device)


@pytest.mark.parametrize("index", range(len(PROBLEM_RULES)))
def test_every_rule_for_a_problem_is_broken_by_something(index: int) -> None:
    fields, shape = BROKEN_FOR[index]
    assert not PROBLEM_RULES[index].holds(config(**fields), Problem.parse(shape))


def test_examples_cover_the_rules() -> None:
    assert (len(BROKEN), len(BROKEN_FOR)) == (len(RULES), len(PROBLEM_RULES))


def test_space_holds_every_family_once_and_only_what_the_device_allows() -> None:
    configs = space().configs
    assert len(configs) == len(set(configs)) > 2000
    assert {c.family for c in configs} == set(Family) == set(FAMILIES)
    assert {c.split for c in configs} == set(Split)
    assert {c.store for c in configs} == set(Store)
    assert {c.accumulator for c in configs} == set(Track)
    assert all(broken_rules(c, H200) == () for c in configs)
    assert all(space().index[c] == index for index, c in enumerate(configs))
    assert {c.family for c in Space(load_profile("a100")).configs} == {Family.UNALIGNED, Family.REGISTERS}
    assert Space(load_profile("cpu")).configs == ()


@pytest.mark.parametrize("name", ["quick", "ragged"])
def test_every_problem_has_legal_actions(name: str) -> None:
    for problem in problems(name):
        mask = space().mask(problem)
        assert len(mask) == len(space().configs)
        assert any(mask), problem


def test_mask_is_what_the_rules_say() -> None:
    rng = random.Random(1)
    for problem in rng.sample(problems("grid1000", "llm"), 5):
        mask = space().mask(problem)
        for index in rng.sample(range(len(mask)), 300):
            assert mask[index] == (broken_rules(space().configs[index], H200, problem) == ())


def test_choosing_one_parameter_after_the_other_leads_to_a_legal_configuration() -> None:
    rng = random.Random(2)
    for problem in rng.sample(problems("quick", "ragged"), 4):
        chosen: dict[str, object] = {}
        while len(chosen) < len(ACTIONS):
            name = ACTIONS[len(chosen)]
            chosen[name] = rng.choice(space().options(problem, chosen))
        found = [c for c in space().legal(problem) if all(getattr(c, key) == value for key, value in chosen.items())]
        assert len(found) == 1
    with pytest.raises(DataError, match="no configuration"):
        space().options(problem, {"family": "none"})


def test_actions_are_the_fields_of_a_configuration() -> None:
    assert set(ACTIONS) == set(KernelConfig.model_fields)


def test_random_legal_configurations_build_without_spills_or_serialised_instructions(tmp_path: Path) -> None:
    rng = random.Random(3)
    (tmp_path / "kernels").mkdir()
    kernels: dict[str, Kernel] = {}
    for family in Family:
        legal = [c for c in space().configs if c.family is family]
        for chosen in rng.sample(legal, min(4, len(legal))):
            problem = next(problem for problem in BUILT if not broken_rules(chosen, H200, problem))
            kernels.update(plan_for(chosen, problem, H200).kernels)
            for source in sources_for(chosen, problem):
                (tmp_path / source.path).write_text(source.text, encoding="utf-8")
    assert len(kernels) > 10
    for built in build_kernels(tmp_path, kernels.values(), H200).values():
        assert isinstance(built, Artifact), built
        report = built.report
        assert (report.warnings, report.spill_store_bytes, report.spill_load_bytes) == ((), 0, 0)
        assert not report.serialized_wgmma
