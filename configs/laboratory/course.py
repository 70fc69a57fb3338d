"""Runs an exercise of one of four public courses: `python -m tfdist course cte_power 7`.

Prints what the page asks and the command that does it, and runs this command. At the end it prints the page's answer,
with its hardware, beside yours.

    python -m tfdist course                                        the courses
    python -m tfdist course cte_power                              its tasks
    python -m tfdist course cte_power 7                            a size for a laptop, without the page's data
    python -m tfdist course cte_power 7 --data=DIR                 as on the page
    python -m tfdist course files DIR                              copies the notebook and the programs of the courses

In a Slurm allocation the same command runs over its tasks. Finished runs are not repeated: another --workdir starts
again.
"""

import argparse
import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfdist import configs
from tfdist.cluster.devices import host_gpus
from tfdist.cluster.discovery.launchers import slurm
from tfdist.config import text, tool_flags
from tfdist.configs.laboratory import task as task_lib
from tfdist.configs.laboratory.task import LAPTOP, PAGE, Course, Task
from tfdist.tools import child_runs, measure, tables
from tfdist.tools.start import shipped

USAGE = "[NAME [TASK]] [flags]"
COURSES = {file.stem: task_lib.load(file) for file in sorted(configs.FOLDER.glob("courses/*.yaml"))}
# Commands that every task of an allocation runs; a study starts its own job steps.
_PARALLEL = re.compile(r"python (-m (tfdist\.main|tfdist\.run|tfdist doctor|tfdist all_reduce)\b|\S+\.py\b)")
# The start of a line for N tasks of an allocation; without an allocation the line runs on this machine.
_TASKS = re.compile(r"srun --ntasks=(\d+) ")
# In an allocation `srun` starts these workers.
_LAUNCHED = re.compile(r"python -m tfdist\.launch --workers=(\d+) -- (?=(--)?)")
# In an allocation, its tasks replace the logical devices of the line.
_DEVICES = re.compile(r" --(?:config\.cluster\.)?logical_devices=(\d+)")
_BATCH = re.compile(r"\b(\d+)xREPLICAS\b")
# Programs and batch files that come with tfdist.
_FILE = re.compile(r"(?<![\w/])(docs/courses|launch)/[\w/.]+")
_LOG = "course.log"
# Copied by `course files`.
_FILES = (
    "docs/notebooks/digits.ipynb",
    *(f"docs/courses/{name}.py" for name in ("line_exercise", "jean_zay_data", "jean_zay_fit", "jean_zay_loop")),
)


def add_flags(parser: tool_flags.Parser) -> None:
    """Adds the flags and words."""
    parser.add_argument("name", nargs="?", default="", help="The course; without it, all are listed.")
    parser.add_argument("task", nargs="?", default="", help="The task; without it, the tasks are listed.")
    parser.add_argument("--list", action="store_true", help="List the tasks with their commands.")
    parser.add_argument("--data", metavar="DIR", help="The page's data. Default: a size for a laptop, without it.")
    meaning = "What is run: as on the page, or a size for a laptop. Default: see --data."
    parser.add_argument("--size", default="auto", choices=["auto", PAGE, LAPTOP], help=meaning)
    parser.add_argument("--dry_run", action="store_true", help="Print the commands, and do not run them.")
    parser.add_workdir("runs/course", "Directory of the results of all tasks.")


def find_course(name: str) -> Course:
    """Returns the course of a name, or of the centre that gives it.

    Raises:
        ValueError: there is none; names the nearest.
    """
    names = COURSES | {course.centre: course for course in COURSES.values()}
    if name.lower() in names:
        return names[name.lower()]
    raise ValueError(f"there is no course {name!r}. {_nearest(name, names)}The courses: {', '.join(COURSES)}.")


def find_task(course: Course, number: str) -> Task:
    """Returns the task of a number or name.

    Raises:
        ValueError: there is none; names the nearest.
    """
    names = {task.number.lower(): task for task in course.tasks}
    if number.lower() in names:
        return names[number.lower()]
    every = ", ".join(task.number for task in course.tasks)
    raise ValueError(f"{course.name} has no task {number!r}. {_nearest(number, names)}Its tasks: {every}.")


def choose_size(task: Task, size: str, data: str | None, env: Mapping[str, str]) -> str:
    """Returns `PAGE` or `LAPTOP`.

    Args:
        task: the task to run.
        size: the flag.
        data: path of the page's data; None: not given.
        env: the environment: in an allocation, tasks that need no data have the page's size.

    Raises:
        ValueError: the page's size needs data that are not given.
    """
    if size == "auto":
        ready = data if task.needs_data() else not task.laptop or slurm.in_allocation(env)
        size = PAGE if ready else LAPTOP
    if size == PAGE and task.needs_data() and not data:
        raise ValueError(f"task {task.number} in the page's size needs --data; --size=laptop does not.")
    return size


def command_lines(task: Task, size: str, *, runs: Path, data: str, env: Mapping[str, str]) -> list[str]:
    """Returns the commands of a task as they are typed here.

    In an allocation, lines that every Slurm task runs begin with `srun`, and these tasks are the replicas, instead of
    logical devices or of workers that tfdist.launch starts. "64xREPLICAS" becomes 64 times the replicas of the line.
    """
    typed = _in_allocation if slurm.in_allocation(env) else _on_this_machine
    return [_with_shipped_paths(typed(line, env)) for line in task.lines(size, runs=runs, data=data)]


def _with_shipped_paths(line: str) -> str:
    """Returns a line with the paths of the programs and batch files of the installed tfdist, if there are none here."""
    return _FILE.sub(lambda file: file[0] if Path(file[0]).is_file() else f"{shipped.find(file[0])}", line)


def _on_this_machine(line: str, env: Mapping[str, str]) -> str:
    alone = _TASKS.match(line)
    started = _LAUNCHED.search(line) or _DEVICES.search(line)
    replicas = int((alone or started)[1]) if alone or started else len(host_gpus.assigned_gpus(env))
    return _of_replicas(_TASKS.sub("", line), replicas or 1)


def _in_allocation(line: str, env: Mapping[str, str]) -> str:
    launched = _LAUNCHED.match(line)
    if launched:
        line = _LAUNCHED.sub("python -m tfdist.main " if launched[2] else "python ", line)
        line = f"srun --ntasks=1 {line}" if launched[1] == "1" else line
    line = _DEVICES.sub("", line)
    tasks = _TASKS.match(line)
    srun = "srun " if _PARALLEL.match(line) else ""
    return _of_replicas(srun + line, int(tasks[1]) if tasks else slurm.num_replicas(env))


def _of_replicas(line: str, replicas: int) -> str:
    return _BATCH.sub(lambda batch: str(int(batch[1]) * replicas), line)


def overview(courses: Sequence[Course], *, base: Path, with_commands: bool) -> str:
    """Returns the list of the tasks of courses; `with_commands`: with the commands of the page's size.

    `base` is the directory of the results of all courses.
    """
    lines = []
    for course in courses:
        lines += [f"{course.name}: {course.title} ({course.centre})"]
        for task in course.tasks:
            lines.append(f"  {task.number:<12} {task.title}")
            if with_commands:
                lines += [f"      {line}" for line in task.lines(PAGE, runs=base / course.name, data="DATA")]
        lines.append(f"  DATA: {course.data}" if with_commands else "")
    if with_commands:
        lines.append(
            "REPLICAS: the tasks of the allocation, or the GPUs of this machine. Without an allocation, omit srun."
        )
    return "\n".join([*lines, "tfdist course NAME TASK runs a task; tfdist docs exercise is a plan for a class."])


def introduction(course: Course, task: Task, size: str) -> str:
    """Returns what the page asks, and what the chosen size leaves out."""
    lines = [f"{course.title}, task {task.number}: {task.title}", *textwrap.wrap(task.asks, 100)]
    if size == LAPTOP and task.difference:
        lines += textwrap.wrap(f"Laptop size: {task.difference}", 100)
    return "\n".join([*lines, f"See {task.see}."] if task.see else lines)


def comparison(task: Task, size: str, workdir: Path) -> str:
    """Returns a table of the page's answers and those in the workdir, with the hardware of both; "": there are none."""
    if not task.answers:
        return ""
    log = workdir / _LOG
    output = log.read_text(errors="replace") if log.is_file() else ""
    rows = [(each.quantity, each.page, _format(each.yours(workdir, output))) for each in task.answers]
    note = f" Laptop size: {task.difference}" if size == LAPTOP and task.difference else ""
    hardware = f"{task.source}: {task.hardware}\n" if task.hardware else ""
    return f"{tables.text(('', task.source, 'yours'), rows)}\n{hardware}yours: {measure.machine()}.{note}"


def page_answers(task: Task) -> str:
    """Returns a table of the page's answers, with their hardware; "": there are none."""
    if not task.answers:
        return ""
    table = tables.text(("", task.source), [(each.quantity, each.page) for each in task.answers])
    hardware = f"{task.source}: {task.hardware}\n" if task.hardware else ""
    return f"{table}\n{hardware}Not run (--dry_run). A run prints its own values beside these."


def run_line(line: str, log: Path) -> int:
    """Runs a command, and writes what it prints to the terminal and to the end of `log`; returns its exit code.

    Raises:
        ValueError: there is no such program or config file here.
    """
    words = shlex.split(line)
    if shutil.which(words[0]) is None and words[0] != "python":
        raise ValueError(f"there is no {words[0]} on this machine, which the page's size of this task needs.")
    for file in [word.removeprefix("--config=") for word in words if word.startswith("--config=")]:
        if not Path(configs.find(file)).is_file():
            raise ValueError(f"there is no config {file}.")
    command = [sys.executable if word == "python" else word for word in words]
    return child_runs.run_command(command, log, dict(os.environ) | {"PYTHONUNBUFFERED": "1"}, shown=True)


def copy_files(folder: Path) -> int:
    """Copies the notebook and the programs of the courses, for students to change; returns the exit code 0.

    Raises:
        FileExistsError: there is a file of this name already.
    """
    targets = [folder / Path(name).name for name in _FILES]
    there = [target for target in targets if target.exists()]
    if there:
        raise FileExistsError(f"{there[0]} exists: name another folder, or remove it.")
    folder.mkdir(parents=True, exist_ok=True)
    for name, target in zip(_FILES, targets, strict=True):
        shutil.copyfile(shipped.find(name), target)
        print(target)
    return 0


def main(args: argparse.Namespace) -> int:
    """Lists courses or tasks, or runs a task; returns the exit code of its first command that fails.

    Raises:
        ValueError: a name is unknown, or the task cannot run here.
    """
    if args.name == "files":
        return copy_files(Path(args.task or "course"))
    if not args.task:
        chosen = [find_course(args.name)] if args.name else list(COURSES.values())
        print(overview(chosen, base=args.workdir, with_commands=args.list))
        return 0
    course = find_course(args.name)
    task, runs = find_task(course, args.task), args.workdir / course.name
    size = choose_size(task, args.size, args.data, os.environ)
    workdir = task.workdir(size, runs)
    missing = [number for number in task.earlier() if not (runs / size / number).is_dir()]
    if missing and not args.dry_run:
        raise ValueError(
            f"task {task.number} draws the results of task {' and '.join(missing)}, which are not in {runs / size}. "
            f"Run first: tfdist course {course.name} {missing[0]}"
        )
    data = os.path.expandvars(os.path.expanduser(args.data or ""))
    print(introduction(course, task, size), flush=True)
    for line in command_lines(task, size, runs=runs, data=data, env=os.environ):
        print(f"\n$ {line}", flush=True)
        if args.dry_run:
            continue
        code = run_line(line, workdir / _LOG)
        if code:
            print(f"\ntfdist course: the command above exited with code {code}.", flush=True)
        if code not in task.exit_codes:
            return code
    answers = page_answers(task) if args.dry_run else comparison(task, size, workdir)
    print(f"\n{answers}" if answers else "")
    return 0


def _nearest(word: str, names: Mapping[str, object]) -> str:
    near = text.closest(word.lower(), names, 0.4)
    return f"Nearest: {near}. " if near else ""


def _format(value: float | str | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else value
