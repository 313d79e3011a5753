"""Shows other code than was measured."""

import hashlib
import json


def rehash(run):
    """Make the hashes fit what the files hold now."""
    end = json.loads((run / "end.json").read_text())
    end["files_sha256"] = {name: hashlib.sha256((run / name).read_bytes()).hexdigest() for name in end["files_sha256"]}
    (run / "end.json").write_text(json.dumps(end))


def tamper(run):
    (path,) = run.glob("submission/kernels/*.c")
    path.write_text(path.read_text() + "/* nothing to see */\n")
    rehash(run)
