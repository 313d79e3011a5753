"""Plan: pure data that says how one Problem is computed on one DeviceProfile.

The vocabulary is what the harness can launch by itself, so that no host code of a `device` submission ever runs where
times are taken. A `native` plan has one step, a call into the submission's own library.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from harness.model import Count, DataError, Document, Identifier, Line, Model, Name, Positive, RelativePath
from harness.plan_arguments import (
    Argument,
    Buffer,
    Interleave,
    L2Promotion,
    OneOf,
    OutOfBoundsFill,
    Pointer,
    Scalar,
    ScalarType,
    Struct,
    StructLayout,
    Swizzle,
    Table,
    TensorMap,
    TensorMapType,
    parameter_bytes,
    struct_layout,
)
from harness.problem import Problem

__all__ = [
    "Argument",
    "Buffer",
    "Call",
    "Interleave",
    "Kernel",
    "L2Promotion",
    "Language",
    "Launch",
    "Layout",
    "Memset",
    "Operation",
    "OutOfBoundsFill",
    "Plan",
    "PlanFile",
    "Pointer",
    "Scalar",
    "ScalarType",
    "Step",
    "Struct",
    "StructLayout",
    "Swizzle",
    "Table",
    "TensorMap",
    "TensorMapType",
    "Unsupported",
    "parameter_bytes",
    "struct_layout",
]

MAX_ZEROED_BYTES = 1 << 20
MAX_WORKSPACE_BYTES = 4 << 30
MAX_PARAMETER_BYTES = 4096
"""CUDA's limit on kernel parameters that every architecture accepts."""

NATIVE_ENTRY = "hgemm_run"
"""The function of a native library that a plan calls; `hgemm.h` declares it and the two others."""

UInt32 = Annotated[int, Field(ge=0, lt=1 << 32)]
Dim3 = tuple[Positive, Positive, Positive]


class Layout(StrEnum):
    """How B is stored; A and C are always row-major."""

    NN = "NN"
    """B is a K×N row-major array."""
    TN = "TN"
    """B is stored transposed, as an N×K row-major array."""


class Language(StrEnum):
    """What a kernel's source is written in."""

    CUDA = "cuda"
    PTX = "ptx"
    CUBIN = "cubin"
    C = "c"
    """Host C for the cpu target (kind `native`)."""
    NATIVE = "native"
    """CUDA C++ with the host functions of `hgemm.h`, for kind `native` on CUDA devices."""

    @property
    def is_host(self) -> bool:
        """Whether a plan calls it rather than launching it."""
        return self in (Language.C, Language.NATIVE)


def _plain(kind: str) -> AfterValidator:
    """Only what neither a compiler nor the shell that nvcc hands its commands to takes for anything but itself."""

    def check(value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9_.+/-]*", value):
            raise ValueError(f"{value!r} may hold letters, digits and _ . + - / only, as {kind} goes through a shell")
        return value

    return AfterValidator(check)


SourcePath = Annotated[RelativePath, _plain("a file name")]
"""A file that a compiler is given."""

DefineValue = Annotated[str, _plain("the value of a define")]
"""What a name stands for in a source."""


class Kernel(Model):
    """One compiled entry point. Two plans that need the same kernel share one compilation."""

    language: OneOf[Language]
    """Language of `source`."""
    source: SourcePath
    """File inside the submission."""
    generated_from: SourcePath | None = None
    """For `cubin`, and only then: the source that generated it."""
    entry: Identifier
    """Name of the entry point, with C linkage."""
    defines: dict[Identifier, DefineValue] = Field(default_factory=dict)
    """Preprocessor definitions (`-DNAME=VALUE`): numbers and names."""
    max_registers: Annotated[int, Field(ge=16, le=255)] | None = None
    """`-maxrregcount`; null leaves it to the compiler and `__launch_bounds__`."""
    shared_carveout_percent: Annotated[int, Field(ge=0, le=100)] | None = None
    """Preferred share of the L1 used as shared memory; null leaves the driver's default."""

    @model_validator(mode="after")
    def _cubin_comes_with_source(self) -> Self:
        if (self.language is Language.CUBIN) != (self.generated_from is not None):
            raise ValueError("a cubin names its source in generated_from, and nothing else does")
        if self.language is Language.NATIVE and self.entry != NATIVE_ENTRY:
            raise ValueError(f"the entry of a native library is {NATIVE_ENTRY}")
        return self


class Launch(Model):
    """One kernel launch."""

    type: Literal["launch"] = "launch"
    kernel: Name
    """Name of a kernel of the plan."""
    grid: Dim3
    """Grid in CTAs (not clusters)."""
    block: Dim3
    """Threads per CTA."""
    cluster: Dim3 | None = None
    """Cluster in CTAs, at most 16 (more than 8 is not portable); null for none. Each side divides the grid's."""
    dynamic_shared_bytes: Count = 0
    """Dynamic shared memory per CTA; the harness raises the entry's limit when this is over 48 KiB."""
    cooperative: bool = False
    """Cooperative launch: all CTAs resident together."""
    programmatic: bool = False
    """Programmatic dependent launch on the step before it, which must be a launch of the same operation."""
    arguments: tuple[Argument, ...] = ()
    """Kernel parameters in order."""

    @model_validator(mode="after")
    def _dimensions_are_launchable(self) -> Self:
        if self.block[0] * self.block[1] * self.block[2] > 1024 or self.block[2] > 64:
            raise ValueError(f"block {self.block} exceeds 1024 threads (z at most 64)")
        if self.grid[0] >= 1 << 31 or self.grid[1] > 65535 or self.grid[2] > 65535:
            raise ValueError(f"grid {self.grid} exceeds CUDA's limits (2^31-1, 65535, 65535)")
        if self.cluster is not None:
            if any(g % c for g, c in zip(self.grid, self.cluster, strict=True)):
                raise ValueError(f"cluster {self.cluster} does not divide grid {self.grid}")
            if self.cluster[0] * self.cluster[1] * self.cluster[2] > 16:
                raise ValueError(f"cluster {self.cluster} has more than 16 CTAs")
        return self


class Memset(Model):
    """A timed fill of part of C or of the workspace."""

    type: Literal["memset"] = "memset"
    buffer: Literal[Buffer.C, Buffer.WORKSPACE]
    """Buffer to fill."""
    offset_bytes: Annotated[int, Field(ge=0, multiple_of=4)] = 0
    """Start."""
    size_bytes: Annotated[int, Field(ge=4, multiple_of=4)]
    """Length."""
    value: UInt32 = 0
    """32-bit pattern."""


class Call(Model):
    """A call of the submission's host library (kind `native` only).

    For the cpu target the entry has the signature `void entry(const _Float16 *a, const _Float16 *b, _Float16 *c,
    void *workspace, int64_t m, int64_t n, int64_t k)`; for CUDA devices it is `hgemm_run` of `hgemm.h`.
    """

    type: Literal["call"] = "call"
    kernel: Name
    """Name of a kernel of the plan, in a host language."""


Step = Annotated[Launch | Memset | Call, Field(discriminator="type")]


class Operation(Model):
    """The part of a plan that differs from shape to shape; kernels are named, not repeated."""

    layout: OneOf[Layout]
    """Layout of B that this plan reads."""
    steps: Annotated[tuple[Step, ...], Field(min_length=1, max_length=64)]
    """What one HGEMM does, in order; all of it is timed."""
    workspace_bytes: Annotated[int, Field(ge=0, le=MAX_WORKSPACE_BYTES, multiple_of=4)] = 0
    """Scratch memory, 256-byte aligned; contents undefined when an operation starts."""
    zeroed_bytes: Annotated[int, Field(ge=0, le=MAX_ZEROED_BYTES)] = 0
    """Leading bytes of the workspace that are zero at bind and must be zero again after every operation."""
    deterministic: bool = True
    """Whether equal inputs always give equal bits; then that is checked."""

    @model_validator(mode="after")
    def _steps_fit(self) -> Self:
        if self.zeroed_bytes > self.workspace_bytes:
            raise ValueError("zeroed_bytes exceeds workspace_bytes")
        previous: Launch | Memset | Call | None = None
        for step in self.steps:
            if isinstance(step, Launch) and step.programmatic and not isinstance(previous, Launch):
                raise ValueError("a programmatic launch must follow a launch of the same operation")
            previous = step
        return self


class Plan(Operation):
    """How one Problem is computed on one DeviceProfile."""

    kernels: dict[Name, Kernel]
    """Every kernel that the steps name, and no other."""

    @model_validator(mode="after")
    def _kernels_match_steps(self) -> Self:
        used = {step.kernel for step in self.steps if not isinstance(step, Memset)}
        if used != set(self.kernels):
            raise ValueError(f"steps use kernels {sorted(used)} but the plan holds {sorted(self.kernels)}")
        if not used:
            raise ValueError("a plan launches at least one kernel")
        for step in self.steps:
            host = not isinstance(step, Memset) and self.kernels[step.kernel].language.is_host
            if isinstance(step, Call) and not host:
                raise ValueError(f"step calls {step.kernel}, which is no host kernel")
            if isinstance(step, Launch) and host:
                raise ValueError(f"step launches {step.kernel}, which is host code; use a call")
        return self

    def check_bounds(self, problem: Problem) -> None:
        """Check every offset and size against the buffers of `problem`.

        Raises:
            ValueError: a step reaches outside a buffer, or parameters exceed 4 KiB.
        """
        sizes = {
            Buffer.A: problem.a_bytes,
            Buffer.B: problem.b_bytes,
            Buffer.C: problem.c_bytes,
            Buffer.WORKSPACE: self.workspace_bytes,
        }
        for step in self.steps:
            if isinstance(step, Memset):
                _inside(step.buffer, step.offset_bytes, step.size_bytes, sizes)
            elif isinstance(step, Launch):
                _check_arguments(step, sizes)


class Unsupported(Model):
    """A plan's answer for a Problem that it does not handle."""

    reason: Annotated[Line, Field(min_length=1, max_length=500)]
    """One sentence."""


def _which(value: object) -> str:
    """Which of the two an entry of plan.json is, so that only its own fields are asked for."""
    named = value if isinstance(value, dict) else type(value).model_fields if isinstance(value, Model) else ()
    return "unsupported" if "reason" in named else "operation"


Planned = Annotated[Annotated[Operation, Tag("operation")] | Annotated[Unsupported, Tag("unsupported")], Discriminator(_which)]


class PlanFile(Document):
    """`plan.json`: the plans of many shapes, with each kernel once."""

    kernels: dict[Name, Kernel]
    """All kernels, by name."""
    plans: dict[str, Planned]
    """Per shape, `MxNxK`. A shape that is absent is unsupported."""

    @model_validator(mode="after")
    def _references_resolve(self) -> Self:
        for shape, operation in self.plans.items():
            try:
                Problem.parse(shape)
            except DataError as error:
                raise ValueError(str(error).rstrip(".")) from error
            if isinstance(operation, Operation):
                self._resolve(operation)
        return self

    def plan_for(self, problem: Problem) -> Plan | Unsupported:
        """The plan of one problem."""
        operation = self.plans.get(str(problem))
        if operation is None:
            return Unsupported(reason=f"plan.json has no plan for {problem}")
        return operation if isinstance(operation, Unsupported) else self._resolve(operation)

    def _resolve(self, operation: Operation) -> Plan:
        names = {step.kernel for step in operation.steps if not isinstance(step, Memset)}
        missing = names - set(self.kernels)
        if missing:
            raise ValueError(f"plan.json names kernels that it does not hold: {sorted(missing)}")
        fields = {name: getattr(operation, name) for name in Operation.model_fields}
        return Plan(**fields, kernels={name: self.kernels[name] for name in sorted(names)})

    @classmethod
    def collect(cls, plans: dict[str, Plan | Unsupported]) -> PlanFile:
        """Write many plans as one file.

        Raises:
            ValueError: two plans use one name for different kernels.
        """
        kernels: dict[str, Kernel] = {}
        operations: dict[str, Operation | Unsupported] = {}
        for shape, plan in plans.items():
            if isinstance(plan, Unsupported):
                operations[shape] = plan
                continue
            for name, kernel in plan.kernels.items():
                if kernels.setdefault(name, kernel) != kernel:
                    raise ValueError(f"two different kernels are called {name}")
            operations[shape] = Operation(**{field: getattr(plan, field) for field in Operation.model_fields})
        return cls(kernels=kernels, plans=operations)


def _check_arguments(launch: Launch, sizes: dict[Buffer, int]) -> None:
    for argument in launch.arguments:
        members = argument.fields if isinstance(argument, Struct) else (argument,)
        for member in members:
            if isinstance(member, Pointer):
                _inside(member.buffer, member.offset_bytes, 1, sizes)
            elif isinstance(member, TensorMap):
                _inside(member.buffer, member.offset_bytes, member.extent_bytes, sizes)
    total = sum(parameter_bytes(argument) for argument in launch.arguments)
    if total > MAX_PARAMETER_BYTES:
        raise ValueError(f"the parameters of {launch.kernel} take {total} bytes; at most {MAX_PARAMETER_BYTES} are allowed")


def _inside(buffer: Buffer, offset_bytes: int, size_bytes: int, sizes: dict[Buffer, int]) -> None:
    if offset_bytes + size_bytes > sizes[buffer]:
        raise ValueError(
            f"a step reaches byte {offset_bytes + size_bytes} of {buffer}, which has {sizes[buffer]} (declare workspace_bytes?)"
        )
