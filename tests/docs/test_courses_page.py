"""docs/courses.md names what exists: commands with their flags, files, fields and tasks; and every task is named."""

import ast
import re
import subprocess
import sys
import typing

import pytest
import test_documents as documents

from tfdist.config import schema, specs
from tfdist.configs.laboratory import course as command

pytestmark = [pytest.mark.unit, pytest.mark.docs]
# Prints the flags of each tool; one process per tool, because flags belong to a command.
FLAGS = """
import importlib, os
from tfdist import __main__ as tfdist
from tfdist.config import tool_flags
for name, (module, _) in {"main": ("tfdist.main", ""), **tfdist.TOOLS}.items():
    child = os.fork()
    if child == 0:
        parser, tool = tool_flags.Parser("tfdist", ""), importlib.import_module(module)
        if name == "main":
            parser.add_run_flags()
        else:
            tool.add_flags(parser)
        print("tfdist.main" if name == "main" else f"tfdist-{name}", *parser.names(), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
PAGE = (documents.ROOT / "docs" / "courses.md").read_text()
# Commands of other programs that the page names, and what tfdist's part of them begins with.
BEFORE = re.compile(r"^(srun|sbatch [\w/.]+\.sbatch)( srun)? ")


@pytest.fixture(autouse=True, scope="module")
def flags_at_once():
    """The flags of all tools from one process, instead of `--help` of each."""
    command = [sys.executable, "-c", FLAGS]
    done = subprocess.run(command, cwd=documents.ROOT, capture_output=True, text=True, timeout=60, check=True)
    found = {line.split()[0].replace("-", " ", 1): {"help", *line.split()[1:]} for line in done.stdout.splitlines()}
    assert {"config", "replicas"} < found["tfdist scaling"] and "workdir" in found["tfdist.main"]
    with pytest.MonkeyPatch.context() as patch:
        ask = documents.flags_of
        patch.setattr(documents, "flags_of", lambda command: found[command] if command in found else ask(command))
        yield


def rows(text=PAGE):
    """The cells of each row of the tables under "Point by point"."""
    tables = text[text.index("## Point by point") :]
    lines = [line for line in tables.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in cells if row[0] not in ("on the page", "on the pages") and set(row[0]) != {"-"}]


def command_problems(text):
    """Lists commands in prose and tables whose flags or fields do not exist, and tasks that no course has."""
    _, spans = documents.code(text)
    problems = []
    for span in spans:
        own = BEFORE.sub("", span)
        problems += documents.flag_problems(f"```\n{own}\n```\n")
        problems += documents.path_problems(f"`{own}`")
        if "tfdist course" in own:
            problems += task_problems(own)
        target = re.fullmatch(r"(tfdist(?:\.\w+)+):(\w+)", own)
        if target:
            problems += [] if is_defined(target[1], target[2]) else [f"there is no {own}"]
        # A value in a span, as `config.data.shards="fixed"`, is one that the field may have.
        field, _, value = own.partition("=")
        if re.fullmatch(r"config\.[\w.]+", field) and re.fullmatch(r'".*"', value):
            allowed = values_of(field)
            problems += [] if value in allowed or not allowed else [f"{field} is not {value}"]
    return problems


def is_defined(module, name):
    """Whether a module defines a function, or a package exports it; an import would also import TensorFlow."""
    path = documents.ROOT / re.sub(r"^tfdist\.configs\.", "configs.", module).replace(".", "/")
    file = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
    return file.exists() and bool(re.search(rf"^(def {name}\(|.*\bimport\b.*\b{name}\b)", file.read_text(), re.M))


def values_of(field):
    """The values that a field such as "config.data.cache" may have, in quotes; () if there are more than a few."""
    _, section, *name = field.split(".")
    hint = typing.get_type_hints(schema.Config)[section]
    return [f'"{value}"' for value in dict(specs.choices(hint)).get(".".join(name), ())] if name else []


def task_problems(line):
    """Lists the course and the task of a command that do not exist."""
    found = re.search(r"tfdist course (\w+)(?: (\w+))?", line)
    if not found:
        return []
    try:
        course = command.find_course(found[1])
        if found[2]:
            command.find_task(course, found[2])
    except ValueError as error:
        return [str(error)]
    return []


def test_the_commands_of_the_page_exist():
    blocks, _ = documents.code(PAGE)
    assert command_problems(PAGE) + [problem for line in blocks for problem in task_problems(line)] == []


def test_missing_names_are_found():
    text = "`python -m tfdist scaling --replica=2`, `python -m tfdist course cte_power 77`, "
    text += "`srun python -m tfdist x`, `tfdist.configs.networks.courses:alex`, "
    text += "`tfdist.configs.networks.courses:images`, `sbatch launch/slurm.sbatch python -m tfdist y`, "
    text += '`config.data.shards="fxed"`, `config.data.shards="fixed"`'
    assert [problem.split(". ")[0] for problem in command_problems(text)] == [
        "tfdist scaling has no flag --replica",
        "cte_power has no task '77'",
        "there is no command tfdist x",
        "there is no tfdist.configs.networks.courses:alex",
        "there is no command tfdist y",
        'config.data.shards is not "fxed"',
    ]


def test_every_row_has_three_cells_and_says_where_it_is_or_what_is_missing():
    found = rows()
    assert len(found) > 110
    assert [row for row in found if len(row) != 3 or not row[0] or not row[1] or max(map(len, row)) > 230] == []
    # What is missing is explained.
    assert [row for row in found if row[1] == "-" and not row[2]] == []


def test_a_function_of_tensorflow_is_used_in_the_file_of_its_row():
    found = {}
    for first, second, _ in rows():
        function, file = (
            re.match(r"`@?(?:tf|strategy)\.([\w.]+)`", first),
            re.fullmatch(r"`(tfdist/[\w/]+\.py)`", second),
        )
        if function and file:
            found[function[1].split(".")[-1]] = ast.walk(ast.parse((documents.ROOT / file[1]).read_text()))
    assert {"compute_average_loss", "reduce", "function"} <= found.keys()
    used = {name: {node.attr for node in nodes if isinstance(node, ast.Attribute)} for name, nodes in found.items()}
    assert [name for name, attributes in used.items() if name not in attributes] == []


def test_every_task_of_every_course_is_on_the_page():
    tasks = set(re.findall(r"tfdist course (\w+) (\w+)", PAGE))
    assert {(course.name, task.number) for course in command.COURSES.values() for task in course.tasks} == tasks
