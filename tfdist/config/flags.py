"""Flags that name a config file and override its fields, with clear error messages. Imports no TensorFlow.

Based on `ml_collections.config_flags`, which raises a plain KeyError for an unknown field, has no notation for None,
and reports a missing file only when the config is used; this module adds the three.
"""

import ast
import contextlib
import dataclasses
import os
import re
import runpy
import sys
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from absl import app, flags
from ml_collections import config_flags

from tfdist.config import diff, schema

NONE_WORDS = ("none", "None")
# Names of the flags that `define_run_flags` defines.
RUN_FLAGS = ("config", "workdir", "mode", "checkpoint", "allow_config_changes")

flags.disclaim_key_flags()  # --help shows the flags of the module that calls define_config.


class _IntegerOrNone(flags.IntegerParser):
    def parse(self, argument: Any) -> int | None:
        return None if argument in NONE_WORDS else super().parse(argument)


class _FloatOrNone(flags.FloatParser):
    def parse(self, argument: Any) -> float | None:
        return None if argument in NONE_WORDS else super().parse(argument)


class _Literal(flags.ArgumentParser):
    """Parses the other values of a spec: lists, dicts, and fields that are None, which accept any value."""

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


def define_config() -> flags.FlagHolder:
    """Defines --config and, for each field of the file it names, --config.section.field; see `parse`."""
    for kind, parser in ((int, _IntegerOrNone()), (float, _FloatOrNone())):
        config_flags.register_flag_parser_for_type(kind, parser)
    for kind in (list, dict, types.NoneType):
        config_flags.register_flag_parser_for_type(kind, _Literal(kind))
    return config_flags.DEFINE_config_file(
        "config",
        None,
        "The config file, such as configs/digits.py. --config.section.field=value overrides one of its fields.",
        lock_config=False,
    )


def define_run_flags() -> None:
    """Defines --config and the flags that tfdist.main and tfdist.launch share: `RUN_FLAGS`."""
    define_config()
    flags.DEFINE_string(
        "workdir", None, "Directory of the run (config, metrics, checkpoints). Default: runs/NAME for a config NAME.py."
    )
    flags.DEFINE_enum("mode", "train", ["train", "eval"], "Train, or evaluate a checkpoint of the workdir.")
    flags.DEFINE_string("checkpoint", "newest", 'The checkpoint to evaluate: "newest", "best", or a step.')
    flags.DEFINE_bool(
        "allow_config_changes", False, "Resume the run in the workdir even if the config differs from the saved one."
    )


def parse(argv: list[str]) -> list[str]:
    """Parses the command line, for `app.run(main, flags_parser=parse)`; exits with a message if it is invalid.

    `none` means None in a field that may be None, and for a number in a spec. Arguments without a flag are rejected:
    otherwise a forgotten "--" would be ignored.
    """
    if not {"--help", "--helpfull", "--helpshort", "-help", "-?"} & set(argv):
        _check_file(argv)
    try:
        rest = app.parse_flags_with_usage(argv)
    except (KeyError, IndexError, TypeError, ValueError):
        _explain_unknown_field(argv)
        raise
    config, path = flags.FLAGS["config"].value, _config_path(argv)
    if not isinstance(config, schema.Config):
        sys.exit(f"--config={path}: get_config() must return a tfdist.config.Config. Received: {type(config).__name__}")
    for name, value in flags.FLAGS["config"].override_values.items():
        _none_where_meant(config, name, value)
    flags_only(rest[1:])
    return rest


def config_arguments(argv: list[str]) -> list[str]:
    """Returns the arguments of a command line that name the config file and override its fields."""
    found, words = [], iter(argv[1:])
    for word in words:
        if re.match(r"--?(no)?config(\.[\w.\[\]]+)?(=|$)", word):
            found.append(word)
            if word in ("--config", "-config"):
                found.append(next(words, ""))
    return found


def flags_only(arguments: Sequence[str]) -> None:
    """Exits with a message if `arguments`, those left after parsing, is not empty."""
    if arguments:
        sys.exit(f"Arguments without a flag are not supported. Received: {arguments[0]!r}")


@contextlib.contextmanager
def one_message(command: str) -> Iterator[None]:
    """Exits with the message of a ValueError or OSError raised in the block, prefixed by `command`."""
    try:
        yield
    except (ValueError, OSError) as error:
        sys.exit(f"{command}: {error}")


def config_name() -> str:
    """Returns the name of the config file without directory and suffix, the default name of a run."""
    return os.path.splitext(os.path.basename(_config_path(sys.argv).partition(":")[0]))[0]


def _config_path(argv: list[str]) -> str:
    for index, argument in enumerate(argv):
        match = re.fullmatch(r"--?config(?:=(.*))?", argument, re.DOTALL)
        if match:
            return match[1] if match[1] is not None else "".join(argv[index + 1 : index + 2])
    return ""


def _check_file(argv: list[str]) -> None:
    path = _config_path(argv)
    if not path:
        sys.exit("Name a config file, such as --config=configs/digits.py")
    file = path.partition(":")[0]
    if not os.path.isfile(file):
        sys.exit(f"--config={path}: there is no file {os.path.abspath(file)}")


def _explain_unknown_field(argv: list[str]) -> None:
    file, _, argument = _config_path(argv).partition(":")
    config = runpy.run_path(file)["get_config"](*filter(None, [argument]))
    for overriding in argv[1:]:
        match = re.match(r"--?(?:no)?config\.([^=\[]+)", overriding)
        if match:
            _check_field(config, match[1], file)


def _check_field(config: schema.Config, name: str, file: str) -> None:
    holder: Any = config
    for part in name.split("."):
        spec = isinstance(holder, dict)
        items = holder if spec else {field.name: getattr(holder, field.name) for field in _fields(holder)}
        if part not in items:
            hint = " An argument of a spec can be overridden only if the file sets it." if spec else ""
            sys.exit(f"--config.{name}: {file} has no such field.{diff.nearest_field(config, name)}{hint}")
        holder = items[part]


def _none_where_meant(config: schema.Config, name: str, value: Any) -> None:
    *holders, field = name.split(".")
    holder: Any = config
    for part in holders:
        holder = getattr(holder, part, None)
    if value in NONE_WORDS and _fields(holder):
        hint = typing.get_type_hints(type(holder))[field]
        if types.NoneType in typing.get_args(hint):
            setattr(holder, field, None)


def _fields(section: Any) -> tuple[dataclasses.Field, ...]:
    return dataclasses.fields(section) if dataclasses.is_dataclass(section) else ()
