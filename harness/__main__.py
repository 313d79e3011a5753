"""`hgemm`, which `python -m harness` equals: the command line, imported where Ctrl-C is expected already."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line. Ctrl-C ends it with 130 and one word, wherever it comes."""
    came = False

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell had it ignored
        signal.signal(signal.SIGINT, interrupt)
    try:
        from harness.cli import main as command_line

        command_line()
    except Exception:
        # What it hits while modules are imported may come out as an error of theirs.
        if not came:
            raise
    except KeyboardInterrupt:
        pass
    sys.stderr.write("interrupted\n")
    sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
