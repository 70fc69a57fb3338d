"""Reads the words of a command line before its flags are parsed: config, overrides, help. Imports no TensorFlow."""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from absl import flags

from tfdist import configs
from tfdist.config import saved_run

HELP = {"h", "help", "helpfull", "helpshort", "?"}
# Flags that only tfdist itself passes; they are not shown.
_INTERNAL = {"trial"}


@dataclasses.dataclass(frozen=True, slots=True)
class Flag:
    """A word that is a flag: `--name`, `--name=value` or `--name` with the value in the next word."""

    word: str
    name: str
    # "": it may be the next word, `after`.
    value: str | None
    after: str

    @property
    def is_config(self) -> bool:
        """Whether it names the config file, or overrides a field of it."""
        return re.fullmatch(r"(no)?config(\..*)?", self.name) is not None


def read_flags(words: Sequence[str]) -> Iterator[Flag]:
    """Yields the flags among the words after the command."""
    for word, after in itertools.pairwise([*words, ""]):
        if match := re.match(r"--?([A-Za-z?][\w.\[\]-]*)(?:=(.*))?", word, re.DOTALL):
            yield Flag(word, match[1], match[2], after)


def unknown(words: Sequence[str]) -> Iterator[Flag]:
    """Yields the flags before a `--` that do not exist."""
    given = list(words)
    for flag in read_flags(given[: given.index("--") if "--" in given else None]):
        positive = flag.name.removeprefix("no")
        known = flag.name in flags.FLAGS or (positive in flags.FLAGS and flags.FLAGS[positive].boolean)
        if not known and flag.name != "undefok" and not ("config" in flags.FLAGS and positive.startswith("config.")):
            yield flag


def own_flags() -> list[str]:
    """Returns the names of the flags that tfdist defines and users may set, in order of definition."""
    names = []
    for module, defined in flags.FLAGS.flags_by_module_dict().items():
        if not module.startswith(("absl.", "ml_collections.", "tensorflow")):
            names += [flag.name for flag in defined if flag.name not in _INTERNAL]
    return names


def value_of(name: str, words: Sequence[str]) -> str:
    """Returns the value of the flag `name`; "" if it is not there."""
    values = (flag.after if flag.value is None else flag.value for flag in read_flags(words) if flag.name == name)
    return next(values, "")


def config_path(words: Sequence[str]) -> str:
    """Returns the value of --config; "" if it is not there."""
    return value_of("config", words)


def may_hold_config(path: str) -> bool:
    """Returns whether `path`, the value of --config, names a file, which can hold a config if it is Python code."""
    file = Path(path.partition(":")[0])
    return file.is_file() and (file.suffix != ".py" or bool(re.search(rb"get_config|import \*", file.read_bytes())))


def config_arguments(words: Sequence[str]) -> list[str]:
    """Returns the words that name the config file and override its fields, each field with its value in one word."""
    found = []
    for flag in filter(lambda flag: flag.is_config, read_flags(words)):
        if flag.name == "config" and flag.value is None:
            found += [flag.word, flag.after]
        else:
            found.append(in_one_word(flag))
    return found


def in_one_word(flag: Flag) -> str:
    """Returns a flag with its value, if that is the next word and the flag is one of a field of the config."""
    of_field = flag.name.startswith("config.") and flag.value is None and _takes_a_value(flag.word)
    return f"{flag.word}={flag.after}" if of_field and flag.after and flag.after[:2] != "--" else flag.word


def overrides(words: Sequence[str]) -> Iterator[str]:
    """Yields the dotted names of the fields of the config that a command line overrides: "model.width"."""
    for flag in read_flags(words):
        if flag.is_config and "." in flag.name:
            yield flag.name.partition(".")[2].partition("[")[0]


def complete(words: Sequence[str]) -> list[str]:
    """Returns the words with `--config=` before a config that is given without it: `configs/digits.py`, `digits`.

    A file that does not exist becomes that of the shipped config, if there is one; the workdir of a run becomes its
    saved config, also as `--config=runs/x`. `--epochs=5` is `--config.train.epochs=5`, in the place of a number of
    steps.
    """
    words = _with_long_epochs(words)
    if path := config_path(words):
        index = next(number for number, word in enumerate(words) if re.match(r"--?config(=|$)", word))
        end = index + (1 if "=" in words[index] else 2)
        found = configs.find(path)
        if found != path:
            return [*words[:index], f"--config={found}", *words[end:]]
        return _with_saved_config([*words[:index], path, *words[end:]]) if Path(path).is_dir() else words
    for index, word in enumerate(words if "config" in flags.FLAGS else ()):
        if (named := config_named(word)) and not (index and _takes_a_value(words[index - 1])):
            return [*words[:index], f"--config={named}", *words[index + 1 :]]
    return _with_saved_config(words)


def config_named(word: str) -> str:
    """Returns the path of a Python file, which may be a shipped config, if a word names one by its form; else ""."""
    found = configs.find(word) if word[:1] != "-" else word
    return found if found != word or re.fullmatch(r"[^-].*\.py(:.*)?", word) else ""


def _with_saved_config(words: Sequence[str]) -> list[str]:
    """Returns the words with the saved config in the place of the workdir of a run, for commands with a config."""
    if "config" not in flags.FLAGS:
        return list(words)
    trains = "allow_config_changes" in flags.FLAGS and not value_of("workdir", words)
    return saved_run.with_flags(words, free(words), trains=trains)


def free(words: Sequence[str]) -> list[str]:
    """Returns the words that are not the value of the flag before them; flags are among them."""
    return [word for word, before in zip(words, ["", *words], strict=False) if not _takes_a_value(before)]


def _with_long_epochs(words: Sequence[str]) -> list[str]:
    """Returns the words with the fields that `--epochs=5` or `--epochs 5` stands for in commands with a config."""
    if "config" not in flags.FLAGS or "epochs" in flags.FLAGS:
        return list(words)
    found: list[str] = []
    for word in words:
        if found and re.fullmatch("--?epochs", found[-1]) and word[:1] != "-":
            word = f"{found.pop()}={word}"
        match = re.fullmatch(r"--?epochs=(.+)", word)
        found += [f"--config.train.epochs={match[1]}", "--config.train.steps=none"] if match else [word]
    return found


def _takes_a_value(word: str) -> bool:
    match = re.fullmatch(r"--?([\w.\[\]]+)", word)
    return bool(match) and not (match[1] in flags.FLAGS and flags.FLAGS[match[1]].boolean)
