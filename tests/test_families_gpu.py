"""The kernel families on an H200: samples of legal configurations are right under the harness's whole verification.

Quick first: `pytest -m gpu tests/test_families_gpu.py -k basic` tries one configuration of each kind on one shape.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from family_cases import BASIC, EVERY_SIDE, side_id

from agents.analytic import ranked
from agents.config import Family, KernelConfig
from agents.export import Title, export
from agents.space import Space, broken_rules
from harness.evaluate import Evaluator
from harness.plan import Layout
from harness.problem import Problem, Track
from harness.problem_sets import resolve_shapes
from harness.profiles import load_profile
from harness.protocol import Purpose
from harness.record import Status

pytestmark = pytest.mark.gpu

H200 = load_profile("h200")


@functools.cache
def space() -> Space:
    return Space(H200)


@pytest.fixture(scope="module")
def evaluator() -> Iterator[Evaluator]:
    """One worker for all tests, since it takes seconds to start; it is replaced where a kernel costs it."""
    with Evaluator("cuda:0", purpose=Purpose.CHECK) as evaluator:
        yield evaluator


def check_all(evaluator: Evaluator, directory: Path, chosen: Mapping[Problem, KernelConfig]) -> None:
    """Every problem is verified by the configuration chosen for it; all that are not are named at once."""
    submission = export(chosen, H200, directory / "sampled", Title("sampled", "1.0.0", "A sample of configurations."))
    records = list(evaluator.evaluate(submission.root, chosen))
    wrong = {
        f"{record.problem} {chosen[record.problem].model_dump_json(exclude_defaults=True)}": f"{record.reason}: {record.detail}"
        for record in records
        if record.status is not Status.VERIFIED
    }
    assert wrong == {}
    assert len(records) == len(chosen)


@pytest.mark.parametrize(("name", "layout", "swapped"), EVERY_SIDE, ids=side_id)
def test_basic_configurations_are_right(evaluator: Evaluator, tmp_path: Path, name: str, layout: Layout, swapped: bool) -> None:
    fields, shape = BASIC[name]
    problem = Problem.parse(shape, Track(fields.get("accumulator", "f32")))
    if swapped and name == "skinny":
        problem = problem.model_copy(update={"m": problem.n, "n": problem.m})
    config = KernelConfig.model_validate({**fields, "layout": layout, "swapped": swapped})
    assert broken_rules(config, H200) == ()
    chosen = {problem: config}
    if name == "unaligned":
        chosen[Problem.parse("1001x77x1023")] = config.model_copy(update={"group": 1})
    check_all(evaluator, tmp_path, chosen)


@pytest.mark.parametrize("family", [family for family in Family if family is not Family.UNALIGNED])
@pytest.mark.parametrize("name", ["quick", "ragged", "llm"])
def test_random_legal_configurations_of_a_family_are_right(
    evaluator: Evaluator, tmp_path: Path, name: str, family: Family
) -> None:
    rng = random.Random(f"{name}/{family}")
    chosen = {}
    for problem in resolve_shapes(name).problems:
        legal = [config for config in space().legal(problem) if config.family is family]
        if legal and problem.bytes_total < 1 << 30:
            chosen[problem] = rng.choice(legal)
    assert chosen
    check_all(evaluator, tmp_path, chosen)


@pytest.mark.parametrize("name", ["quick", "ragged", "llm"])
def test_the_models_choices_are_right(evaluator: Evaluator, tmp_path: Path, name: str) -> None:
    small = [problem for problem in resolve_shapes(name).problems if problem.bytes_total < 1 << 30]
    check_all(evaluator, tmp_path, {problem: ranked(space(), problem, 1)[0] for problem in small})
