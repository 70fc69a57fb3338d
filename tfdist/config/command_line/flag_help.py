"""The text of --help: purpose, usage, flags in groups, and the fields of a config. Imports no TensorFlow."""

import textwrap
from collections.abc import Sequence

from absl import flags

from tfdist.config.command_line import words

WIDTH = 100
_COLUMN = 28
# Placeholders of values, by the name of the flag.
_PLACEHOLDERS = {"config": "FILE", "json": "FILE", "workdir": "DIR", "checkpoint": "WHICH"}


def text(purpose: str, usage: str, run_flags: Sequence[str] = ()) -> str:
    """Returns the help of a command whose flags are defined.

    Args:
        purpose: what the command does; its first line is a sentence.
        usage: the form of the command line.
        run_flags: the flags that belong to the run; they have a heading of their own.
    """
    names = words.own_flags()
    of_run = [name for name in run_flags if name in names]
    others = [name for name in names if name not in of_run]
    lines = [f"usage: {usage}", "", *_wrap(purpose)]
    if of_run:
        lines += ["", "the run:", *_describe(of_run)]
    if others:
        lines += ["", "options:" if of_run else "flags:", *_describe(others)]
    stack = _row("--verbosity=1", "Shows the stack of an error as well.")
    return "\n".join([*lines, "", *_row("-h, --help", "Prints this text."), *stack])


def _wrap(paragraphs: str) -> list[str]:
    lines = []
    for paragraph in paragraphs.strip().split("\n\n"):
        indented = paragraph.startswith(" ")
        lines += ["", *(paragraph.splitlines() if indented else textwrap.wrap(paragraph, WIDTH))]
    return lines[1:]


def _describe(names: Sequence[str]) -> list[str]:
    lines = []
    for flag in (flags.FLAGS[name] for name in names):
        lines += _row(_form(flag), _meaning(flag))
        if flag.name == "config":
            lines += _row("--config.NAME=VALUE", "Overrides a field of the config. --config=FILE --help lists them.")
    return lines


def _row(form: str, meaning: str) -> list[str]:
    lines = textwrap.wrap(meaning, WIDTH - 4 - _COLUMN, break_on_hyphens=False)
    if len(form) >= _COLUMN:
        return [f"  {form}", *(f"  {'':{_COLUMN}}{line}" for line in lines)]
    return [f"  {word:{_COLUMN}}{line}" for word, line in zip([form, *[""] * len(lines)], lines, strict=False)]


def _form(flag: flags.Flag) -> str:
    if flag.boolean:
        return f"--[no]{flag.name}"
    values = getattr(flag.parser, "enum_values", None)
    if values:
        return f"--{flag.name}={'|'.join(values)}"
    kind = {"int": "N", "float": "X", "comma separated list of strings": "A,B,..."}.get(flag.flag_type(), "TEXT")
    return f"--{flag.name}={_PLACEHOLDERS.get(flag.name, kind)}"


def _meaning(flag: flags.Flag) -> str:
    meaning = flag.help.removeprefix(f"<{'|'.join(getattr(flag.parser, 'enum_values', []))}>: ")
    if flag.default is None or "Default:" in meaning or (flag.boolean and not flag.default):
        return meaning
    default = flag.default_as_str.strip("'")
    return f"{meaning} Default: {default}."
