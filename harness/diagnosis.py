"""Diagnosis: what `hgemm doctor` found out about this machine, one Check at a time."""

from __future__ import annotations

from enum import StrEnum

from harness.model import Document, Model


class Outcome(StrEnum):
    """What a check found."""

    OK = "ok"
    """As it must be, or absent and not needed."""
    WARN = "warn"
    """Something works less well, or not at all that not everyone needs."""
    FAIL = "fail"
    """Nothing can be measured, or not be trusted, until it is mended."""


class Check(Model):
    """One thing that was looked at."""

    name: str
    """What, in a word or two."""
    outcome: Outcome
    """What was found."""
    detail: str
    """What was found, in a sentence with its figures."""
    mend: str = ""
    """How to mend it, or how to get what is absent; empty where there is nothing to do."""


class Diagnosis(Document):
    """What `hgemm doctor --json` prints."""

    device: str
    """Device whose instrument was tested: `cpu` or `cuda:N`."""
    checks: tuple[Check, ...]
    """Everything that was looked at, in order."""

    @property
    def healthy(self) -> bool:
        """Whether nothing failed."""
        return all(check.outcome is not Outcome.FAIL for check in self.checks)
