"""Reads what a run has written to starts.jsonl and metrics.jsonl. Imports no TensorFlow."""

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any

from tfdist.report import files, ledger, metrics_file


def read_starts(workdir: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Returns the lines of starts.jsonl, oldest first, without those that are damaged; raises as `files.read_file`."""
    found = []
    for line in (files.read_file(os.path.join(workdir, ledger.STARTS)) or b"").splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            values = json.loads(line)
            if isinstance(values, dict) and _is_whole(values):
                found.append(values)
    return found


def _is_whole(values: Mapping[str, Any]) -> bool:
    numbers = [values.get("replicas", 1), *(values.get(name) for name in ("start", "now", "step", "seconds"))]
    return all(isinstance(number, int | float) for number in numbers)


def read_records(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Returns the complete lines of a metrics.jsonl, in order: the last one may be incomplete while the run writes.

    Raises ValueError if the file cannot be read.
    """
    lines = (files.read_file(path, metrics_file.ADVICE) or b"").splitlines(keepends=True)
    return [record for line in lines if (record := metrics_file.parse_line(line)) is not None]
