"""Changes a figure in the records of a finished run."""


def tamper(run):
    path = run / "records.jsonl"
    path.write_text(path.read_text().replace('"seconds":', '"seconds":1', 1))
