"""Reads what a run has written to starts.jsonl and metrics.jsonl. Imports no TensorFlow."""

import os
from typing import Any

from tfdist.report import files, ledger, metrics_file

# The numbers that each line of starts.jsonl has.
_NUMBERS = ("start", "now", "step", "seconds")


def read_starts(workdir: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Returns the lines of starts.jsonl, oldest first, without damaged ones; raises as `files.read_file` does."""
    records = _read(os.path.join(workdir, ledger.STARTS))
    return [one for one in records if all(isinstance(one.get(name), int | float) for name in _NUMBERS)]


def read_records(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Returns the complete lines of a metrics.jsonl, in order: the last one may be incomplete while the run writes.

    Raises ValueError if the file cannot be read.
    """
    return _read(path, metrics_file.ADVICE)


def _read(path: str | os.PathLike[str], advice: str = "") -> list[dict[str, Any]]:
    lines = (files.read_file(path, advice) or b"").splitlines(keepends=True)
    return [record for line in lines if (record := metrics_file.parse_line(line)) is not None]
