"""The command line of the launcher: its own flags, and what every worker runs. Imports no TensorFlow."""

import ast
import itertools
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from tfdist.config import flags as config_flags
from tfdist.config.command_line import tool_words
from tfdist.config.command_line import words as words_lib

OWN_FLAGS = ("workers", "max_restarts", "grace_seconds")


def define_flags() -> None:
    """Defines the flags of the launcher; not at import, because other commands define some of them too."""
    flags.DEFINE_integer("workers", None, "Number of workers to start on this machine.", lower_bound=1)
    flags.DEFINE_integer("max_restarts", 3, "Number of restarts before giving up.", lower_bound=0)
    text = "Seconds between SIGTERM and SIGKILL when workers are stopped."
    flags.DEFINE_float("grace_seconds", 10.0, text, lower_bound=0.0)


def divide(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divides a command line into the launcher's flags and what every worker runs.

    That is flags of tfdist.main, among which the launcher's may be, or a program with flags of its own. A "--" may
    separate the two. Flags of absl, such as --verbosity, are the launcher's before a program, else tfdist.main's.

    Raises:
        SystemExit: a flag is on the wrong side of the "--", or one of tfdist.main is before a script.
    """
    launch_flags: list[str] = []
    of_absl: list[str] = []
    others: list[str] = []
    words = list(arguments)
    while words:
        if found := _flag_of_absl(words):
            of_absl += found
            words = words[len(found) :]
            continue
        word = words.pop(0)
        name, equals, value = word.partition("=")
        flag = name.lstrip("-").replace("-", "_")  # Other launchers write --max-restarts, absl writes --max_restarts.
        if word.startswith("-") and flag in OWN_FLAGS:
            launch_flags += [f"--{flag}{equals}{value}", *([] if equals else words[:1])]
            words = words if equals else words[1:]
        elif word == "--":
            _check_sides(others, words, arguments)
            program = words and not others and not _of_main(words[0])
            return ([*launch_flags, *of_absl], words) if program else (launch_flags, [*of_absl, *others, *words])
        elif not others and (word == "-m" or not (word.startswith("-") or _has_config(word))):
            return [*launch_flags, *of_absl], [word, *words]
        else:
            others.append(word)
    _check_no_script(others)
    return launch_flags, [*of_absl, *others]


def _flag_of_absl(words: Sequence[str]) -> list[str]:
    """Returns the flag of absl that begins the words, with its value if that is the next word; [] for other words."""
    match = re.fullmatch(r"--?(\w+)(=.*)?", words[0], re.DOTALL)
    name = match[1] if match else ""
    if name.removeprefix("no") in flags.FLAGS and flags.FLAGS[name.removeprefix("no")].boolean:
        return [words[0]]
    return list(words[: 1 if match[2] else 2]) if name in flags.FLAGS else []


def _of_main(word: str) -> bool:
    return word.startswith("--") or _has_config(word)


def _check_no_script(words: Sequence[str]) -> None:
    """Exits if a script is among the flags of tfdist.main, which would take it for a config."""
    for before, word in itertools.pairwise(words if words and words[0].startswith("-") else ()):
        value = re.fullmatch(r"--?config[\w.\[\]]*", before)
        if not value and word.endswith(".py") and os.path.isfile(word) and not is_config(word):
            sys.exit(
                f"tfdist.launch: {words[0]} is no flag of the launcher, and {word} is a script: write the flags of a "
                "script after it."
            )


def _check_sides(before: Sequence[str], after: Sequence[str], arguments: Sequence[str]) -> None:
    """Exits if a flag of tfdist.main is before the "--", or one of the launcher after it."""
    of_main = after and _of_main(after[0])
    for words, side, misplaced in (
        (before, "after", config_flags.RUN_FLAGS),
        (after if of_main else (), "before", OWN_FLAGS),
    ):
        for word in words:
            name = re.match(r"--?(?:no)?(\w+)", word)
            if name and name[1] in misplaced:
                sys.exit(f'--{name[1]} must be written {side} the "--". Received: {" ".join(arguments)}')


def worker_command(words: Sequence[str]) -> list[str]:
    """Returns the command of a worker for `SCRIPT.py ...`, `-m MODULE ...` or `PROGRAM ...`; [] for a config."""
    first = words[0] if words else "--config"
    if first == "-m":
        return [sys.executable, *words]
    if first.startswith("-") or os.path.isdir(first):  # The workdir of a run has a config.
        return []
    if file := _python_file(first):
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


def parse(argv: list[str]) -> list[str]:
    """Parses the launcher's flags, and those of tfdist.main if they are defined; exits with one message if wrong."""
    words = config_flags.parse(argv)
    tool_words.check_numbers()
    if flags.FLAGS.workers is None:
        sys.exit("Set the number of workers to start, such as --workers=2")
    return words


def is_config(file: str) -> bool:
    """Returns True if a Python file exists and defines `get_config` at its top level."""
    try:
        body = ast.parse(Path(file).read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return False  # Python itself shows the error.
    names = {getattr(node, "name", "") for node in body}
    for node in body:
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {ast.unparse(target) for target in node.targets}
    return "get_config" in names


def _has_config(word: str) -> bool:
    """Returns whether a word is a config or the workdir of a run, and no script or program."""
    return os.path.isdir(word) or is_config(_python_file(word))


def _python_file(word: str) -> str:
    """Returns the file of a script, or of a config, which may be a shipped one; "" for other words."""
    return words_lib.config_named(word).partition(":")[0]
