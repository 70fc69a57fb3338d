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
