"""Completion of the command `tfdist` in bash and zsh: commands, flags, config files and config fields.

    eval "$(tfdist completion bash)"    # in ~/.bashrc
    eval "$(tfdist completion zsh)"     # in ~/.zshrc

The shell calls `tfdist completion words COMMAND ARGUMENT...` for each Tab; it takes about as long as --help.
"""

import contextlib
import importlib
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# The code that each shell runs: completion.bash, completion.zsh.
SCRIPTS = {kind: Path(__file__).with_suffix(f".{kind}") for kind in ("bash", "zsh")}


def main(arguments: Sequence[str], commands: Mapping[str, str]) -> None:
    """Prints the script of a shell, or the words that complete a command line: `words COMMAND ARGUMENT...`."""
    if arguments[:1] == ["words"]:
        print("\n".join(words(arguments[1:], commands)))
    elif len(arguments) == 1 and arguments[0] in SCRIPTS:
        print(SCRIPTS[arguments[0]].read_text(), end="")
    else:
        help_asked = arguments and arguments[0] in ("-h", "--help")
        text = f"usage: tfdist completion {'|'.join(SCRIPTS)}\n\n{__doc__.strip()}"
        sys.exit(print(text) if help_asked else f"tfdist completion: give one of bash, zsh.\n\n{text}")


def words(arguments: Sequence[str], commands: Mapping[str, str]) -> list[str]:
    """Returns the words that complete the last of `arguments`, a command and its arguments; it may be empty."""
    if len(arguments) <= 1:
        return sorted(name for name in (*commands, "completion") if name.startswith("".join(arguments)))
    if arguments[0] not in commands:
        return sorted(name for name in SCRIPTS if name.startswith(arguments[-1]))
    last = arguments[-1]
    flag, equals, value = last.partition("=")
    if flag == "--config" and equals:
        return [f"--config={path}" for path in _configs(value)]
    if not last.startswith("-"):
        names = getattr(importlib.import_module(commands[arguments[0]]), "COURSES", None)
        return _configs(last) if names is None else sorted(name for name in names if name.startswith(last))
    return sorted(word for word in _flags(commands[arguments[0]], arguments[1:-1]) if word.startswith(last))


def _configs(start: str) -> list[str]:
    """Returns the Python files and the folders whose path begins with `start`."""
    folder = Path(start if start.endswith("/") or not start else start.rpartition("/")[0] or ".")
    prefix = f"{start.rpartition('/')[0]}/" if "/" in start else ""
    with contextlib.suppress(OSError):
        names = [f"{prefix}{each.name}{'/' if each.is_dir() else ''}" for each in sorted(folder.glob("[!.]*"))]
        return [name for name in names if name.startswith(start) and name.endswith(("/", ".py"))]
    return []


def _flags(module: str, arguments: Sequence[str]) -> list[str]:
    """Returns the flags of a command, as `--name=`, and the fields of the config that `arguments` name."""
    from absl import flags

    from tfdist.config import diff
    from tfdist.config import flags as config_flags
    from tfdist.config.command_line import flag_errors
    from tfdist.config.command_line import words as words_lib

    imported = importlib.import_module(module)
    if hasattr(imported, "FLAGS"):
        return [*imported.FLAGS]
    getattr(imported, "define_flags", config_flags.define_run_flags)()
    found = [f"--{name}{'' if flags.FLAGS[name].boolean else '='}" for name in words_lib.own_flags()]
    path = words_lib.config_path(words_lib.complete(arguments))
    if "config" in flags.FLAGS and path and not flag_errors.file_problem(path):
        # A broken config has no fields.
        with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
            found += [f"--config.{name}=" for name, _ in diff.flatten(flag_errors.load(path))]
    return found
