"""Many commands of the real command line in one process, since starting one takes longer than most of what they do.

python command_batch.py < [["check", "dir", "--json"], …]      prints [{"code": 1, "stdout": "…", "stderr": "…"}, …]
"""

from __future__ import annotations

import contextlib
import io
import json
import sys

from redteam_cases import Warm

from harness import cli, evaluate


def main() -> None:
    results = []
    warm = Warm()
    evaluate.open_driver = warm.open
    cli._open_outputs = lambda: None  # else what is caught here would go to the file descriptors
    for arguments in json.load(sys.stdin):
        out, err = io.StringIO(), io.StringIO()
        sys.argv = ["hgemm", *arguments]
        code = 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                cli.main()
            except SystemExit as end:
                code = int(end.code or 0)
        results.append({"code": code, "stdout": out.getvalue(), "stderr": err.getvalue()})
    warm.end()
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
