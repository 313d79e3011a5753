"""What the cuBLAS baselines share: types and constants of C = 1·A·B + 0·C, and the check of every status."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from harness.devices import MachineFault
from harness.problem import Track
from harness.record import Reason

CUDA_R_32F = 0
CUDA_R_16F = 2
CUBLAS_COMPUTE_16F = 64
CUBLAS_COMPUTE_32F = 68

_SCALARS = {track: np.array([1, 0], dtype=np.float32 if track is Track.F32 else np.float16) for track in Track}


class Numbers(NamedTuple):
    """Types of a track, by cuBLAS's numbers, and host addresses of alpha and beta in the scale type."""

    name: str
    compute_type: int
    scale_type: int
    half: int
    one: int
    zero: int


def numbers_for(track: Track) -> Numbers:
    """fp32 compute and scale on the f32 track, fp16 both on the f16 track."""
    scalars = _SCALARS[track]
    one, zero = scalars.ctypes.data, scalars.ctypes.data + scalars.itemsize
    if track is Track.F32:
        return Numbers("32F", CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_16F, one, zero)
    return Numbers("16F", CUBLAS_COMPUTE_16F, CUDA_R_16F, CUDA_R_16F, one, zero)


@contextlib.contextmanager
def cublas_error(what: str) -> Iterator[None]:
    """Turn a status other than success into the machine's fault: the bindings raise one for every call."""
    from nvmath.bindings import cublas, cublasLt

    try:
        yield
    except (cublas.cuBLASError, cublasLt.cuBLASLtError) as error:
        raise MachineFault(Reason.BASELINE_ERROR, f"{what} failed: {error}", fatal=False) from error
