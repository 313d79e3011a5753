"""Problem: one (M, N, K) with an accumulation track, and the work and bytes that it cannot avoid."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

import shapes
from harness.model import DataError, Model, Positive

HALF_BYTES = 2


class Track(StrEnum):
    """Width of the accumulator; tracks are never mixed in one ranking."""

    F32 = "f32"
    """fp32 accumulation: the default."""
    F16 = "f16"
    """fp16 accumulation allowed."""


class Problem(Model):
    """C = A·B with A (M×K), B (K×N) and C (M×N) in IEEE binary16, alpha = 1, beta = 0."""

    m: Positive
    """Rows of A and C."""
    n: Positive
    """Columns of B and C."""
    k: Positive
    """Columns of A and rows of B."""
    track: Track = Track.F32
    """Accumulation track."""

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @classmethod
    def parse(cls, text: str, track: Track = Track.F32) -> Self:
        """Read `MxNxK`.

        Raises:
            DataError: the text is not three positive integers joined by `x`.
        """
        try:
            shape = shapes.parse_shape(text)
        except shapes.ShapeError as error:
            raise DataError(f"{error}.") from error
        return cls(m=shape.m, n=shape.n, k=shape.k, track=track)

    @property
    def flops(self) -> int:
        """Floating-point operations: 2·M·N·K (a multiplication and an addition per term)."""
        return 2 * self.m * self.n * self.k

    @property
    def a_bytes(self) -> int:
        """Bytes of A."""
        return HALF_BYTES * self.m * self.k

    @property
    def b_bytes(self) -> int:
        """Bytes of B, in either layout."""
        return HALF_BYTES * self.k * self.n

    @property
    def c_bytes(self) -> int:
        """Bytes of C."""
        return HALF_BYTES * self.m * self.n

    @property
    def bytes_total(self) -> int:
        """Bytes of A, B and C together: what one buffer set occupies."""
        return self.a_bytes + self.b_bytes + self.c_bytes

    def compulsory_bytes_cold(self, l2_bytes: int) -> int:
        """DRAM bytes no kernel avoids with cold data: A and B in full, and the part of C that exceeds L2."""
        return self.a_bytes + self.b_bytes + max(0, self.c_bytes - l2_bytes)
