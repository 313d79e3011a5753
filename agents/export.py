"""Export: from a configuration per problem to a submission directory: manifest, plan.json and generated kernels."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from agents.analytic import estimate_ns, ranked_all
from agents.config import KernelConfig
from agents.families.common import Source
from agents.space import Space, kernels_for, plan_for, sources_for
from harness.model import DataError
from harness.plan import Plan, PlanFile
from harness.problem import Problem, Track
from harness.profiles import DeviceProfile
from harness.submission import MANIFEST_NAME, Submission

TOLERANCE = 0.03
"""A configuration that promises to be slower by less than this stands for the best one, so that few kernels are needed."""
CONSIDERED = 40
"""Configurations per problem that may stand for it."""


class Title(NamedTuple):
    """What the manifest says of an exported submission."""

    name: str
    """Its name."""
    version: str
    """Its version."""
    description: str
    """What it is, in a sentence or two."""


def export(chosen: Mapping[Problem, KernelConfig], device: DeviceProfile, directory: Path, title: Title) -> Submission:
    """Write a submission that computes each problem by its configuration. An earlier export in that place is replaced.

    Raises:
        DataError: the directory holds something else than an export, or the problems are of two tracks.
    """
    tracks = {problem.track for problem in chosen}
    if len(tracks) != 1:
        raise DataError(f"a submission enters one track, not {len(tracks)}; export each by itself.")
    _clear(directory)
    plans: dict[str, Plan] = {}
    sources: dict[str, Source] = {}
    for problem, config in chosen.items():
        plans[str(problem)] = plan_for(config, problem, device)
        sources.update({source.name: source for source in sources_for(config, problem)})
    (directory / "kernels").mkdir(parents=True)
    for source in sources.values():
        (directory / source.path).write_text(source.text, encoding="utf-8")
    document = PlanFile.collect(dict(plans)).model_dump(mode="json", exclude_none=True)
    (directory / "plan.json").write_text(_lines(document), encoding="utf-8")
    (directory / MANIFEST_NAME).write_text(_manifest(title, tracks.pop(), device), encoding="utf-8")
    return Submission.read(directory)


def choose(space: Space, problems: Iterable[Problem]) -> dict[Problem, KernelConfig]:
    """The analytic model's choice for each problem, within TOLERANCE and with few kernels."""
    options: dict[Problem, dict[tuple[str, ...], KernelConfig]] = {}
    for problem, found in ranked_all(space, tuple(problems), CONSIDERED).items():
        limit_ns = estimate_ns(found[0], problem, space.device) * (1 + TOLERANCE)
        options[problem] = {}
        for config in found:
            if estimate_ns(config, problem, space.device) <= limit_ns:
                options[problem].setdefault(kernels_for(config, problem), config)
    return cover(options)


def cover(options: Mapping[Problem, Mapping[tuple[str, ...], KernelConfig]]) -> dict[Problem, KernelConfig]:
    """One of the options of each problem, so that few different kernels are named: greedily, the most useful first."""
    chosen: dict[Problem, KernelConfig] = {}
    left = dict(options)
    while left:
        serves: dict[tuple[str, ...], list[Problem]] = defaultdict(list)
        for problem, configs in left.items():
            for kernels in configs:
                serves[kernels].append(problem)
        kernels = max(serves, key=lambda names: (len(serves[names]), names))
        for problem in serves[kernels]:
            chosen[problem] = left.pop(problem)[kernels]
    return {problem: chosen[problem] for problem in options}


def _clear(directory: Path) -> None:
    if not directory.exists():
        return
    names = {path.name for path in directory.iterdir()} if directory.is_dir() else {"a file"}
    kernels: Sequence[Path] = sorted(directory.glob("kernels/*"))
    generated = all(
        path.read_text(encoding="utf-8", errors="replace").startswith("// Generated from agents/") for path in kernels
    )
    if names - {MANIFEST_NAME, "plan.json", "kernels"} or not generated:
        raise DataError(f"{directory} holds something else than an exported submission; name another directory.")
    shutil.rmtree(directory)


def _lines(document: dict[str, object]) -> str:
    """JSON with one kernel or plan on a line, so that differences can be read."""
    parts = []
    for key, value in document.items():
        if isinstance(value, dict):
            rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row, separators=(',', ':'))}" for name, row in value.items())
            parts.append(f" {json.dumps(key)}: {{\n{rows}\n }}")
        else:
            parts.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _manifest(title: Title, track: Track, device: DeviceProfile) -> str:
    fields = {
        "name": title.name,
        "version": title.version,
        "authors": ["HGEMM Arena authors"],
        "license": "MIT",
        "description": title.description,
        "track": track,
        "targets": [device.architecture],
        "kind": "device",
    }
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())
