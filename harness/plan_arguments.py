"""Arguments of a plan's launches: everything that a kernel parameter can be. Part of the vocabulary of `harness.plan`."""

from __future__ import annotations

import base64
import binascii
import sys
from enum import StrEnum
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, field_validator, model_validator

from harness.model import Count, Model

MAX_TABLE_BYTES = 1 << 20

_Choice = TypeVar("_Choice", bound=StrEnum)
OneOf = Annotated[_Choice, Field(strict=False)]
"""A choice that may also be written as its plain string in `plan.py`."""


class Buffer(StrEnum):
    """The only memory that a plan can name."""

    A = "A"
    B = "B"
    C = "C"
    WORKSPACE = "workspace"


class ScalarType(StrEnum):
    """Scalar parameter types, little-endian, naturally aligned."""

    I32 = "i32"
    U32 = "u32"
    I64 = "i64"
    U64 = "u64"
    F32 = "f32"
    F64 = "f64"

    @property
    def size_bytes(self) -> int:
        """Size, and alignment, in bytes."""
        return int(self.value[1:]) // 8


_LARGEST = {ScalarType.F32: (2 - 2**-23) * 2.0**127, ScalarType.F64: sys.float_info.max}


class Scalar(Model):
    """A number passed by value."""

    type: Literal["scalar"] = "scalar"
    dtype: OneOf[ScalarType]
    """Type of the parameter."""
    value: int | float
    """Its value; integers must fit."""

    @model_validator(mode="after")
    def _value_fits(self) -> Self:
        if self.dtype in (ScalarType.F32, ScalarType.F64):
            if not abs(self.value) <= _LARGEST[self.dtype]:
                raise ValueError(f"{self.value} does not fit in {self.dtype}")
            return self
        bits, signed = 8 * self.dtype.size_bytes, self.dtype.value[0] == "i"
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
        if not isinstance(self.value, int) or not low <= self.value <= high:
            raise ValueError(f"{self.value} does not fit in {self.dtype}")
        return self


class Pointer(Model):
    """The address of a buffer, plus an offset."""

    type: Literal["pointer"] = "pointer"
    buffer: OneOf[Buffer]
    """Which buffer."""
    offset_bytes: Count = 0
    """Offset from its start; must stay inside it."""


class Struct(Model):
    """A struct passed by value, with the C layout of its fields."""

    type: Literal["struct"] = "struct"
    fields: Annotated[tuple[Scalar | Pointer, ...], Field(min_length=1, max_length=256)]
    """Fields in order, each naturally aligned; the size is rounded up to the largest alignment."""


class Table(Model):
    """Read-only data made by the plan, uploaded once when the plan is bound; the parameter is its device address."""

    type: Literal["table"] = "table"
    data_base64: str
    """Contents, base64, at most 1 MiB decoded."""

    @field_validator("data_base64")
    @classmethod
    def _decodes(cls, text: str) -> str:
        try:
            size = len(base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError) as error:
            raise ValueError("table data is not base64") from error
        if not 0 < size <= MAX_TABLE_BYTES:
            raise ValueError(f"a table holds 1 to {MAX_TABLE_BYTES} bytes, not {size}")
        return text

    @property
    def data(self) -> bytes:
        """The decoded bytes."""
        return base64.b64decode(self.data_base64)


class TensorMapType(StrEnum):
    """Element types of a tensor map that an HGEMM can need."""

    F16 = "f16"
    F32 = "f32"
    U8 = "u8"
    U16 = "u16"
    U32 = "u32"

    @property
    def size_bytes(self) -> int:
        """Size of one element in bytes."""
        return int(self.value[1:]) // 8


class Swizzle(StrEnum):
    """Shared-memory swizzle of a tensor map."""

    NONE = "none"
    B32 = "32B"
    B64 = "64B"
    B128 = "128B"


class Interleave(StrEnum):
    """Interleave of a tensor map."""

    NONE = "none"
    B16 = "16B"
    B32 = "32B"


class L2Promotion(StrEnum):
    """L2 fetch granularity of a tensor map."""

    NONE = "none"
    B64 = "64B"
    B128 = "128B"
    B256 = "256B"


class OutOfBoundsFill(StrEnum):
    """What out-of-bounds elements of a tensor map read as."""

    ZERO = "zero"
    NAN = "nan"


class TensorMap(Model):
    """A TMA descriptor, encoded by the worker and passed as a `__grid_constant__` parameter of 128 bytes.

    Rules are the driver's (cuTensorMapEncodeTiled): rank 1-5, box sides at most 256, strides multiples of 16 bytes
    under 2^40, base 16-byte aligned, inner box within the swizzle span.
    """

    type: Literal["tensor_map"] = "tensor_map"
    buffer: OneOf[Buffer]
    """Buffer that holds the tensor."""
    offset_bytes: Annotated[int, Field(ge=0, multiple_of=16)] = 0
    """Offset of the first element."""
    dtype: OneOf[TensorMapType] = TensorMapType.F16
    """Element type."""
    dims: Annotated[tuple[Annotated[int, Field(ge=1, le=1 << 32)], ...], Field(min_length=1, max_length=5)]
    """Extents in elements, innermost first."""
    strides_bytes: tuple[Annotated[int, Field(ge=16, lt=1 << 40, multiple_of=16)], ...] = ()
    """Strides of all dimensions but the innermost."""
    box: tuple[Annotated[int, Field(ge=1, le=256)], ...]
    """Box in elements, innermost first."""
    element_strides: tuple[Annotated[int, Field(ge=1, le=8)], ...] | None = None
    """Element strides; null means all 1."""
    interleave: OneOf[Interleave] = Interleave.NONE
    """Interleave."""
    swizzle: OneOf[Swizzle] = Swizzle.NONE
    """Shared-memory swizzle."""
    l2_promotion: OneOf[L2Promotion] = L2Promotion.NONE
    """L2 fetch granularity."""
    fill: OneOf[OutOfBoundsFill] = OutOfBoundsFill.ZERO
    """What elements outside the tensor read as."""

    @model_validator(mode="after")
    def _obeys_the_driver(self) -> Self:
        rank = len(self.dims)
        if len(self.box) != rank or len(self.strides_bytes) != rank - 1:
            raise ValueError(f"a tensor map of rank {rank} has {rank} box sides and {rank - 1} strides")
        if self.element_strides is not None and len(self.element_strides) != rank:
            raise ValueError(f"a tensor map of rank {rank} has {rank} element strides")
        inner = self.box[0] * self.dtype.size_bytes
        if inner % 16:
            raise ValueError(f"the inner box is {inner} bytes; it must be a multiple of 16")
        span = {Swizzle.B32: 32, Swizzle.B64: 64, Swizzle.B128: 128}.get(self.swizzle)
        if span is not None and inner > span:
            raise ValueError(f"the inner box is {inner} bytes; swizzle {self.swizzle} allows {span}")
        return self

    @property
    def extent_bytes(self) -> int:
        """Bytes from the first to past the last element."""
        size = self.dtype.size_bytes
        strides = (size, *self.strides_bytes)
        return sum((extent - 1) * stride for extent, stride in zip(self.dims, strides, strict=True)) + size


Argument = Annotated[Scalar | Pointer | Struct | Table | TensorMap, Field(discriminator="type")]


def parameter_bytes(argument: Scalar | Pointer | Struct | Table | TensorMap) -> int:
    """Size of one kernel parameter in bytes."""
    if isinstance(argument, Scalar):
        return argument.dtype.size_bytes
    if isinstance(argument, TensorMap):
        return 128
    if isinstance(argument, Struct):
        return struct_layout(argument).size_bytes
    return 8


class StructLayout(Model):
    """C layout of a Struct."""

    offsets_bytes: tuple[int, ...]
    """Offset of each field."""
    size_bytes: int
    """Size with tail padding."""


def struct_layout(struct: Struct) -> StructLayout:
    """Natural C layout: each field at a multiple of its size, the whole rounded up to the largest."""
    offset, largest, offsets = 0, 1, []
    for field in struct.fields:
        size = parameter_bytes(field)
        offset = -(-offset // size) * size
        offsets.append(offset)
        offset, largest = offset + size, max(largest, size)
    return StructLayout(offsets_bytes=tuple(offsets), size_bytes=-(-offset // largest) * largest)
