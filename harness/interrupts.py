"""Interrupts: Ctrl-C and SIGTERM, remembered, since C code that calls Python may drop the exception that they raise."""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn

_CAME: list[int] = []


def catch(number: signal.Signals) -> None:
    """Let a signal raise KeyboardInterrupt and be remembered; one that a shell had ignored stays ignored."""
    if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, _interrupt)


def came() -> bool:
    """Whether one came since the process started."""
    return bool(_CAME)


def check() -> None:
    """End here what should have ended where the signal came.

    Raises:
        KeyboardInterrupt: one came.
    """
    if came():
        raise KeyboardInterrupt


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    _CAME.append(number)
    raise KeyboardInterrupt
