"""The installation: what hgemm-arena needs by extra, what of it is there, and who else provides packages of its names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires, version
from typing import NamedTuple

DISTRIBUTION = "hgemm-arena"
PACKAGES = ("harness", "agents", "leaderboard", "shapes")
"""Top-level packages of the distribution."""


class Extra(NamedTuple):
    """An optional part."""

    name: str
    """As in `pip install 'hgemm-arena[NAME]'`."""
    present: dict[str, str]
    """Distributions that are installed, with their versions."""
    missing: tuple[str, ...]
    """Distributions that are not."""

    @property
    def mend(self) -> str:
        """The command that installs it."""
        return f"pip install '{DISTRIBUTION}[{self.name}]'"


def extras() -> tuple[Extra, ...]:
    """Every extra with what of it is here, in the order of pyproject.toml.

    Raises:
        PackageNotFoundError: hgemm-arena itself is not installed.
    """
    requirements = [_parse(text) for text in requires(DISTRIBUTION) or ()]
    names = dict.fromkeys(requirement.extra for requirement in requirements if requirement.extra)
    return tuple(_extra(name, requirements) for name in names)


def strangers() -> dict[str, tuple[str, ...]]:
    """Per package of ours, other distributions that install one of the same name over it (openai-agents: `agents`)."""
    providers = packages_distributions()
    found = {package: tuple(sorted(set(providers.get(package, ())) - {DISTRIBUTION})) for package in PACKAGES}
    return {package: others for package, others in found.items() if others}


class _Requirement(NamedTuple):
    name: str
    includes: tuple[str, ...]
    extra: str


def _parse(text: str) -> _Requirement:
    """`name[extras]>=1; extra == 'x'`, as built metadata writes it."""
    head, _, marker = text.partition(";")
    found = re.match(r"\s*([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?", head)
    assert found is not None
    extra = re.search(r"""extra\s*==\s*['"]([^'"]+)['"]""", marker)
    return _Requirement(found[1], tuple(filter(None, re.split(r"[,\s]+", found[2] or ""))), extra[1] if extra else "")


def _extra(name: str, requirements: list[_Requirement]) -> Extra:
    present: dict[str, str] = {}
    missing: list[str] = []
    for distribution in dict.fromkeys(_distributions(name, requirements)):
        try:
            present[distribution] = version(distribution)
        except PackageNotFoundError:
            missing.append(distribution)
    return Extra(name, present, tuple(missing))


def _distributions(extra: str, requirements: list[_Requirement]) -> Iterator[str]:
    for requirement in requirements:
        if requirement.extra != extra:
            continue
        if requirement.name == DISTRIBUTION:
            for included in requirement.includes:
                yield from _distributions(included, requirements)
        else:
            yield requirement.name
