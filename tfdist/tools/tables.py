"""Tables as text and as CSV files. Imports no TensorFlow."""

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfdist.report import files


def make_folder(folder: Path) -> None:
    """Creates a folder for results if needed; raises OSError, which names it, if files cannot be written to it."""
    files.make_workdir(folder, "folder of results")


def text(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Returns a table as text: columns as wide as their entries, numbers aligned right, None as a dash."""
    lines = [[str(word) for word in header], *[[format_value(value) for value in row] for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    right = [all(row[column] is None or is_number(row[column]) for row in rows) for column in range(len(header))]

    def join(line: Sequence[str]) -> str:
        words = zip(line, widths, right, strict=True)
        return "  ".join(word.rjust(width) if at_right else word.ljust(width) for word, width, at_right in words)

    return "\n".join(join(line).rstrip() for line in [lines[0], ["-" * width for width in widths], *lines[1:]])


def write_csv(path: str | os.PathLike[str], header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Writes a CSV file atomically; None is an empty field."""
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    # If the path is a link, the file that it leads to is replaced.
    files.replace_file(os.path.realpath(path), content.getvalue().encode(errors="surrogateescape"))


def is_number(value: Any) -> bool:
    """Returns whether a value is a number; True and False do not count as numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def format_value(value: Any) -> str:
    """Returns a value as a table shows it: a number with four significant digits, None as a dash."""
    if not is_number(value):
        words = "-" if value is None else str(value)
        return "".join(each if each.isprintable() else repr(each)[1:-1] for each in words)  # A row is one line.
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}"
