"""metrics.jsonl: one JSON object per line, trimmed when a run resumes. Imports no TensorFlow."""

import json
from typing import Any

from tfdist.report import files

METRICS = "metrics.jsonl"
# The kind of the record of a start: the lines before it have been trimmed to its step.
START = "start"
# Bytes that are read first from the end of a file.
_LAST_BYTES = 2**20
ADVICE = "restore it, or remove it to go on without the reports so far."


def json_line(record: dict[str, Any]) -> bytes:
    """Returns one line of metrics.jsonl; NaN and infinity become null."""
    return (json.dumps(files.nan_to_null(record), allow_nan=False) + "\n").encode()


def trim_metrics(path: str, last_step: int | None, last_evaluated: int | None = None) -> int:
    """Removes incomplete lines, and the lines of steps after `last_step` (None: keep all), from a metrics.jsonl.

    A run killed after its last checkpoint has reported steps that the resumed run reports again. Evaluations are
    removed after `last_evaluated` (None: `last_step`); it is smaller if `last_step` has not been evaluated yet.

    Only the lines since the last start are looked at, or since an earlier one if that was at a later step. Returns the
    number of complete lines removed; raises ValueError if the file cannot be read.
    """
    lines = _lines_since_start(path, last_step)
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
        content = files.read_file(path, ADVICE) or b""
        before = content[: len(content) - sum(map(len, lines))]
        files.replace_file(path, b"".join([before, *kept]))
    return removed


def _lines_since_start(path: str, last_step: int | None) -> list[bytes]:
    """Returns the lines since the last start that was not after `last_step`, or all lines."""
    size = _LAST_BYTES
    while True:
        content = files.read_file(path, ADVICE, last=size) or b""
        end = len(content)
        while (end := content.rfind(b'{"kind": "%s"' % START.encode(), 0, end)) >= 0:
            record = parse_line(content[end : content.find(b"\n", end) + 1])
            if record is not None and (last_step is None or record.get("step", 0) <= last_step):
                return content[end:].splitlines(keepends=True)
        if len(content) < size:
            return content.splitlines(keepends=True)
        size *= 8


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Returns the record of a line; None if the line is incomplete or damaged."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = line.endswith(b"\n") and isinstance(record, dict) and isinstance(record.get("step", 0), int)
    return record if whole else None
