"""metrics.jsonl: one JSON object per line, trimmed when a run resumes. Imports no TensorFlow."""

import json
from typing import Any

from tfdist.report import files

METRICS = "metrics.jsonl"
ADVICE = "restore it, or remove it to go on without the reports so far."


def json_line(record: dict[str, Any]) -> bytes:
    """Returns one line of metrics.jsonl; NaN and infinity become null."""
    return (json.dumps(files.nan_to_null(record), allow_nan=False) + "\n").encode()


def trim_metrics(path: str, last_step: int | None, last_evaluated: int | None = None) -> int:
    """Removes incomplete lines, and the lines of steps after `last_step` (None: keep all), from a metrics.jsonl.

    A run killed after its last checkpoint has reported steps that the resumed run reports again. Evaluations are
    removed after `last_evaluated` (None: `last_step`); it is smaller if `last_step` has not been evaluated yet.

    Returns the number of complete lines removed; raises ValueError if the file cannot be read.
    """
    lines = (files.read_file(path, ADVICE) or b"").splitlines(keepends=True)
    kept, removed = [], 0
    for line in lines:
        record = parse_line(line)
        if record is None:
            continue
        last = last_evaluated if record.get("kind") == "evaluation" and last_evaluated is not None else last_step
        if last is not None and record.get("step", 0) > last:
            removed += 1
        else:
            kept.append(line)
    if len(kept) < len(lines):
        files.replace_file(path, b"".join(kept))
    return removed


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Returns the record of a line; None if the line is incomplete or damaged."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = line.endswith(b"\n") and isinstance(record, dict) and isinstance(record.get("step", 0), int)
    return record if whole else None
