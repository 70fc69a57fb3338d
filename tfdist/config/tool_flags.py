"""Command lines: the flags and words of a command, and the fields of its config.

A tool is a module with `add_flags(parser)` and `main(args)`, which returns the exit code or None; its docstring is the
purpose in --help. Imports no TensorFlow.
"""

import argparse
import math
import os
import re
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from absl import app, flags

from tfdist import configs
from tfdist.config import closed_streams, paths, text

_WIDTH = 100
# A field of a config: "--config.data.batch_size=64", "--noconfig.data.shuffle".
_FIELD = re.compile(r"--?(no)?config\.[\w.\[\]-]+")


class Parser(argparse.ArgumentParser):
    """The flags of a command; a mistake ends the process with a message and exit code 1.

    With `add_config`, `args` has: `config`, a `schema.Config`; `config_file`, the value of --config; `config_name`, the
    name of its runs; `config_words`, the arguments for a child process. If no config is given: None, "", "", [].
    """

    def __init__(self, command: str, purpose: str):
        """`command` as it is typed: "python -m tfdist doctor"."""
        super().__init__(
            prog=command.removeprefix("python -m "),
            description=purpose.strip(),
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=28, width=_WIDTH),
            add_help=False,
            allow_abbrev=False,
        )
        # Whether the command takes a config, and whether it must be given.
        self.has_config, self._needs_config = False, False
        self._workdir = ""

    def add_config(self, *, required: bool = True) -> None:
        """Adds the config, as --config=FILE or as a word, and its fields, as --config.NAME=VALUE."""
        self.has_config, self._needs_config = True, required
        meaning = "The config file, such as configs/digits.py, or the workdir of a run."
        self.add_argument("--config", metavar="FILE", default="", help=meaning)
        meaning = "A field of the config. --config=FILE --help lists them."
        self.add_argument("--config.NAME", metavar="VALUE", help=meaning)
        self.add_argument("config_word", nargs="?", default="", help=argparse.SUPPRESS)

    def add_workdir(self, default: str, meaning: str = "Directory of the results.") -> None:
        """Adds --workdir, a `Path`; "NAME" in `default` stands for the name of the config."""
        named = " for a config NAME.py" if "NAME" in default else ""
        self._workdir = default
        self.add_argument("--workdir", metavar="DIR", type=path, help=f"{meaning} Default: {default}{named}.")

    def add_run_flags(self) -> None:
        """Adds the config, and the flags of the commands that train or evaluate it."""
        self.add_config()
        self.add_workdir("runs/NAME", "Directory of the run (config, metrics, checkpoints).")
        meaning = "Train, or evaluate a checkpoint of the workdir. Default: train."
        self.add_argument("--mode", default="train", choices=["train", "eval"], help=meaning)
        meaning = 'The checkpoint to evaluate: "newest", "best", or a step. Default: newest.'
        self.add_argument("--checkpoint", metavar="WHICH", default="newest", help=meaning)
        for changed, meaning in (("config", "config differs from the saved one"), ("data", "data has changed")):
            meaning = f"Resume the run in the workdir even if the {meaning}."
            self.add_argument(f"--allow_{changed}_changes", action="store_true", help=meaning)

    def names(self) -> list[str]:
        """Returns the names of the flags."""
        return [each.removeprefix("--") for action in self._actions for each in action.option_strings]

    def read(
        self, words: Sequence[str], before_config: Callable[[argparse.Namespace], None] = lambda args: None
    ) -> argparse.Namespace:
        """Parses the words after the command; --help and -h print the help and exit with 0.

        Args:
            before_config: called with the flags and the workdir before the config file is run.
        """
        self.add_argument("-h", "--help", action="store_true", help="Print this text.")
        self.add_argument("--verbosity", metavar="N", type=int, default=-1, help="1: also print stack traces.")
        fields, own = self._divide(words)
        if not self.has_config and {"-h", "--help"}.intersection(own):
            self._help()
        args, unknown = self.parse_known_intermixed_args(own)
        if unknown and not args.help:
            self.refuse(unknown)
        flags.FLAGS(["tfdist", f"--verbosity={args.verbosity}"])
        if not self.has_config:
            args.workdir = getattr(args, "workdir", None) or Path(self._workdir)
        else:
            self._read_config(args, fields, before_config)
        return args

    def _divide(self, words: Sequence[str]) -> tuple[list[str], list[str]]:
        """Returns the fields of the config, each with its value in one word, and the other words."""
        fields, own, left = [], [], [*words]
        while left:
            word = left.pop(0)
            name, equals, value = word.partition("=")
            underscores = f"--{name[2:].replace('-', '_')}" if name[:2] == "--" else name
            if name == "--epochs" and self.has_config and "epochs" not in self.names():
                value = value if equals or not left else left.pop(0)
                fields += [f"--config.train.epochs={value}", "--config.train.steps=none"]
            elif not self.has_config or not _FIELD.fullmatch(name):
                own.append(f"{underscores}{equals}{value}" if underscores[2:] in self.names() else word)
            elif equals or not left or left[0].startswith("--"):
                fields.append(word)
            else:
                fields.append(f"{word}={left.pop(0)}")
        return fields, own

    def _read_config(
        self, args: argparse.Namespace, fields: list[str], before_config: Callable[[argparse.Namespace], None]
    ) -> None:
        from tfdist.config import load, saved_run

        given = args.config or args.config_word
        if args.config and args.config_word:
            self.refuse([args.config_word])
        if not given and not args.help and (self._needs_config or fields):
            self.error("give a config file, such as configs/digits.py, or the workdir of a run (--config)")
        found = configs.find(given)
        if os.path.isdir(given):
            try:
                workdir = saved_run.newest(given)
            except ValueError as error:
                self.error(f"{error}")
            found = str(workdir / saved_run.FILE)
            if hasattr(args, "allow_config_changes") and args.workdir is None:  # Continues with the saved config.
                args.workdir, args.allow_config_changes = workdir, True
        file = Path(found.partition(":")[0])
        args.config_file, args.config = found, None
        args.config_name = file.absolute().parent.name if file.name == saved_run.FILE else file.stem
        args.config_words = [f"--config={found}", *fields] if found else []
        if self._workdir and args.workdir is None:
            args.workdir = Path(self._workdir.replace("NAME", args.config_name))
        if found:
            before_config(args)
            args.config = load.load(found, fields)
        if args.help:
            self._help(args)

    def _help(self, args: argparse.Namespace | None = None) -> NoReturn:
        with closed_streams.exit_quietly():
            print(self.format_help().strip())
            if args is not None and args.config is not None:
                from tfdist.config import field_help

                print(f"\n{field_help.text(args.config_file, args.config)}")
        sys.exit(0)

    def refuse(self, unknown: Sequence[str], more: str = "--help lists all flags") -> NoReturn:
        """Exits with a message about words that are not flags of the command."""
        word = next((each for each in unknown if each.startswith("-")), "")
        if not word:
            self.error(f"unexpected argument {unknown[0]!r}. Flags begin with --")
        name, equals, value = word.lstrip("-").partition("=")
        names = self.names()
        first, dot, rest = name.partition(".")
        field = ""
        if self.has_config and not dot:
            from tfdist.config import load

            field = load.field_meant(name)
        near = text.closest(first, names, 0.8) or (f"config.{field}" if field else text.closest(first, names, 0.5))
        hint = f" Did you mean --{near}{dot}{rest}{equals}{value}?" if near else ""
        self.error(f"there is no flag --{name}.{hint} {more[0].upper()}{more[1:]}. Received: {word}")

    def error(self, message: str) -> NoReturn:
        """Exits with `message`; argparse calls it for a wrong value."""
        sys.exit(f"{self.prog}: {message.removeprefix('argument ')}")


def run(tool: types.ModuleType, name: str) -> NoReturn:
    """Runs `tfdist NAME` with the words in sys.argv, and exits the process.

    `USAGE` of the module, if it has one, follows the name in the usage line.
    """
    closed_streams.reopen()
    parser = Parser(f"python -m tfdist {name}", f"{tool.__doc__}")
    tool.add_flags(parser)
    words = getattr(tool, "USAGE", "--config=FILE [flags]" if parser.has_config else "[flags]")
    parser.usage = f"python -m tfdist {name} {words}"

    def call(args: argparse.Namespace) -> int | None:
        try:
            with closed_streams.exit_quietly():
                return tool.main(args)
        except (ValueError, OSError) as error:
            sys.exit(f"tfdist {name}: {error}")

    app.run(call, flags_parser=lambda argv: parser.read(argv[1:]))


def config_named(word: str) -> str:
    """Returns the path of the Python file that `word` names, which may be a shipped config; "" if it names none."""
    found = configs.find(word) if word[:1] != "-" else word
    return found if found != word or re.fullmatch(r"[^-].*\.py(:.*)?", word) else ""


def at_least(low: float, kind: type[int] | type[float] = int) -> Callable[[str], float]:
    """Returns the type of a flag: a whole number, or with `kind` float any finite number, of at least `low`."""

    def parse(word: str) -> float:
        try:
            value = kind(word)
        except ValueError:
            value = math.nan
        if not low <= value < math.inf:
            whole = "whole " if kind is int else ""
            raise argparse.ArgumentTypeError(f"must be a {whole}number and at least {low}. Received: {word!r}")
        return value

    return parse


def path(word: str) -> Path:
    """The type of a flag: a path, with `~` expanded; an address such as gs://bucket is an error."""
    if paths.is_address(word):
        raise argparse.ArgumentTypeError(f"{word!r} {paths.ADVICE}")
    return Path(word).expanduser()


def names(word: str) -> list[str]:
    """The type of a flag: strings, separated by commas."""
    return [each.strip() for each in word.split(",") if each.strip()]


def numbers(word: str) -> list[int]:
    """The type of a flag: whole numbers from 1 on, separated by commas, sorted and without duplicates."""
    found = word.split(",")
    if not all(each.strip().isdecimal() and int(each) > 0 for each in found):
        raise argparse.ArgumentTypeError(f"must be whole numbers from 1 on, such as 1,2,4. Received: {word!r}")
    return sorted({*map(int, found)})
