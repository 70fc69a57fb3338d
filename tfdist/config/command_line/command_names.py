"""Checks that `python -m tfdist.NAME` names a command. Imports no TensorFlow."""

import difflib
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

from tfdist import configs

# Modules that users start; these start other modules with a main program.
COMMANDS = [f"tfdist.{name}" for name in ("main", "launch", "run")]
# Modules that do not exist, which mean the first command.
_TRAINING = ("train", "training", "run", "fit")


def check(argv: Sequence[str]) -> None:
    """Exits with a message if `argv`, the interpreter's command line, starts a module of tfdist that is no command."""
    module = next((after for word, after in itertools.pairwise(argv) if word == "-m"), "")
    if module.partition(".")[0] != "tfdist" or is_command(module):
        return
    last = module.rpartition(".")[2]
    near = difflib.get_close_matches(module, COMMANDS, n=1, cutoff=0.8)
    if last in _TRAINING:
        near = COMMANDS
    meant = near[0] if near else f"tfdist {last}" if ".tools." in module else ""
    hint = f" Did you mean: python -m {meant} ?" if meant else ""
    sys.exit(f"{module} is not a command.{hint} python -m tfdist lists all commands.")


def is_command(module: str) -> bool:
    """Returns True if the source of `module`, or of its `__main__`, has a main program."""
    shipped, parts = module.startswith("tfdist.configs."), module.split(".")
    path = configs.FOLDER.joinpath(*parts[2:]) if shipped else Path(__file__).parents[3].joinpath(*parts)
    files = [file for file in (path.with_suffix(".py"), path / "__main__.py") if file.is_file()]
    return any('__name__ == "__main__"' in file.read_text() for file in files)
