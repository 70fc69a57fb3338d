"""The recorded facts in which two runs differ, and which of them cause the first difference. Imports no TensorFlow."""

import copy
import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.tools.saved_runs.same_bits import code, first_difference
from tfdist.tools.saved_runs.same_bits.chain import Chain, Start
from tfdist.tools.saved_runs.same_bits.first_difference import Difference, Interval
from tfdist.tools.saved_runs.same_bits.replayed import Replayed, ReplayError
from tfdist.tools.saved_runs.same_bits.stepwise import Task

# Fields that change no state, but when it is looked at or where it is.
_WITHOUT_EFFECT = (
    *("config.report.", "config.evaluation.", "config.consistency.", "config.checkpoint.", "config.cluster."),
    *("config.train.call_seconds", "config.data.cache", "config.data.evaluation_", "git."),
)
# Those of them that decide what happens between steps: an evaluation may change the state.
_BETWEEN_STEPS = ("config.evaluation.", "config.data.evaluation_", "config.checkpoint.every.")
# Beginnings of names -> what they are, in the order in which they are shown.
_GROUPS = {
    "config.": "config",
    "code.": "code",
    "data.": "data",
    "replicas": "replicas",
    "versions.": "versions",
    "": "machine",
}
# Facts that `first_difference.task_of` takes together.
_TOGETHER = ("threads.", "replicas.", "onednn.", "code.")
_MAX_TRIED = 12


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """Which differing facts cause the first difference, as far as they were tried alone."""

    causes: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    # Facts that cannot be tried here, such as versions, where the records of a run could not be reproduced.
    probable: tuple[str, ...] = ()


def differing(first: Chain, second: Chain) -> dict[str, tuple[list[tuple[int, Any]], list[tuple[int, Any]]]]:
    """Returns the facts that differ: name -> of each run, its values, with the step from which each applies."""
    names = dict.fromkeys(name for one in (first, second) for start in one.starts for name in start.facts)
    pairs = {name: (_values(first, name), _values(second, name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _values(chain: Chain, name: str) -> list[tuple[int, Any]]:
    found: list[tuple[int, Any]] = []
    for start in chain.starts:
        value = start.facts.get(name)
        if not found or found[-1][1] != value:
            found.append((start.step, value))
    return found


def lines(first: Chain, second: Chain, tried: Tried | None = None) -> Iterator[str]:
    """Yields a line for each fact that differs between the runs, first those that can change a state."""
    tried, found = tried or Tried(), differing(first, second)
    effective = {
        name: pair for name, pair in found.items() if name in tried.causes or not name.startswith(_WITHOUT_EFFECT)
    }
    if not effective:
        yield (
            "Nothing that was recorded and can change a state differs: config, code, data, versions, machine, "
            "replicas. What is not recorded: faults of a device, random numbers without a seed, files that code reads."
        )
    titles = {name: "cause: " for name in tried.causes} | {name: "probable cause: " for name in tried.probable}
    for name in sorted(effective, key=lambda name: (-len(titles.get(name, "")), _group(name))):
        title, kind = titles.get(name, ""), _GROUPS[_group(name)[1]]
        text = _line(kind, name.removeprefix(_group(name)[1] if "." in _group(name)[1] else ""), effective[name])
        if name.startswith("code."):
            text += code.first_line_that_differs((first, second), name)
        note = " (not the cause of the first difference)" if name in tried.others else ""
        yield f"{title}{text}{note}"
    others = sorted(name for name in found if name not in effective)
    if others:
        yield f"differ, too, and change no state: {', '.join(others)}"


def _group(name: str) -> tuple[int, str]:
    """Returns the place of a fact in `_GROUPS`, and the beginning of its name there."""
    return next((place, one) for place, one in enumerate(_GROUPS) if name.startswith(one))


def probable(first: Chain, second: Chain) -> Tried:
    """Returns the facts that may be the cause where the records of a run could not be reproduced."""
    names = differing(first, second)
    return Tried(probable=tuple(name for name in names if not name.startswith(("config.", "replicas", "git."))))


def _line(title: str, name: str, pair: tuple[list[tuple[int, Any]], list[tuple[int, Any]]]) -> str:
    texts = []
    for values in pair:
        parts = [f"{value!r}" + (f" from step {step} on" if step else "") for step, value in values]
        texts.append(", ".join(parts) or "nothing")
    return f"{title:<9} {name}: A {texts[0]}; B {texts[1]}"


def try_out(chains: Sequence[Chain], interval: Interval, difference: Difference, scratch: Path) -> Tried:
    """Finds which of the differing facts cause the first difference: A is trained again with B's value of each.

    A single group of facts needs no trial: nothing else differs between the two runs that were trained again.
    """
    if difference.kind == "apart":  # There is no state to compare.
        return Tried()
    step = max(interval.first, difference.step - (difference.kind == "step"))
    starts = [one.start_at(step) for one in chains]
    ours, theirs = (one.facts for one in starts)
    names = [name for name in dict.fromkeys([*ours, *theirs]) if ours.get(name) != theirs.get(name)]
    between = difference.kind == "between"
    names = [
        name
        for name in names
        if name.startswith(("config.", *_TOGETHER))
        and (not name.startswith("code.") or code.is_kept(chains, name))
        and (not name.startswith(_WITHOUT_EFFECT) or (between and name.startswith(_BETWEEN_STEPS)))
    ]
    groups = _group_facts(names)
    if len(groups) == 1:
        return Tried(causes=tuple(groups[0]))
    causes: list[str] = []
    others: list[str] = []
    for number, group in enumerate(groups[:_MAX_TRIED]):
        other = (max(interval.first, *(one.step for one in starts)), _with_values(starts, group))
        try:
            tasks = first_difference.tasks_of(chains, 0, interval, scratch / f"trial{number}", other)
            same = _hash_at(tasks, difference) == difference.expected
        except ReplayError:  # A field that does not go with the others of A.
            continue
        (others if same else causes).extend(group)
    return Tried(causes=tuple(causes), others=tuple(others))


def _group_facts(names: list[str]) -> list[list[str]]:
    """Returns the facts that are tried together: those of a function whose target differs, threads, replicas."""
    heads = [name.removesuffix("target") for name in names if name.endswith(".target")]
    groups: dict[str, list[str]] = {}
    for name in names:
        head = next((one for one in (*heads, *_TOGETHER) if name.startswith(one)), name)
        groups.setdefault(head, []).append(name)
    return list(groups.values())


def _with_values(starts: Sequence[Start], names: Collection[str]) -> dict[str, Any]:
    """Returns facts of A, the first of `starts`, with B's values of `names`."""
    ours, theirs = starts
    facts = {name: theirs.facts.get(name) for name in names if not name.startswith("config.")}
    config = copy.deepcopy(dict(ours.config))
    for name in names:
        if name.startswith("config."):
            _put(config, theirs.config, name.split(".")[1:])
    return facts | {"config": config}


def _put(config: dict[str, Any], other: Mapping[str, Any], path: list[str]) -> None:
    *sections, leaf = path
    for section in sections:
        config, other = config.setdefault(section, {}), other.get(section) or {}
    if leaf in other:
        config[leaf] = other[leaf]
    else:
        config.pop(leaf, None)


def _hash_at(tasks: Sequence[Task], difference: Difference) -> str | None:
    """Trains tasks again, and returns the hash of its state where the difference is; None: it did not get there."""
    place = "after" if difference.kind == "step" else "before"
    run = Replayed("A with a value of B", tasks)
    try:
        while True:
            event = run.event()
            if event[:2] == (place, difference.step):
                return event[2]
            if event[0] == "ended" or event[1] > difference.step:
                return None
            run.go()
    finally:
        run.close()
