"""docs/courses.md names what exists: the tasks of the courses, and their commands; and every task is named."""

import pathlib
import re

import pytest
import test_documents as documents

from tfdist.configs.laboratory import course as command
from tfdist.configs.laboratory.task import LAPTOP, PAGE

pytestmark = [pytest.mark.unit, pytest.mark.docs]
TEXT = (documents.ROOT / "docs" / "courses.md").read_text()
TASKS = [(course, task) for course in command.COURSES.values() for task in course.tasks]


def test_the_commands_of_all_tasks_exist():
    values = {"runs": pathlib.Path("runs"), "data": "some/data", "env": {}}
    lines = [
        line for _, task in TASKS for size in (PAGE, LAPTOP) for line in command.command_lines(task, size, **values)
    ]
    text = "\n".join(["```", *dict.fromkeys(lines), "```"])
    assert documents.flag_problems(text) + documents.path_problems(text) + documents.field_problems(text) == []


def test_every_task_of_every_course_is_on_the_page_and_no_other():
    tasks = set(re.findall(r"tfdist course (\w+) (\w+)", TEXT))
    assert {(course.name, task.number) for course, task in TASKS} == tasks
    for name in set(re.findall(r"tfdist course (\w+)", TEXT)):
        command.find_course(name)


def test_every_row_has_three_cells_and_says_where_it_is_or_what_is_missing():
    tables = TEXT[TEXT.index("## Point by point") :]
    lines = [line for line in tables.splitlines() if line.startswith("| ")]
    found = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    found = [row for row in found if row[0] not in ("on the page", "on the pages") and set(row[0]) != {"-"}]
    assert len(found) > 110
    assert [row for row in found if len(row) != 3 or not row[0] or not row[1] or max(map(len, row)) > 230] == []
    # What is missing is explained.
    assert [row for row in found if row[1] == "-" and not row[2]] == []
