"""The command line of a script under the launcher, and its progress: checkpoints of any workdir. No TensorFlow."""

import ast
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tfdist.checkpoint import directory


def split(own_flags: Sequence[str], arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits a command line before the first word that is neither a flag of the launcher nor the value of one.

    Args:
        own_flags: names of the launcher's flags; all have a value.
        arguments: the command line without the program's name.

    Returns:
        The launcher's flags, and the other words without a "--" that separates them.
    """
    position = 0
    while position < len(arguments):
        name, equals, _ = arguments[position].partition("=")
        if name == "--" or not name.startswith("-") or name.lstrip("-").replace("-", "_") not in own_flags:
            break
        position += 1 if equals else 2
    rest = list(arguments[position:])
    return list(arguments[:position]), rest[1:] if rest[:1] == ["--"] else rest


def worker_command(words: Sequence[str]) -> list[str]:
    """Returns the command of a worker for `SCRIPT.py ...`, `-m MODULE ...` or `PROGRAM ...`; [] for a config.

    Args:
        words: what follows the launcher's flags.

    Raises:
        SystemExit: there is no such script or program.
    """
    first = words[0] if words else "--config"
    if first == "-m":
        return [sys.executable, *words]
    if first.startswith("-") or os.path.isdir(first):  # The workdir of a run has a config.
        return []
    if re.search(r"\.py(:.*)?$", first):
        file = first.partition(":")[0]
        if not os.path.isfile(file):
            sys.exit(f"tfdist.launch: there is no file {os.path.abspath(file)}.")
        return [] if is_config(file) else [sys.executable, *words]
    if shutil.which(first) is None:
        sys.exit(
            f"tfdist.launch: there is no program {first!r}. After the launcher's flags, write --config=FILE, a script, "
            "-m MODULE, or a program."
        )
    return list(words)


def flags_of_main(words: Sequence[str]) -> list[str]:
    """Returns the flags of `-m tfdist.main FLAGS` and `python -m tfdist.main FLAGS`; [] for other words."""
    start = 1 if words and re.search(r"(^|/)python[\d.]*$", words[0]) else 0
    return list(words[start + 2 :]) if list(words[start : start + 2]) == ["-m", "tfdist.main"] else []


def is_config(file: str) -> bool:
    """Returns True if a Python file defines `get_config` at its top level."""
    try:
        body = ast.parse(Path(file).read_bytes()).body
    except (SyntaxError, ValueError):
        return False  # Python itself shows the error.
    names = {getattr(node, "name", "") for node in body}
    for node in body:
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {ast.unparse(target) for target in node.targets}
    return "get_config" in names


def newest_step(workdirs: Sequence[Path]) -> int:
    """Returns a number that grows with each new checkpoint: of one workdir, its newest step; -1: there is none.

    Args:
        workdirs: of the runs of a script, in order.
    """
    found = [directory.newest_step(workdir / "checkpoints") for workdir in workdirs]
    return sum(step + 1 for step in found if step is not None) - 1


def from_where(workdirs: Sequence[Path]) -> str:
    """Returns from where a restart continues, in words."""
    found = {workdir: directory.newest_step(workdir / "checkpoints") for workdir in workdirs}
    saved = [(workdir, step) for workdir, step in found.items() if step is not None]
    if not saved:
        return "from the beginning: there is no checkpoint"
    workdir, step = saved[-1]
    return f"from the checkpoint of step {step}" + (f" in {workdir}" if len(found) > 1 else "")
