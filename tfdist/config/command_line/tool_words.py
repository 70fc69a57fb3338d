"""Command lines of tools that take words beside their flags."""

import functools
import math
import sys
from collections.abc import Callable

from absl import flags

from tfdist.config import flags as config_flags
from tfdist.config.command_line import flag_errors, words


def parse_words(argv: list[str], *, least: int = 0, most: float = math.inf, wanted: str = "") -> list[str]:
    """Parses the command line of a command without a config; returns its name and the words beside flags.

    Exits with a message if a flag is invalid, or with `wanted` if the words are fewer than `least` or more than `most`.
    """
    flag_errors.check_names(argv)
    try:
        found = flags.FLAGS(argv)
    except flags.Error as error:
        sys.exit(config_flags.plain(error))
    return found if least < len(found) <= most + 1 else sys.exit(wanted)


def check_numbers() -> None:
    """Exits with a message if a flag is infinite or NaN, which is within all bounds of absl."""
    for name in words.own_flags():
        value = flags.FLAGS[name].value
        if isinstance(value, float) and not math.isfinite(value):
            sys.exit(f"--{name}={value}: must be a finite number")


def need_words(least: int, wanted: str, most: float = math.inf) -> Callable[[list[str]], list[str]]:
    """Returns `parse_words` for a command that needs from `least` to `most` words."""
    return functools.partial(parse_words, least=least, most=most, wanted=wanted)
