"""Arguments of specs that only the command line sets, such as --config.model.width=3. Imports no TensorFlow.

Functions are read from their files, without an import. What cannot be read is checked when the function is called.
"""

import ast
import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tfdist import configs
from tfdist.config import text


def add_missing(config: Any, names: Iterable[str]) -> None:
    """Adds to the specs of `config` the arguments in `names` that they lack, with the defaults of their functions."""
    for name in names:
        *holders, argument = name.split(".")
        holder: Any = config
        for part in holders:
            holder = holder.get(part) if isinstance(holder, dict) else getattr(holder, part, None)
        if isinstance(holder, dict) and isinstance(holder.get("target"), str) and argument not in holder:
            found = parameters(holder["target"])
            if found is None or argument in found:
                holder[argument] = (found or {}).get(argument)


def parameters(target: str) -> dict[str, Any] | None:
    """Returns the arguments of `package.module:function` with their defaults; None where there is no plain value.

    None instead of a dict: the function was not found.
    """
    module, _, name = target.partition(":")
    files = [Path(folder, *module.split(".")) for folder in sys.path]
    if module.startswith("tfdist.configs."):
        files.insert(0, configs.FOLDER.joinpath(*module.split(".")[2:]))
    for file in (each.with_suffix(".py") for each in files):
        if file.is_file():
            for node in ast.parse(file.read_bytes()).body:
                if isinstance(node, ast.FunctionDef) and node.name == name:
                    return dict(_parameters(node.args))
    return None


def _parameters(arguments: ast.arguments) -> Iterator[tuple[str, Any]]:
    required = [None] * (len(arguments.args) - len(arguments.defaults))
    values = [*required, *arguments.defaults, *arguments.kw_defaults]
    for argument, value in zip([*arguments.args, *arguments.kwonlyargs], values, strict=True):
        default = None
        with contextlib.suppress(ValueError, TypeError):
            default = None if value is None else ast.literal_eval(value)
        yield argument.arg, default


def hint(spec: dict[str, Any], field: str, argument: str) -> str:
    """Returns what to do about an argument that the function of a spec does not have; starts with a space."""
    names = parameters(str(spec.get("target"))) or {}
    near = text.closest(argument, [*spec, *names])
    if near:
        return f" Did you mean '{field}.{near}'?"
    more = f" {spec['target']} has the arguments: {', '.join(names)}." if names else ""
    return f" {field!r} there sets: {', '.join(spec)}.{more}"
