"""Loads a config, and overrides its fields by `--config.section.field=VALUE`, with a sentence for each mistake.

Imports no TensorFlow.
"""

import ast
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


def load(path: str, fields: Sequence[str] = ()) -> schema.Config:
    """Returns the config of `path`, the value of --config, in which `fields` such as "--config.seed=1" are overridden.

    Exits with a sentence if the file fails, or a field or its value is wrong.
    """
    # A config may name a module beside it, however it is started.
    sys.path += [each for each in saved_run.import_folders(path.partition(":")[0]) if each not in sys.path]
    config = _read(path)
    for word in fields:
        _override(config, word, path)
    return config


def _override(config: schema.Config, word: str, path: str) -> None:
    """Sets the field that a word such as "--config.seed=1" names, or an argument of a function in a spec.

    Without "=" it is set to true, by "--noconfig.data.shuffle" to false. Exits with a sentence.
    """
    holder, field = _find(config, name_of(word), path)
    if isinstance(holder, dict):  # The function checks an argument that is not set yet, or None.
        kind = type(holder.get(field))
        hint = {types.NoneType: Any, str: str}.get(kind, kind | None)
    else:
        hint = typing.get_type_hints(type(holder))[field]
    given = word.partition("=")[2] if "=" in word else "true"
    value = _parse("false" if word.lstrip("-").startswith("no") else given, hint)
    if problem := validate.type_problem(value, hint):
        sys.exit(f"{word}: {problem}")
    if isinstance(holder, dict):
        holder[field] = value
    else:
        setattr(holder, field, value)


def _parse(word: str, hint: Any) -> Any:
    """Returns the value of a field with the type `hint`: in Python notation, or "true", "false" and "none"."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if types.NoneType in kinds and word in _NONE:
        return None
    if str in kinds or typing.get_origin(hint) is typing.Literal:
        return word
    words = {"true": "True", "false": "False", "none": "None"}
    try:
        value = ast.literal_eval(words.get(word.lower(), word))
        return float(value) if type(value) is int and float in kinds else value
    except (ValueError, SyntaxError, OverflowError):
        return word


def name_of(word: str) -> str:
    """Returns the dotted name of the field that a word such as "--config.model.width=3" overrides."""
    return re.match(r"--?(?:no)?config\.([^=]+)", word)[1]


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
    if not re.search(rb"get_config|import \*", Path(file).read_bytes()):  # It is not run.
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
    sentence = removed.of_error(error)
    return sentence or user_code.explain(error) or f"{type(error).__name__}: {user_code.message(error)}"


def _find(config: schema.Config, name: str, path: str) -> tuple[Any, str]:
    """Returns the section or dict of a field, and its last name; exits with a sentence if there is no such field."""
    holder: Any = config
    parts = name.split(".")
    for index, part in enumerate(parts):
        items = dict(diff.items(holder)) if isinstance(holder, dict) or dataclasses.is_dataclass(holder) else {}
        if part in items:
            outer, holder = holder, items[part]
            continue
        if isinstance(holder, dict) and index + 1 == len(parts):
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
    """Returns the field of a config that is called `word`, or nearly so, without its section; "" if there is none."""
    lasts: dict[str, str] = {}
    for name, _ in diff.flatten(schema.Config(model={})):
        lasts.setdefault(name.rpartition(".")[2], name)
    lasts |= _USUAL_NAMES
    return lasts.get(text.closest(word.replace("-", "_").lower(), lasts, 0.8), "")
