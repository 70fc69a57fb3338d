"""One HTML page about runs that needs no other file: tables, and pictures within it. Imports no TensorFlow."""

import base64
import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfdist.report import files
from tfdist.tools import tables


def write(path: Path, title: str, parts: Sequence[str]) -> None:
    """Writes a page of `parts`, which are HTML; raises OSError if the file cannot be written."""
    style = Path(__file__).with_suffix(".css").read_text()
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>\n{style}</style>'
    body = "\n".join([f"<h1>{html.escape(title)}</h1>", *parts])
    content = f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'
    files.replace_file(path, content.encode())


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Returns a table with a heading."""
    head = "".join(f"<th>{html.escape(str(name))}</th>" for name in header)
    lines = ["".join(_cell(value) for value in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>\n" for line in lines)
    return (
        f"<h2>{html.escape(title)}</h2>\n<div class=wide><table><thead><tr>{head}</tr></thead>\n"
        f"<tbody>{body}</tbody></table></div>"
    )


def note(text: str) -> str:
    """Returns a paragraph."""
    return f"<p class=note>{html.escape(text)}</p>"


def picture(title: str, path: Path) -> str:
    """Returns a picture, a PNG file, with a heading; raises OSError if the file cannot be read."""
    content = base64.b64encode(path.read_bytes()).decode()
    name = html.escape(title)
    return f'<h2>{name}</h2>\n<p><img alt="{name}" src="data:image/png;base64,{content}"></p>'


def _cell(value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"<td{' class=number' if number else ''}>{html.escape(tables.format_value(value))}</td>"
