"""The meanings of the fields of a config, the texts below them in schema.py, for --help and help()."""

import ast
import dataclasses
import functools
import inspect
import itertools
import textwrap

from tfdist.config import schema


@functools.cache
def of_fields() -> dict[str, dict[str, str]]:
    """Returns class -> field -> its meaning, in one line."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(schema)).body:
        for field, text in itertools.pairwise(node.body if isinstance(node, ast.ClassDef) else []):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found.setdefault(node.name, {})[ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return found


class _WithFields:
    """The docstring of a class with its fields and their meanings; the source is read when it is asked for."""

    def __init__(self, text: str | None):
        self._text = text

    def __get__(self, instance: object, owner: type) -> str:
        form = {"initial_indent": " " * 4, "subsequent_indent": " " * 8, "break_on_hyphens": False}  # Names of pages.
        lines = [
            textwrap.fill(f"{field}: {meaning}", 100, **form)
            for field, meaning in of_fields().get(owner.__name__, {}).items()
        ]
        return "\n".join([f"{self._text}", "", "Fields:", *lines])


def add_to_docstrings() -> None:
    """Lets help() of a class of the schema show its fields."""
    for kind in vars(schema).values():
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            kind.__doc__ = _WithFields(kind.__doc__)  # type: ignore[assignment]
