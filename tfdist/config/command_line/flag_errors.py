"""Messages for mistakes on the command line: unknown flags, missing files, unknown fields; imported after one.

Imports no TensorFlow.
"""

import dataclasses
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from tfdist import configs
from tfdist.config import config_dict, diff, removed, saved_run, schema, text, user_code
from tfdist.config.command_line import spec_arguments, words

_NO_CONFIG = "the file must define get_config(), which returns a tfdist.config.Config; see configs/digits.py."
# What a field is called elsewhere -> the field.
_USUAL_NAMES = {
    **dict.fromkeys(("lr", "rate", "learning_rate"), "learning_rate.peak"),
    **dict.fromkeys(("batch", "bs", "batchsize"), "data.batch_size"),
    **dict.fromkeys(("epoch", "num_epochs", "max_epochs"), "train.epochs"),
    **dict.fromkeys(("dtype", "mixed_precision"), "train.precision"),
    **dict.fromkeys(("classes", "num_classes"), "model.num_classes"),
}


def check_names(argv: Sequence[str]) -> None:
    """Exits with the nearest flag if the command line names a flag that does not exist."""
    for flag in words.unknown(argv[1:]):
        if sentence := removed.of_flag(flag.name, flags.FLAGS):
            sys.exit(sentence)
        first, dot, rest = flag.name.partition(".")
        field = "" if dot or "config" not in flags.FLAGS else field_meant(first)
        if field:
            value = "" if flag.value is None else f"={flag.value}"
            sys.exit(f"There is no flag --{flag.name}. Did you mean --config.{field}{value}? Received: {flag.word}")
        near = text.closest(first.replace("-", "_"), [*words.own_flags(), "help", "verbosity"], 0.5)
        hint = f" Did you mean --{near}{dot}{rest}?" if near else ""
        sys.exit(f"There is no flag --{flag.name}.{hint} --help lists all flags. Received: {flag.word}")


def field_meant(word: str) -> str:
    """Returns the field of a config that is called `word`, or nearly so, without its section; "" if there is none."""
    names = [name for name, _ in diff.flatten(schema.Config(model={}))]
    lasts: dict[str, str] = {}
    for name in names:
        lasts.setdefault(name.rpartition(".")[2], name)
    lasts |= _USUAL_NAMES
    word = word.replace("-", "_").lower()
    return lasts.get(text.closest(word, lasts, 0.8), "")


def check_file(argv: Sequence[str]) -> None:
    """Exits with a message if --config is missing, is given twice or names no file."""
    given = [flag.word for flag in words.read_flags(argv[1:]) if flag.name == "config"]
    if len(given) > 1:
        sys.exit(f"--config is given {len(given)} times: give one config file. Received: {' '.join(given)}")
    path = words.config_path(argv[1:])
    names = [word for word in words.free(argv[1:]) if word[:1] != "-"]
    if not path and names:
        near = text.closest(names[0], [file.stem for file in configs.FOLDER.glob("*.py")], 0.5)
        hint = f" Did you mean {near}?" if near else ""
        sys.exit(
            f"There is no config file, no config of tfdist and no run {names[0]!r}.{hint} Give a config file, such as "
            "configs/digits.py, or the workdir of a run."
        )
    if not path:
        sys.exit("Missing --config: give a config file, such as configs/digits.py, or the workdir of a run.")
    if problem := file_problem(path):
        sys.exit(problem)


def file_problem(path: str) -> str:
    """Returns what is wrong with the value of --config, before the file is run; "" if it may hold a config."""
    file = Path(path.partition(":")[0])
    if words.may_hold_config(path):
        return ""
    if file.is_file():
        return f"--config={path}: {_NO_CONFIG} A Keras script is started by tfdist run {file}"
    found = {each.stem: Path("configs", each.name) for each in sorted(configs.FOLDER.glob("*.py"))}
    found |= {each.stem: each for folder in (Path("configs"), file.parent) for each in sorted(folder.glob("*.py"))}
    near = text.closest(file.stem, found)
    hint = f" Did you mean --config={found[near]}?" if near else ""
    return f"--config={path}: there is no file {os.path.abspath(file)}.{hint}"


def load(path: str) -> Any:
    """Returns the config of `path`, the value of --config, without the fields that the command line overrides."""
    file, _, argument = path.partition(":")
    if file.endswith(".json"):
        return saved_run.load(file)
    return config_dict.to_config(runpy.run_path(file)["get_config"](*filter(None, [argument])))


def explain(argv: Sequence[str]) -> None:
    """Exits with a message if the config file fails, or if the command line sets what is no field of the config."""
    path = words.config_path(argv[1:])
    file = path.partition(":")[0]
    try:
        config = load(path)
    except Exception as error:
        sys.exit(str(error) if file.endswith(".json") else f"--config={path}: {_explain_file(error)}")
    overrides = list(words.overrides(argv[1:]))
    spec_arguments.add_missing(config, overrides)
    for name in overrides:
        _check_field(config, name, file)


def _explain_file(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}, `{(error.text or '').strip()}`: {error.msg}."
    if isinstance(error, KeyError) and error.args == ("get_config",):
        return _NO_CONFIG
    sentence = removed.of_error(error)
    return sentence or user_code.explain(error) or f"{type(error).__name__}: {user_code.message(error)}"


def _check_field(config: schema.Config, name: str, file: str) -> None:
    holder: Any = config
    parts = name.split(".")
    for index, part in enumerate(parts):
        spec = isinstance(holder, dict)
        items = holder if spec else {field.name: getattr(holder, field.name) for field in section_fields(holder)}
        if part in items:
            holder = items[part]
            continue
        if sentence := removed.of_field(name):
            sys.exit(f"--{sentence}")
        near = text.closest(part, items)
        if spec:
            hint = spec_arguments.hint(holder, ".".join(parts[:index]), part)
        elif near:
            hint = f" Did you mean {'.'.join([*parts[:index], near, *parts[index + 1 :]])!r}?"
        else:
            meant = field_meant(parts[-1])
            hint = f" Did you mean {meant!r}?" if meant else f" --config={file} --help lists all fields."
        sys.exit(f"--config.{name}: {file} has no such field.{hint}")
    inner = ", ".join(f"--config.{name}.{field.name}" for field in section_fields(holder))
    if inner:
        sys.exit(f"--config.{name} is a group of fields. Set one of them: {inner}")


def section_fields(section: Any) -> tuple[dataclasses.Field, ...]:
    """Returns the fields of a section of the config; () for a spec or a value."""
    return dataclasses.fields(section) if dataclasses.is_dataclass(section) else ()
