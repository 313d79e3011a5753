"""Leaves the record of a shape out."""

import hashlib
import json


def rehash(run):
    """Make the hashes fit what the files hold now."""
    end = json.loads((run / "end.json").read_text())
    end["files_sha256"] = {name: hashlib.sha256((run / name).read_bytes()).hexdigest() for name in end["files_sha256"]}
    (run / "end.json").write_text(json.dumps(end))


def tamper(run):
    path = run / "records.jsonl"
    kept = path.read_text().splitlines(keepends=True)[:-1]
    path.write_text("".join(kept))
    end = json.loads((run / "end.json").read_text())
    end["counts"] = {status: len(kept) * (status == "verified") for status in end["counts"]}
    (run / "end.json").write_text(json.dumps(end))
    rehash(run)
