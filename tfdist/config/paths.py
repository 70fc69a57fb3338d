"""Paths that users give: they are paths of a file system, not addresses such as gs://bucket. Imports no TensorFlow."""

import os
import re
from pathlib import Path

ADVICE = "is an address, and must be a path: mount it, and give its folder"


def is_address(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path is an address: "gs://bucket/run", also as `Path` writes it, with one slash."""
    return bool(re.match(r"[A-Za-z][\w+.-]+:/", os.fspath(path)))


def local(path: str | os.PathLike[str], name: str) -> Path:
    """Returns a path with `~` and variables of the environment expanded.

    Args:
        name: the name of the argument, for messages.

    Raises:
        ValueError: it is an address.
    """
    expanded = os.path.expanduser(os.path.expandvars(path))
    if is_address(expanded):
        raise ValueError(f"{name}={expanded!r} {ADVICE}.")
    return Path(expanded)
