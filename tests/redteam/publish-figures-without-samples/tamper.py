"""Raises a speedup and makes all hashes fit."""

import hashlib
import json


def rehash(run):
    """Make the hashes fit what the files hold now."""
    end = json.loads((run / "end.json").read_text())
    end["files_sha256"] = {name: hashlib.sha256((run / name).read_bytes()).hexdigest() for name in end["files_sha256"]}
    (run / "end.json").write_text(json.dumps(end))


def tamper(run):
    path = run / "records.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        for timing in line["timings"]:
            for speedup in timing["speedups"].values():
                for field in speedup:
                    speedup[field] *= 1.5
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    rehash(run)
