"""Impure Python that a graph does not show, planted in each function of a user's: refused or named by file and line.

Each planted case has an honest twin, of which nothing is said.
"""

import pathlib
import re
from typing import NamedTuple

import processes
import pytest
from launching import REPOSITORY
from parameters import slow_except
from topologies import command, environments

FILES = [REPOSITORY / "tests/support" / name for name in ("impure.py", "impure_helpers.py")]
# Place -> the flag that puts a function there.
PLACES = {
    "prepare": "--config.data.prepare.kind={}",
    "read": "--config.data.source.kind={}",
    "finish": '--config.data.finish={{"target": "tests.support.impure:finish", "kind": "{}"}}',
    "objective": "--config.objective.kind={}",
    "evaluation": "--config.objective.evaluation={}",
    "model": "--config.model.kind={}",
}
HOOK = '--config.callbacks=[{{"target": "tests.support.impure:Hook", "what": "{}"}}]'


class Case(NamedTuple):
    """A planted impurity: the flags that plant it, its mark in the files, and the flags of its honest twin."""

    planted: list[str]
    mark: str
    honest: list[str]
    workers: int = 1


def functions(place: str, names: str, workers: int = 1) -> dict[str, Case]:
    """Cases of the functions planted_NAME and honest_NAME of impure.py."""
    flag = PLACES[place].format
    return {
        f"{place} {name}": Case([flag(f"planted_{name}")], name, [flag(f"honest_{name}")], workers)
        for name in names.split()
    }


def hook(planted: str, honest: str, workers: int = 1) -> dict[str, Case]:
    """A case of the methods `planted` and `honest` of the callback of impure.py."""
    return {f"hook {planted}": Case([HOOK.format(planted)], "hook", [HOOK.format(honest)], workers)}


CASES = {
    **functions("prepare", "python numpy helper closure library eager looped generator layer written"),
    **functions("prepare", "numpy_function py_function", workers=2),
    **functions("read", "python helper library"),
    **functions("read", "numpy_function looped", workers=2),
    **functions("finish", "numpy closure written"),
    **functions("finish", "numpy_function looped", workers=2),
    **functions("objective", "numpy python helper library generator written"),
    **functions("objective", "closure numpy_function py_function looped", workers=2),
    **functions("evaluation", "helper written"),
    **functions("evaluation", "numpy_function looped", workers=2),
    **functions("model", "python looped"),
    **functions("model", "library written", workers=2),
    **hook("trainable", "nothing", workers=2),
    **hook("rate", "same_rate", workers=2),
    **hook("attribute", "weight"),
    **hook("momentum", "learning_rate"),
    "hook strength": Case(
        [HOOK.format("strength"), PLACES["prepare"].format("planted_strength")],
        "hook",
        [
            *(HOOK.format("strength"), PLACES["objective"].format("planted_strength")),
            PLACES["prepare"].format("honest_strength"),
        ],
    ),
}
# The others are slow.
QUICK = ["prepare helper", "objective library", "evaluation written", "hook rate", "hook strength"]
WARNED = r"draws|calls Python|writes variables|changed "


def lines_of(mark: str) -> list[str]:
    """Returns how messages may name the line with a mark: of a helper, or of the function that calls it."""
    return [
        rf"{path.name}(?:, line |:){number}\b"
        for path in FILES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if mark in line.partition("  # here: ")[2].split(", ")
    ]


def train(workdir: pathlib.Path, flags: list[str], workers: int) -> tuple[list[int], list[str]]:
    line = command(workdir, *flags, config="tests/configs/impure.py")
    return processes.run([line] * workers, environments(workers), timeout=300.0)


def test_there_are_40_cases_a_third_of_them_through_others_and_a_third_on_two_workers():
    assert len(CASES) >= 40
    through = ("helper", "closure", "library", "numpy_function", "rate")
    assert 3 * sum(name.endswith(through) for name in CASES) >= len(CASES)
    assert 3 * sum(case.workers == 2 for case in CASES.values()) >= len(CASES)


@pytest.mark.parametrize("name", slow_except(CASES, QUICK))
def test_what_is_impure_is_refused_by_file_and_line(tmp_path, name):
    case = CASES[name]
    codes, outputs = train(tmp_path, case.planted, case.workers)
    lines = "|".join([*lines_of(case.mark), *lines_of(name.split()[0])])
    assert 1 in codes and 0 not in codes, outputs
    assert any(re.search(lines, output) for output in outputs), outputs
    assert any(re.search(f"tfdist: .*({WARNED})", output) for output in outputs), outputs
    assert "Traceback" not in "".join(outputs), outputs


@pytest.mark.parametrize("name", slow_except(CASES, QUICK))
def test_of_an_honest_twin_nothing_is_said(tmp_path, name):
    case = CASES[name]
    codes, outputs = train(tmp_path, case.honest, case.workers)
    assert codes == [0] * case.workers, outputs
    assert not any(re.search(f"tfdist: .*({WARNED})", output) for output in outputs), outputs
