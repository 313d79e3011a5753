"""Nouns of a build: what comes out of a kernel, or why nothing does."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from harness.model import Count, Hash, Model
from harness.plan import Kernel, Language
from harness.record import Reason


class BuildReport(Model):
    """What the compiler said and what the object holds."""

    entries: tuple[str, ...]
    """Entry points of the object."""
    registers: dict[str, Count] = Field(default_factory=dict)
    """32-bit registers per thread, by entry; empty for host code."""
    stack_bytes: Count = 0
    """Local-memory stack per thread, the largest of all entries."""
    static_shared_bytes: Count = 0
    """Static shared memory per CTA, the largest of all entries, without what the driver reserves."""
    spill_store_bytes: Count | None = None
    """Bytes of register spill stores, summed over all functions; null where no compiler ran here (cubin) and for host code."""
    spill_load_bytes: Count | None = None
    """The same for loads."""
    serialized_wgmma: bool = False
    """Whether the assembler serialised wgmma instructions, which costs most of their speed."""
    warnings: tuple[str, ...] = ()
    """Warnings of the compiler, paths relative to the submission."""


class BuildFailure(Model):
    """Why a kernel was not built; the submission is at fault."""

    reason: Reason
    """`build_error`, `build_limit` or `forbidden`."""
    message: str
    """The first error on one line, as `file:line: error`, with the file relative to the submission."""
    log_tail: str = ""
    """The end of the compiler's log."""


class Artifact(Model):
    """A built kernel."""

    path: Path
    """The cubin or shared library, in the cache."""
    key: Hash
    """Hash of everything that decided its content; the name of its cache entry."""
    report: BuildReport
    """What the compiler said and what the object holds."""
    cached: bool
    """Whether it was in the cache before."""


BuildResult = Artifact | BuildFailure


class BuildRefusedError(Exception):
    """Raised inside the build where a kernel cannot be built; it becomes a BuildFailure and never leaves the package."""

    def __init__(self, reason: Reason, message: str, log_tail: str = "") -> None:
        super().__init__(message)
        self.failure = BuildFailure(reason=reason, message=message, log_tail=log_tail)


def entry_of(result: BuildResult, kernel: Kernel) -> BuildResult:
    """The result of a compilation as seen by one of the kernels that share it: its entry must be there."""
    if isinstance(result, BuildFailure) or kernel.entry in result.report.entries:
        return result
    names = ", ".join(result.report.entries[:10]) or "none"
    hint = ' (an entry needs extern "C")' if kernel.language is Language.CUDA else ""
    message = f"{kernel.source} has no entry {kernel.entry}; it has {names}{hint}."
    return BuildFailure(reason=Reason.BUILD_ERROR, message=message)
