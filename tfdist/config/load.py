"""Loads a config, and overrides its fields by `--config.section.field=VALUE`, with a message for each mistake.

Values are parsed by absl and `ml_collections.config_flags`, which have no notation for None and no helpful message for
an unknown field. `specs` checks the arguments of functions that a config names. Imports no TensorFlow.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import config_flags

from tfdist import configs
from tfdist.config import config_dict, diff, removed, saved_run, schema, text, user_code, validate

_NONE = ("none", "None")
_NO_CONFIG = "the file must define get_config(), which returns a tfdist.config.Config; see configs/digits.py."
# What a field is called elsewhere -> the field.
_USUAL_NAMES = {
    **dict.fromkeys(("lr", "rate", "learning_rate"), "learning_rate.peak"),
    **dict.fromkeys(("batch", "bs", "batchsize"), "data.batch_size"),
    **dict.fromkeys(("epoch", "num_epochs", "max_epochs"), "train.epochs"),
    **dict.fromkeys(("dtype", "mixed_precision"), "train.precision"),
    **dict.fromkeys(("classes", "num_classes"), "model.num_classes"),
}


class _Literal(flags.ArgumentParser):
    """Parses a value of type `kind`, or None, in Python notation; also "true", "false" and "none"."""

    def __init__(self, kind: Any):
        super().__init__()
        self._kind = kind

    def parse(self, argument: Any) -> Any:
        value = argument
        if isinstance(argument, str):
            words = {"true": "True", "false": "False", "none": "None"}
            with contextlib.suppress(ValueError, SyntaxError):
                value = ast.literal_eval(words.get(argument.lower(), argument))
        if value is None or self._kind is Any or type(value) is self._kind:
            return value
        if self._kind is float and type(value) is int:
            return float(value)
        raise ValueError(validate.type_problem(value, self._kind))


for _kind in (int, float, bool, list, dict, Any):
    config_flags.register_flag_parser_for_type(_kind, _Literal(_kind))
config_flags.register_flag_parser_for_type(types.NoneType, _Literal(Any))
for _section in filter(dataclasses.is_dataclass, vars(schema).values()):
    for _hint in typing.get_type_hints(_section).values():
        if typing.get_origin(_hint) is typing.Literal:  # `validate` checks the value.
            config_flags.register_flag_parser_for_type(_hint, flags.ArgumentParser())


def load(path: str, fields: Sequence[str] = ()) -> schema.Config:
    """Returns the config of `path`, the value of --config, with the overrides `fields`, such as "--config.seed=1".

    Exits with a message if the file fails, or a field or its value is wrong.
    """
    # A config may name a module in its directory, from whichever directory the command is started.
    sys.path += [each for each in saved_run.import_folders(path.partition(":")[0]) if each not in sys.path]
    config = _read(path)
    places = [_find(config, name_of(word), path) for word in fields]
    argv, values = ["tfdist", f"--config={path}", *fields], flags.FlagValues()
    config_flags.DEFINE_config_file("config", flag_values=values, lock_config=False, sys_argv=argv)
    values["config"].parser.parse = lambda path: config
    try:
        values(argv)
    except flags.Error as error:
        sys.exit(str(error).removeprefix("flag "))
    except KeyError as error:
        advice = "A dict on the command line replaces all items of its field: write this item into the dict."
        sys.exit(f"--config: {error.args[0]}. {advice}")
    for holder, field in places:
        may_be = typing.get_args(typing.get_type_hints(type(holder)).get(field))
        if types.NoneType in may_be and getattr(holder, field) in _NONE:  # The parser of strings does not know None.
            setattr(holder, field, None)
    return config


def name_of(word: str) -> str:
    """Returns the dotted name of the field that a word such as "--config.model.width=3" overrides."""
    return re.match(r"--?(?:no)?config\.([^=\[]+)", word)[1]


def _read(path: str) -> schema.Config:
    file, _, argument = path.partition(":")
    if not Path(file).is_file():
        found = {each.stem: Path("configs", each.name) for each in sorted(configs.FOLDER.glob("*.py"))}
        found |= {each.stem: each for each in sorted(Path(file).parent.glob("*.py"))}
        found |= {each.stem: each for each in Path(file).parent.glob(f"*/{Path(file).name}")}
        near = text.closest(Path(file).stem, found)
        hint = f" Did you mean --config={found[near]}?" if near else ""
        sys.exit(f"--config={path}: there is no file {os.path.abspath(file)}.{hint}")
    if file.endswith(".json"):
        try:
            return saved_run.load(file)
        except ValueError as error:
            sys.exit(str(error))
    if not re.search(rb"get_config|import \*", Path(file).read_bytes()):  # Without these words, the file is not run.
        sys.exit(f"--config={path}: {_NO_CONFIG} A Keras script is started by tfdist run {file}")
    try:
        config = config_dict.to_config(runpy.run_path(file)["get_config"](*filter(None, [argument])))
    except Exception as error:
        sys.exit(f"--config={path}: {_explain(error)}")
    if not isinstance(config, schema.Config):
        wanted = "get_config() must return a tfdist.config.Config or a ConfigDict"
        sys.exit(f"--config={path}: {wanted}. Received: {type(config).__name__}")
    return config


def _explain(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}, `{(error.text or '').strip()}`: {error.msg}."
    if isinstance(error, KeyError) and error.args == ("get_config",):
        return _NO_CONFIG
    if sentence := removed.sentence_for_error(error):
        return sentence
    explained = user_code.explain(error) or f"{type(error).__name__}: {user_code.message(error)}"
    found = re.match(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
    meant = field_meant(found[2]) if found and hasattr(schema, found[1]) else ""
    if not meant:
        return explained
    # Python 3.14 names the nearest argument, which need not be in this section.
    return re.sub(r" Did you mean '\w+'\?$", "", explained) + f" Did you mean the field config.{meant}?"


def _find(config: schema.Config, name: str, path: str) -> tuple[Any, str]:
    """Returns the section or dict of a field, and the last part of its name; adds an argument that a spec lacks.

    Exits with a message if there is no such field.
    """
    holder: Any = config
    parts = name.split(".")
    for index, part in enumerate(parts):
        items = dict(diff.items(holder)) if isinstance(holder, dict) or dataclasses.is_dataclass(holder) else {}
        if part in items:
            outer, holder = holder, items[part]
            continue
        if isinstance(holder, dict) and index + 1 == len(parts):
            holder[part] = None
            return holder, part
        near = text.closest(part, items)
        if sentence := removed.sentence(f"config.{name}"):
            sys.exit(f"--{sentence}")
        meant = ".".join([*parts[:index], near, *parts[index + 1 :]]) if near else field_meant(parts[-1])
        hint = f" Did you mean {meant!r}?" if meant else f" --config={path} --help lists all fields."
        sys.exit(f"--config.{name}: {path} has no such field.{hint}")
    if dataclasses.is_dataclass(holder):
        inner = ", ".join(f"--config.{name}.{field}" for field, _ in diff.items(holder))
        sys.exit(f"--config.{name} is a group of fields. Set one of them: {inner}")
    return outer, parts[-1]


def field_meant(word: str) -> str:
    """Returns the dotted name of the config field whose last part is `word` or close to it; "" if there is none."""
    lasts: dict[str, str] = {}
    for name, _ in diff.flatten(schema.Config(model={})):
        lasts.setdefault(name.rpartition(".")[2], name)
    lasts |= _USUAL_NAMES
    return lasts.get(text.closest(word.replace("-", "_").lower(), lasts, 0.8), "")
