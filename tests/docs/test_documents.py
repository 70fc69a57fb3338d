"""What README, docs and configs name exists: files, modules, flags, fields. What configs say can be built."""

import ast
import dataclasses
import functools
import importlib.util
import inspect
import pathlib
import re
import shlex
import subprocess
import sys
import typing

import pytest

from tfdist import __main__ as tools
from tfdist import config as config_lib
from tfdist.config import diff, specs, validate

pytestmark = [pytest.mark.unit, pytest.mark.docs]
ROOT = pathlib.Path(__file__).parents[2]
# Prints the flags of each tool; one process per tool, because flags belong to a command.
FLAGS = """
import importlib, os
from tfdist import __main__ as tfdist
from tfdist.config import tool_flags
for name, (module, _) in tfdist.TOOLS.items():
    child = os.fork()
    if child == 0:
        parser = tool_flags.Parser("tfdist", "")
        importlib.import_module(module).add_flags(parser)
        print(name, "help", *parser.names(), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
# Flags of other programs that prose may name; commands are checked by the program they run.
FLAGS_OF_OTHERS = {
    *("nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "gpus-per-task", "gpus-per-node", "gres", "distribution"),
    *("mpi", "bind-to", "signal", "requeue", "hostfile", "logdir", "help", "helpfull", "link"),
}
# What a run or an installation writes; no files of the repository.
OUTPUTS = re.compile(r"(runs|workdir|checkpoints|tensorboard|\.venv)(/|$)|\w+\.json$|model\.keras$")

# Spec -> the number of positional arguments with which the framework calls its function, and the keywords that it adds.
CALLS = {
    "model": (0, ()),
    "data.source": (1, ()),
    "data.prepare": (2, ("training",)),
    "objective": (2, ("training",)),
    "optimizer": (1, ()),
    "learning_rate.schedule": (1, ("total_steps", "warmup_steps")),
}


def documents():
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def configs():
    return sorted(path for path in (ROOT / "configs").rglob("*.py") if not {"networks", "laboratory"} & {*path.parts})


def load(path):
    specification = importlib.util.spec_from_file_location(f"configs_{path.stem}", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module.get_config()


def at(config, dotted):
    return functools.reduce(getattr, dotted.split("."), config)


def code(text):
    """Returns the commands of a document's blocks, one logical line each, and the spans in its prose."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line.strip() for block in blocks for line in re.sub(r"\\\n\s*", " ", block).splitlines()]
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return [line.removeprefix("$ ") for line in lines if line], re.findall(r"`+([^`\n]+)`+", prose)


def words(command):
    try:
        return shlex.split(command, comments=True)
    except ValueError:
        return command.split()


def path_problems(text):
    """Lists what looks like a file of the repository and is none."""
    commands, spans = code(text)
    tokens = [part for line in [*commands, *spans] for word in words(line) for part in word.split("=")]
    top = {path.name for path in ROOT.iterdir()}
    problems = []
    for token in tokens:
        token = token.split("::")[0].rstrip(".,:;")
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", token) or OUTPUTS.match(token):
            continue
        ours = ("/" in token and token.split("/")[0] in top) or re.search(r"\w\.(py|md|toml|sh|sbatch)$", token)
        places = (ROOT / token, ROOT / "tfdist" / token)
        if ours and not token.startswith("my_") and not any(place.exists() for place in places):
            problems.append(f"there is no file {token}")
    return problems


@functools.cache
def flags_of_tools():
    """The flags of all tools from one process, instead of `--help` of each."""
    done = subprocess.run([sys.executable, "-c", FLAGS], cwd=ROOT, capture_output=True, text=True, check=True)
    return {f"tfdist {name}": {*flags} for name, *flags in map(str.split, done.stdout.splitlines())}


@functools.cache
def flags_of(command):
    """The flags that `python -m command` has; the command is a module, or `tfdist` and a tool."""
    if command in flags_of_tools():
        return flags_of_tools()[command]
    words = [sys.executable, "-m", *command.split(), "--help"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    return set(re.findall(r"^\s+(?:-\w, )?--(?:\[no\])?([\w-]+)", done.stdout, re.MULTILINE))


def is_command(name):
    """Returns True if `python -m name` can be run; the name is a module, or `tfdist` and a tool."""
    if " " in name:
        return name.split()[1] in {**tools.TOOLS, **tools.TRAINING}
    path = ROOT / name.replace(".", "/")
    files = [file for file in (path.with_suffix(".py"), path / "__main__.py") if file.exists()]
    return any('__name__ == "__main__"' in file.read_text() for file in files)


def flag_problems(text):
    """Lists commands of tfdist that do not exist, and flags they do not have."""
    commands, spans = code(text)
    problems = []
    for command in commands:
        called = re.search(r"-m (tfdist\.[\w.]+|tfdist \w+)(.*)", command)
        if not called:
            continue
        if not is_command(called[1]):
            problems.append(f"there is no command {called[1]}")
            continue
        named = re.findall(
            r"(?:^|\s)--(?:no)?([\w-]+)", re.split(r"[|;&>]| (?:my_|docs/courses/)\w+\.py | -m my_", called[2])[0]
        )
        flags = flags_of(called[1])
        problems += [f"{called[1]} has no flag --{flag}" for flag in named if not {flag, f"no{flag}"} & flags]
    for span in spans:
        called = re.search(r"-m (tfdist\.[\w.]+|tfdist \w+)", span)
        if called and not is_command(called[1]):
            problems.append(f"there is no command {called[1]}")
        flag = re.match(r"--(?:no)?([\w-]+)", span)
        ours = set().union(*flags_of_tools().values(), *map(flags_of, ("tfdist.main", "tfdist.run", "tfdist.launch")))
        if flag and flag[1] not in ours | FLAGS_OF_OTHERS:
            problems.append(f"no command has the flag --{flag[1]}")
    return problems


@functools.cache
def fields():
    """Every field and section, and below the specs every argument that a shipped config or its target has."""
    names = {"model.trainable", "model.start"}  # Of the network that `tfdist new --pretrained` writes.

    def walk(section, prefix):
        hints = typing.get_type_hints(section)
        for field in dataclasses.fields(section):
            names.add(f"{prefix}{field.name}")
            if dataclasses.is_dataclass(hints[field.name]):
                walk(hints[field.name], f"{prefix}{field.name}.")

    walk(config_lib.Config, "")
    for config in [load(path) for path in configs()]:
        names |= {name for name, _ in diff.flatten(config)}
        for spec in CALLS:
            target = specs.resolve(at(config, spec), field=spec)
            names |= {f"{spec}.target", *(f"{spec}.{name}" for name in inspect.signature(target).parameters)}
    return names


def field_problems(text):
    """Lists `config.section.field` that no config has."""
    commands, spans = code(text)
    named = re.findall(r"(?<![\w./-])(?:--(?:no)?)?config\.(\w+(?:\.\w+)*)", "\n".join([*commands, *spans]))
    return [f"there is no field config.{name}" for name in named if name not in fields() | {"py", "json"}]


def docstring_as_document(path):
    """The docstring of a config, whose commands stand on lines of their own, as a document."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    commands = [line.strip() for line in re.sub(r"\\\n\s*", " ", text).splitlines() if "-m tfdist" in line]
    return "\n".join([text, "```", *commands, "```"])


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_documents_name_what_exists(path):
    text = path.read_text()
    assert path_problems(text) + flag_problems(text) + field_problems(text) == []


def test_missing_names_are_found():
    text = """
Prose names `tests/test_house.py`, `main.py`, `tests/test_nothing.py::test`, `nowhere.md` and `--mod=eval`,
`config.data.batch_size`, `config.data.batchsize`, `config.json`, `runs/x/y.py`, `my_lab/losses.py` and `--ntasks=4`.
`python -m tfdist.tools.doctor` and `python -m tfdist prepair` are not commands.
```bash
$ srun -N2 python -m tfdist.main --config=configs/no_such.py \\
    --workdir=runs/x --config.train.epoch=3 --works=1 | tee --log
python -m tfdist.mian --config=tests/test_house.py
srun python -m tfdist doctor --config=configs/digits.py --secnds=1 --gpu --config.data.batch_size=8
python -m tfdist doctr --config=configs/digits.py
```
"""
    assert path_problems(text) == [
        "there is no file configs/no_such.py",
        "there is no file tests/test_nothing.py",
        "there is no file nowhere.md",
    ]
    assert flag_problems(text) == [
        "tfdist.main has no flag --works",
        "there is no command tfdist.mian",
        "tfdist doctor has no flag --secnds",
        "there is no command tfdist doctr",
        "no command has the flag --mod",
        "there is no command tfdist.tools.doctor",
        "there is no command tfdist prepair",
    ]
    assert field_problems(text) == ["there is no field config.train.epoch", "there is no field config.data.batchsize"]


@pytest.mark.parametrize("path", configs(), ids=lambda path: path.name)
def test_shipped_configs_are_valid_and_their_specs_can_be_called(path):
    config, text = load(path), docstring_as_document(path)
    assert (
        path_problems(text) + flag_problems(text) + field_problems(text) == [] and str(path.relative_to(ROOT)) in text
    )
    validate.validate(config)
    for name, (positional, keywords) in CALLS.items():
        expected = dict.fromkeys(keywords)
        specs.partial(at(config, name), field=f"config.{name}", positional=positional, **expected)


def test_readme_begins_with_two_commands_that_do_all_the_setup():
    commands, _ = code((ROOT / "README.md").read_text())
    train, test = commands[:2]
    assert train.startswith("python3 -m venv .venv && ") and "tfdist.main --config=configs/digits.py" in train
    assert test.startswith("python3 -m venv .venv && ") and "-m pytest" in test


def test_ci_runs_readmes_second_command():
    text = (ROOT / "README.md").read_text()
    pattern = re.search(r"grep -m 1 -e '(.*?)' README\.md", (ROOT / ".ci" / "run").read_text())[1]
    assert next(line for line in text.splitlines() if pattern in line) == code(text)[0][1]
