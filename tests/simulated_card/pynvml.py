"""The driver's management library, with as many cards as SIMULATED_CARDS says, one by default."""

# ruff: noqa: N802 - these are its names.

import os


class NVMLError(Exception):
    pass


def nvmlInit() -> None:
    pass


def nvmlDeviceGetCount() -> int:
    return int(os.environ.get("SIMULATED_CARDS", "1"))


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def nvmlDeviceGetName(handle: int) -> str:
    return "NVIDIA H200"


def nvmlDeviceGetUUID(handle: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{handle + 1:012}"
