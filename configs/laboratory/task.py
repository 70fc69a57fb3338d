"""A course, its tasks, and readers of their results. Imports no TensorFlow.

Command lines contain words in capitals, which `lines` replaces: DATA by the path of the page's data, WORKDIR by the
directory of the task, RUNS by that of the course, PUBLISHED by that of published studies.
`course.command_lines` replaces 64xREPLICAS by 64 times the replicas of the line, and removes `srun --ntasks=N` from
its start where there is no allocation.
"""

import csv
import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tfdist import configs
from tfdist.tools import child_runs

# Workdir of the task, everything that its commands have printed -> a value; None: there is none yet.
Reader = Callable[[Path, str], float | str | None]

PAGE, LAPTOP = "page", "laptop"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One quantity, as the page prints it, and where the same task finds it here."""

    quantity: str
    page: str
    yours: Reader


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One exercise of a course."""

    # The number or name on the page.
    number: str
    title: str
    # The exercise of the page, in a sentence or two.
    asks: str
    # The command lines with the page's data, networks and sizes.
    page: tuple[str, ...]
    # The same exercise for a laptop without the page's data; (): `page` is small enough.
    laptop: tuple[str, ...] = ()
    # Differences between the laptop's size and the page's.
    difference: str = ""
    answers: tuple[Answer, ...] = ()
    # The hardware of the page's answers.
    hardware: str = ""
    # Where the answers are printed, if not on the page.
    source: str = "page"
    # The page of tfdist about it.
    see: str = ""
    # Exit codes of a command after which the next one runs.
    exit_codes: tuple[int, ...] = (0,)

    def needs_data(self) -> bool:
        """Returns whether the page's size needs data that tfdist does not include, or the results of another task."""
        return any("DATA" in line or "RUNS/" in line for line in self.page)

    def earlier(self) -> list[str]:
        """Returns the numbers of the tasks whose results this one draws, which must have run."""
        return list(dict.fromkeys(re.findall(r"\bRUNS/(\w+)", " ".join(self.page))))

    def lines(self, size: str, *, runs: Path, data: str) -> list[str]:
        """Returns the command lines of a size, `PAGE` or `LAPTOP`.

        Args:
            size: what is run.
            runs: directory of the course's runs.
            data: path of the page's data; not used by a laptop's size.
        """
        chosen = self.laptop if size == LAPTOP and self.laptop else self.page
        values = {"DATA": data, "WORKDIR": str(self.workdir(size, runs)), "RUNS": str(runs / size)}
        values["PUBLISHED"] = str(configs.FOLDER / "courses" / "published")
        return [re.sub(r"\b(DATA|WORKDIR|RUNS|PUBLISHED)\b", lambda match: values[match[0]], line) for line in chosen]

    def workdir(self, size: str, runs: Path) -> Path:
        """Returns the directory of the task's results."""
        return runs / size / self.number


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A course with its exercises."""

    name: str
    # The centre or project that gives it; `course.find_course` takes it for the name of the course, too.
    centre: str
    title: str
    # The meaning of --data.
    data: str
    tasks: tuple[Task, ...]


def load(file: Path) -> Course:
    """Reads a course from a YAML file of configs/courses. `$NAME` in its tasks stands for an entry of `texts`."""
    values = yaml.safe_load(file.read_text(encoding="utf-8"))
    texts: dict[str, str] = {}
    for name, text in values.pop("texts").items():
        texts[name] = _with_texts(text, texts)
    tasks = tuple(_task(_with_texts(task, texts)) for task in values.pop("tasks"))
    return Course(**values, tasks=tasks)


def _with_texts(value: Any, texts: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return re.sub(r"\$(\w+)", lambda match: texts.get(match[1], match[0]), value)
    if isinstance(value, list):
        return tuple(_with_texts(each, texts) for each in value)
    return {key: _with_texts(each, texts) for key, each in value.items()} if isinstance(value, dict) else value


def _task(values: dict[str, Any]) -> Task:
    answers = [
        Answer(quantity=each.pop("quantity"), page=each.pop("page"), yours=_reader(each))
        for each in values.pop("answers", ())
    ]
    return Task(**values, answers=tuple(answers))


def _reader(values: dict[str, Any]) -> Reader:
    """Returns the reader of an answer: `report`, `by_epoch`, `cell` or `printed`, with its arguments."""
    readers = (report, by_epoch, cell, printed)
    [(reader, name)] = [(one, values.pop(one.__name__)) for one in readers if one.__name__ in values]
    return reader(name, **values)


def report(name: str, index: int, kind: str = "train", folder: str = "") -> Reader:
    """Reads a value of the reports of a run.

    Args:
        name: such as "loss", "accuracy" or "seconds".
        index: of the report, from 0; negative: from the end.
        kind: "train" or "evaluation".
        folder: of the run, below the task's workdir.
    """

    def read(workdir: Path, printed: str) -> float | None:
        del printed
        path = workdir / folder
        records = child_runs.reports(path, kind) if path.is_dir() else []
        return records[index].get(name) if -len(records) <= index < len(records) else None

    return read


def by_epoch(name: str, folder: str) -> Reader:
    """Reads a value of all reports of the training of a run, below the task's workdir, with four decimals each."""

    def read(workdir: Path, printed: str) -> str | None:
        del printed
        path = workdir / folder
        found = [record.get(name) for record in child_runs.reports(path)] if path.is_dir() else []
        return " ".join(f"{value:.4f}" for value in found if value is not None) or None

    return read


def cell(file: str, column: str, where: Mapping[str, str] | None = None) -> Reader:
    """Reads a cell of a CSV file in the workdir: of the last row, or of the last one with the values `where`."""

    def read(workdir: Path, printed: str) -> float | str | None:
        del printed
        path = workdir / file
        if not path.is_file():
            return None
        with path.open(newline="") as content:
            rows = [row for row in csv.DictReader(content) if where is None or where.items() <= row.items()]
        return _number(rows[-1][column]) if rows and rows[-1].get(column) else None

    return read


def printed(pattern: str) -> Reader:
    """Reads the output of the commands: the first group of the last match of a regular expression."""

    def read(workdir: Path, text: str) -> float | str | None:
        del workdir
        found = re.findall(pattern, text, re.MULTILINE)
        return _number(found[-1]) if found else None

    return read


def _number(text: str) -> float | str:
    plain = text.replace(",", "")
    if re.fullmatch(r"-?\d+", plain):
        return int(plain)
    try:
        return float(plain)
    except ValueError:
        return text.strip()
