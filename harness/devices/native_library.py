"""A library of kind `native` for CUDA devices, loaded into the untrusted worker, and its three functions."""

from __future__ import annotations

import ctypes
from pathlib import Path

from harness.devices import BufferSet, MachineFault, SubmissionFault
from harness.native_elf import kernel_names
from harness.plan import Layout
from harness.problem import Problem, Track
from harness.record import Reason


class Library:
    """A library with the three functions of `hgemm.h`."""

    def __init__(self, path: Path) -> None:
        self.kernels = kernel_names(path.read_bytes())
        _offer_runtime()
        try:
            library = ctypes.CDLL(str(path))
            self._create, self._run, self._destroy = library.hgemm_create, library.hgemm_run, library.hgemm_destroy
        except (OSError, AttributeError) as error:
            raise SubmissionFault(Reason.LAUNCH_ERROR, f"the library cannot be loaded: {error}") from error
        self._create.argtypes = [ctypes.POINTER(_Problem), ctypes.POINTER(ctypes.c_void_p)]
        self._run.argtypes = [ctypes.c_void_p] * 6
        self._destroy.argtypes, self._destroy.restype = [ctypes.c_void_p], None

    def create(self, problem: Problem, layout: Layout) -> ctypes.c_void_p:
        """What `hgemm_create` makes for a problem.

        Raises:
            SubmissionFault: it says that it cannot.
        """
        wanted = _Problem(problem.m, problem.n, problem.k, int(layout is Layout.TN), int(problem.track is Track.F16))
        state = ctypes.c_void_p()
        if (status := self._create(ctypes.byref(wanted), ctypes.byref(state))) != 0:
            raise SubmissionFault(Reason.LAUNCH_ERROR, f"hgemm_create returned {status}")
        return state

    def run(self, state: ctypes.c_void_p, buffers: BufferSet, stream: int) -> None:
        """Have one operation enqueued.

        Raises:
            SubmissionFault: it says that it could not.
        """
        if (status := self._run(state, *(each.data_ptr() for each in buffers), stream)) != 0:
            raise SubmissionFault(Reason.LAUNCH_ERROR, f"hgemm_run returned {status}")

    def destroy(self, state: ctypes.c_void_p) -> None:
        """Free what `create` made."""
        self._destroy(state)


class _Problem(ctypes.Structure):
    """`hgemm_problem`."""

    _fields_ = (
        ("m", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("layout", ctypes.c_int32),
        ("track", ctypes.c_int32),
    )


def _offer_runtime() -> None:
    """Make the CUDA runtime that PyTorch loaded, and the driver, the ones that a library's imports mean.

    Raises:
        MachineFault: there is none.
    """
    import torch

    major = str(torch.version.cuda).partition(".")[0]
    try:
        for name in (f"libcudart.so.{major}", "libcuda.so.1"):
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        detail = f"PyTorch brings no shared CUDA runtime ({error}); native submissions need one"
        raise MachineFault(Reason.DEVICE_ERROR, detail, fatal=False) from error
