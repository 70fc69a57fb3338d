"""The command line of the launcher: its own flags, "--", and the flags of tfdist.main. Imports no TensorFlow."""

import re
import sys
from collections.abc import Sequence

from absl import flags

from tfdist.config import flags as config_flags


def parse(own_flags: Sequence[str], argv: list[str]) -> list[str]:
    """Parses the launcher's flags and those of tfdist.main; exits with one message if they are wrong.

    Args:
        own_flags: a result of `define_flags`.
        argv: the command line.

    Returns:
        The program's name and the flags of tfdist.main.
    """
    argv = with_separator(own_flags, argv)
    split = argv.index("--")
    launcher_args = [_with_underscores(word) for word in argv[1:split]]
    worker_args = argv[split + 1 :]
    for arguments, side, misplaced in (
        (launcher_args, "after", config_flags.RUN_FLAGS),
        (worker_args, "before", own_flags),
    ):
        for argument in arguments:
            name = re.match(r"--?(?:no)?(\w+)", argument)
            if name and name[1] in misplaced:
                sys.exit(f'--{name[1]} must be written {side} the "--". Received: {" ".join(argv[1:])}')
    config_flags.parse([argv[0], *launcher_args, *worker_args])
    _check_workers()
    return [argv[0], *worker_args]


def parse_own(argv: list[str]) -> list[str]:
    """Parses the launcher's flags alone, for a script; exits with one message if they are wrong."""
    words = config_flags.parse([argv[0], *map(_with_underscores, argv[1:])])
    _check_workers()
    return words


def _with_underscores(word: str) -> str:
    # Other launchers write --max-restarts, absl writes --max_restarts: both are accepted.
    return re.sub(r"^--[\w-]+", lambda name: "--" + name[0][2:].replace("-", "_"), word)


def _check_workers() -> None:
    workers, min_workers = flags.FLAGS.workers, flags.FLAGS.min_workers
    if workers is None:
        sys.exit("Set the number of workers to start, such as --workers=2")
    if (min_workers or 1) > workers:
        sys.exit(f"--min_workers={min_workers} is more than --workers={workers}.")


def with_separator(own_flags: Sequence[str], argv: Sequence[str]) -> list[str]:
    """Returns the command line with "--" between the launcher's flags and those of tfdist.main; adds it if needed."""
    if "--" in argv:
        return list(argv)
    own, others, words = [], [], iter(argv[1:])
    for word in words:
        name, equals, _ = word.lstrip("-").partition("=")
        is_own = word.startswith("-") and name.replace("-", "_") in own_flags
        (own if is_own else others).append(word)
        if is_own and not equals:
            own.append(next(words, ""))
    return [argv[0], *own, "--", *others]
