"""`hgemm`, which `python -m harness` equals: the command line, imported where Ctrl-C is already expected."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

from harness import interrupts


def main() -> NoReturn:
    """Run the command line. Ctrl-C ends it with 130 and one word, wherever it comes."""
    interrupts.catch(signal.SIGINT)
    try:
        from harness.cli import main as command_line

        command_line()
    except Exception:
        # What it hits while modules are imported may come out as an error of theirs.
        if not interrupts.came():
            raise
    except KeyboardInterrupt:
        pass
    sys.stderr.write("interrupted\n")
    sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
