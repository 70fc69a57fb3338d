"""Impure Python that a graph does not show, planted in each function of a user's: refused or named by file and line.

Each planted case has an honest twin, which meets the same need: nothing is said of it. A run has one twin in each
function, and those of all hooks.
"""

import itertools
import json
import re
from typing import NamedTuple

import processes
import pytest
from launching import REPOSITORY
from parameters import slow_except
from topologies import arrays, command, cut_back, environments, largest_difference

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


class Case(NamedTuple):
    """What is planted in a function, or done in a hook, and its honest twin, by their names in impure.py."""

    place: str
    planted: str
    honest: str
    workers: int = 1


def functions(place: str, names: str, workers: int = 1) -> list[Case]:
    return [Case(place, f"planted_{name}", f"honest_{name}", workers) for name in names.split()]


CASES = [
    *functions("prepare", "numpy_function", workers=2),
    *functions("prepare", "numpy helper library eager looped generator layer written"),
    *functions("read", "numpy_function looped", workers=2),
    *functions("read", "helper library"),
    *functions("finish", "numpy_function looped", workers=2),
    *functions("finish", "numpy written"),
    *functions("objective", "numpy_function looped", workers=2),
    *functions("objective", "numpy helper library generator written"),
    *functions("evaluation", "numpy_function looped", workers=2),
    *functions("evaluation", "helper written"),
    *functions("model", "library written", workers=2),
    *functions("model", "looped"),
    Case("hook", "trainable", "same_trainable", workers=2),
    Case("hook", "rate", "same_rate", workers=2),
    Case("hook", "attribute", "weight"),
    Case("hook", "momentum", "learning_rate"),
    Case("hook", "strength", "own"),
    Case("hook", "read_by_objective", "of_class"),
]
NAMES = {f"{case.place} {case.planted.removeprefix('planted_')}": case for case in CASES}
# The others are slow.
QUICK = ["prepare helper", "prepare looped", "read numpy_function", "evaluation written", "hook read_by_objective"]
NAMED = r"draws|calls Python|writes variables|changed |not saved"
# Functions that a case needs in other places.
NEEDED = {"strength": PLACES["prepare"].format("planted_strength")}
NEEDED["read_by_objective"] = PLACES["objective"].format("planted_strength")
SETTABLE = '--config.learning_rate.schedule={"target": "tfdist.zoo.schedules:settable"}'


def hooks(*names: str) -> str:
    return f"--config.callbacks={json.dumps([{'target': 'tests.support.impure:Hook', 'what': name} for name in names])}"


def lines_of(*marks: str) -> str:
    """Returns how messages may name the lines with these marks: of a helper, or of the function that calls it."""
    return "|".join(
        rf"{path.name}(?:, line |:){number}\b"
        for path in FILES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if {*marks} & {*line.partition("  # here: ")[2].split(", ")}
    )


def train(workdir, flags: list[str], workers: int) -> tuple[list[int], list[str]]:
    line = command(workdir, *flags, config="tests/configs/impure.py")
    return processes.run([line] * workers, environments(workers), timeout=300.0)


@pytest.mark.parametrize("name", slow_except(NAMES, QUICK))
def test_what_is_impure_is_refused_by_file_and_line(tmp_path, name):
    place, planted, _, workers = NAMES[name]
    flags = [hooks(planted) if place == "hook" else PLACES[place].format(planted)]
    codes, outputs = train(tmp_path, [*flags, *([NEEDED[planted]] if planted in NEEDED else [])], workers)
    assert 1 in codes and 0 not in codes, outputs
    said = "".join(outputs)
    assert re.search(lines_of(place, planted.removeprefix("planted_")), said), said
    assert re.search(f"tfdist: .*({NAMED})", said) and "Traceback" not in said, said


def twins() -> list[tuple[str, list[Case]]]:
    """The cases in groups, of each function one."""
    by_place = [[case for case in CASES if case.place == place] for place in PLACES]
    groups = [[case for case in group if case] for group in itertools.zip_longest(*by_place)]
    return [(f"{max(case.workers for case in group)} {group[0].honest}", group) for group in groups]


GROUPS = dict(twins())


@pytest.mark.slow
@pytest.mark.parametrize("name", GROUPS)
def test_of_honest_twins_nothing_is_said(tmp_path, name):
    flags = [PLACES[case.place].format(case.honest) for case in GROUPS[name]]
    flags += [hooks(*(case.honest for case in CASES if case.place == "hook")), SETTABLE]
    flags += ['--config.adapt={"target": "tests.support.impure:adapt"}']
    codes, outputs = train(tmp_path, flags, int(name[0]))
    assert not any(codes), outputs
    assert not any(re.search(f"tfdist: .*({NAMED})", output) for output in outputs), outputs


def test_a_callbacks_state_in_its_class_is_resumed_and_what_cannot_be_saved_is_named(tmp_path):
    """The class counts epochs, by which the hook sets the learning rate."""
    flags = [hooks("of_class", "opaque"), SETTABLE, "--config.checkpoint.every.epochs=1"]
    codes, outputs = train(tmp_path / "whole", flags, 1)
    again = cut_back(tmp_path / "whole", tmp_path / "resumed", newest=3)
    found = train(again, flags, 1)
    assert codes + found[0] == [0, 0], outputs + found[1]
    names = ("numbers (count)", "bytes (bytearray)", "slotted (Slotted)")
    said = f": {', '.join(f'Hook#2.{name}' for name in names)}. "
    assert outputs[0].count("not saved in checkpoints") == outputs[0].count(said) == 1, outputs
    assert largest_difference(arrays(tmp_path / "whole", step=6), arrays(again, step=6)) == 0.0
