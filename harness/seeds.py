"""Seeds: everything random follows from a segment's secret, through the seed of a shape, by purpose."""

from __future__ import annotations

import hashlib

from harness.problem import Problem


def derive(secret: bytes, label: str) -> int:
    """62 bits that only who knows the secret can foretell: keyed BLAKE2b."""
    return int.from_bytes(hashlib.blake2b(label.encode(), digest_size=8, key=secret).digest(), "little") >> 2


def shape_seed(secret: bytes, problem: Problem, attempt: int) -> str:
    """Seed of one shape in one segment, 32 hex digits."""
    label = f"{problem}/{problem.track}/{attempt}"
    return hashlib.blake2b(label.encode(), digest_size=16, key=secret).hexdigest()
