"""Shared fixtures, and what `HGEMM_REQUIRE` means: a test whose machinery is missing is skipped, unless it is required here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest


def missing_gpu() -> str | None:
    """Why no test can use a GPU here, or None."""
    import torch

    return None if torch.cuda.is_available() else "no CUDA device"


PROBES: dict[str, Callable[[], str | None]] = {"gpu": missing_gpu}
"""Per marker, a probe that says why its machinery is missing; it runs once, and only if a selected test needs it."""

REQUIRABLE = frozenset({"gpu", "postgres", "chromium"})


def required() -> frozenset[str]:
    """What `HGEMM_REQUIRE` names.

    Raises:
        pytest.UsageError: a name that nothing could satisfy, since a typing error must not let skips through.
    """
    names = frozenset(name.strip() for name in os.environ.get("HGEMM_REQUIRE", "").split(",") if name.strip())
    if names - REQUIRABLE:
        raise pytest.UsageError(f"HGEMM_REQUIRE names {sorted(names - REQUIRABLE)}; it may name {sorted(REQUIRABLE)}")
    return names


def pytest_configure(config: pytest.Config) -> None:
    required()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for marker, probe in PROBES.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        reason = probe() if marked else None
        for item in marked if reason else []:
            item.stash[_MISSING] = f"{marker}: {reason}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    reason = item.stash.get(_MISSING, "")
    if reason and reason.split(":")[0] in required():
        pytest.fail(f"HGEMM_REQUIRE asks for {reason}", pytrace=False)
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="session", autouse=True)
def build_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One empty build cache per session: no test sees, or fills, the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HGEMM_CACHE", str(tmp_path_factory.mktemp("hgemm-cache")))
        yield


_MISSING = pytest.StashKey[str]()
