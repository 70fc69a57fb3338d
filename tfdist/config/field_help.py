"""The fields of a config with their values and meanings, for --help. Imports no TensorFlow."""

import ast
import dataclasses
import inspect
import itertools
import textwrap
import typing
from collections.abc import Iterator
from typing import Any

from tfdist.config import diff, schema

_WIDTH = 100


def text(path: str, config: schema.Config) -> str:
    """Returns the help text of all fields of `config`, which was read from the file `path`."""
    lines = [f"fields of {path}, with their values:", *_section(config, ""), "", "none means None."]
    return "\n".join(lines)


def meanings() -> dict[tuple[str, str], str]:
    """Returns (class, field) -> the text below the field in schema.py, in one line."""
    found = {}
    for node in ast.parse(inspect.getsource(schema)).body:
        for field, text in itertools.pairwise(node.body if isinstance(node, ast.ClassDef) else []):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[node.name, ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return found


def _section(section: Any, prefix: str) -> Iterator[str]:
    known, hints = meanings(), typing.get_type_hints(type(section))
    for field, value in diff.items(section):
        name = f"{prefix}{field}"
        if dataclasses.is_dataclass(value) and not isinstance(value, schema.Every):
            yield ""
            yield from _wrap(f"{name}: {inspect.getdoc(type(value))}")
            yield from _section(value, f"{name}.")
            continue
        yield from (f"  --config.{leaf}={_show(one)}" for leaf, one in diff.flatten({name: value}))
        meaning = known.get((type(section).__name__, field), "")
        choices = typing.get_args(hints[field]) if typing.get_origin(hints[field]) is typing.Literal else ()
        yield from _wrap(meaning + (f" One of {', '.join(choices)}." if choices else ""), 6)


def _wrap(paragraph: str, indent: int = 0) -> list[str]:
    space = " " * indent
    return textwrap.wrap(paragraph, _WIDTH, initial_indent=space, subsequent_indent=space, break_on_hyphens=False)


def _show(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else repr(value)
