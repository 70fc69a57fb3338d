"""Flags that name a config file and override its fields, with clear error messages. Imports no TensorFlow.

Based on `ml_collections.config_flags`, which raises a plain KeyError for an unknown field, has no notation for None,
and reports a missing file only when the config is used; this module and `flag_errors` add the three.
"""

import ast
import contextlib
import dataclasses
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags
from ml_collections import config_flags

from tfdist.config import config_dict, paths, saved_run, schema
from tfdist.config.command_line import closed_streams, flag_errors, spec_arguments, words

NONE_WORDS = ("none", "None")
# Messages of Python and absl for the values of flags, and what is said instead.
_PLAIN = {
    r"invalid literal for int\(\).*": "must be a whole number",
    r"could not convert string to float.*": "must be a number",
    r"\S+ is not (?:integer|number) >= (.*)": r"must be at least \1",
    r"(\S+) is not a positive integer": r"must be at least 1",
    r"\S+ is not a non-negative (?:integer|number)": "must be at least 0",
    r"\S+ is not an? (?:integer|number) in the range \[(.*), (.*)\]": r"must be from \1 to \2",
    r"value should be one of <(.*)>": r"must be one of \1",
}
# Names of the flags that `define_run_flags` defines.
RUN_FLAGS = ("config", "workdir", "mode", "checkpoint", "allow_config_changes", "allow_data_changes")

flags.disclaim_key_flags()  # --help shows the flags of the module that calls define_config.


class _OrNone(flags.ArgumentParser):
    """Parses None, and values of another parser."""

    def __init__(self, parser: flags.ArgumentParser, what: str):
        super().__init__()
        self._parser, self._what = parser, what

    def parse(self, argument: Any) -> Any:
        try:
            return None if argument in NONE_WORDS else self._parser.parse(argument)
        except (TypeError, ValueError):
            raise ValueError(f"must be {self._what}") from None


class _Literal(flags.ArgumentParser):
    """Parses other values: lists, dicts, and fields of a spec that are None or of type Any, which accept any value."""

    def __init__(self, kind: type):
        super().__init__()
        self._kind = kind

    def parse(self, argument: Any) -> Any:
        value = argument
        if isinstance(argument, str):
            with contextlib.suppress(SyntaxError, ValueError):
                value = ast.literal_eval(argument)
            value = None if value in NONE_WORDS else value
        if self._kind is not types.NoneType and not isinstance(value, self._kind | None):
            raise ValueError(f"must be a {self._kind.__name__} in Python notation, or none")
        return value


def define_config(flag_values: flags.FlagValues = flags.FLAGS, argv: list[str] | None = None) -> flags.FlagHolder:
    """Defines --config and, for each field of the file it names, --config.section.field; see `parse`.

    `argv` is parsed later; None: that of the process.
    """
    for kind, parser, what in (
        (int, flags.IntegerParser(), "a whole number"),
        (float, flags.FloatParser(), "a number"),
        (bool, flags.BooleanParser(), "true or false"),
    ):
        config_flags.register_flag_parser_for_type(kind, _OrNone(parser, what))
    for kind in (list, dict, types.NoneType):
        config_flags.register_flag_parser_for_type(kind, _Literal(kind))
    config_flags.register_flag_parser_for_type(Any, _Literal(types.NoneType))
    for section in filter(dataclasses.is_dataclass, vars(schema).values()):
        for hint in typing.get_type_hints(section).values():
            if typing.get_origin(hint) is typing.Literal:  # `validate` checks the value.
                config_flags.register_flag_parser_for_type(hint, flags.ArgumentParser())
    holder = config_flags.DEFINE_config_file(
        "config",
        None,
        "The config file, such as configs/digits.py. Required.",
        flag_values,
        lock_config=False,
        sys_argv=argv,
    )
    parser = flag_values["config"].parser
    load = parser.parse

    def parse_path(path: str) -> Any:
        # Overrides see a `schema.Config` only.
        config = saved_run.load(path) if path.endswith(".json") else config_dict.to_config(load(path))
        spec_arguments.add_missing(config, words.overrides((argv or sys.argv)[1:]))
        return config

    parser.parse = parse_path
    return holder


def load(path: str, fields: Sequence[str] = ()) -> schema.Config:
    """Returns the config of `path`, the value of --config, in which `fields` such as "--config.seed=1" are overridden.

    Exits with a message if the file fails, or a field or its value is wrong.
    """
    if problem := flag_errors.file_problem(path):
        sys.exit(problem)
    # A config may name a module beside it, however it is started.
    sys.path += [each for each in saved_run.import_folders(path.partition(":")[0]) if each not in sys.path]
    argv = ["tfdist", f"--config={path}", *fields]
    values = flags.FlagValues()
    define_config(values, argv)
    try:
        values(argv)
    except Exception as error:
        flag_errors.explain(argv)
        if isinstance(error, flags.Error):
            sys.exit(plain(error))
        raise
    return _checked(values, path)


def _checked(values: flags.FlagValues, path: str) -> schema.Config:
    config = values["config"].value
    if not isinstance(config, schema.Config):
        wanted = "get_config() must return a tfdist.config.Config or a ConfigDict"
        sys.exit(f"--config={path}: {wanted}. Received: {type(config).__name__}")
    for name, value in values["config"].override_values.items():
        _set_none(config, name, value)
    return config


def define_run_flags() -> None:
    """Defines --config and the flags of all commands that train with a config: `RUN_FLAGS`."""
    define_config()
    flags.DEFINE_string(
        "workdir", None, "Directory of the run (config, metrics, checkpoints). Default: runs/NAME for a config NAME.py."
    )
    flags.DEFINE_enum("mode", "train", ["train", "eval"], "Train, or evaluate a checkpoint of the workdir.")
    flags.DEFINE_string("checkpoint", "newest", 'The checkpoint to evaluate: "newest", "best", or a step.')
    flags.DEFINE_bool(
        "allow_config_changes", False, "Resume the run in the workdir even if the config differs from the saved one."
    )
    flags.DEFINE_bool("allow_data_changes", False, "Resume the run in the workdir even if the data has changed.")


def run_main(
    main: Callable[[list[str]], Any],
    *,
    purpose: str,
    usage: str,
    parser: Callable[[list[str]], list[str]] | None = None,
) -> None:
    """Runs `main` after parsing sys.argv, and exits the process; --help and -h print the help and exit with 0.

    Args:
        main: called with the arguments that `parser` returns.
        parser: parses sys.argv; None: `parse`.
    """
    closed_streams.open_closed()
    sys.argv[1:] = words.complete(sys.argv[1:])
    if path := words.config_path(sys.argv[1:]):  # A config may name a module beside it, however it is started.
        sys.path += saved_run.import_folders(path.partition(":")[0])
    if any(flag.name in words.HELP for flag in words.read_flags(sys.argv[1:])):
        from tfdist.config.command_line import flag_help

        with closed_streams.quiet():
            print(flag_help.text(purpose, usage, RUN_FLAGS))
            if path and Path(path.partition(":")[0]).is_file():
                parse([sys.argv[0], *words.config_arguments(sys.argv[1:])])
                print(f"\n{flag_help.fields(path, flags.FLAGS['config'].value)}")
        sys.exit(0)
    app.run(main, flags_parser=parser or parse)


def parse(argv: list[str]) -> list[str]:
    """Parses the command line, for `run`; exits with a message if it is invalid.

    `none` means None in a field that may be None, and for a number in a spec. Arguments without a flag are rejected:
    otherwise a forgotten "--" would be ignored.
    """
    has_config = "config" in flags.FLAGS
    if any(words.unknown(argv[1:])):
        flag_errors.check_names(argv)
    once = sum(flag.name == "config" for flag in words.read_flags(argv[1:])) == 1
    if has_config and not (once and words.may_hold_config(words.config_path(argv[1:]))):
        flag_errors.check_file(argv)
    try:
        rest = flags.FLAGS(argv)
    except Exception as error:
        if has_config:
            flag_errors.explain(argv)
        if isinstance(error, flags.Error):
            sys.exit(plain(error))
        raise
    flags_only(rest[1:])
    for name in {"workdir", "out", "output"}.intersection(flags.FLAGS):
        if paths.is_address(flags.FLAGS[name].value or ""):
            sys.exit(f"--{name}={flags.FLAGS[name].value} {paths.ADVICE}.")
    if not has_config:
        return rest
    _checked(flags.FLAGS, words.config_path(argv[1:]))
    return rest


def plain(error: flags.Error) -> str:
    """Returns what is wrong with the value of a flag: "--epochs=x: must be a whole number"."""
    text = str(error).removeprefix("flag ")
    for found, said in _PLAIN.items():
        text = re.sub(found, said, text)
    return text


def flags_only(arguments: Sequence[str]) -> None:
    """Exits with a message if `arguments`, those left after parsing, is not empty."""
    if arguments:
        sys.exit(f"Arguments without a flag are not supported. Received: {arguments[0]!r}")


@contextlib.contextmanager
def one_message(command: str) -> Iterator[None]:
    """Exits with the message of a ValueError or OSError raised in the block, prefixed by `command`."""
    try:
        with closed_streams.quiet():
            yield
    except (ValueError, OSError) as error:
        sys.exit(f"{command}: {error}")


def config_name() -> str:
    """Returns the name of the config file without directory and suffix, the default name of a run."""
    return os.path.splitext(os.path.basename(config_file().partition(":")[0]))[0]


def workdir_of(argv: Sequence[str]) -> Path:
    """Returns the workdir of the run that a command line trains, before it is parsed."""
    name = Path(words.config_path(argv).partition(":")[0]).stem
    return Path(words.value_of("workdir", argv) or f"runs/{name}").expanduser()


def config_file() -> str:
    """Returns the value of --config."""
    return config_flags.get_config_filename(flags.FLAGS["config"])


def _set_none(config: schema.Config, name: str, value: Any) -> None:
    *holders, field = name.split(".")
    holder: Any = config
    for part in holders:
        holder = getattr(holder, part, None)
    if value in NONE_WORDS and dataclasses.is_dataclass(holder):
        hint = typing.get_type_hints(type(holder))[field]
        if types.NoneType in typing.get_args(hint):
            setattr(holder, field, None)
