"""Trains two runs again side by side, and finds the first step after which they differ. Imports no TensorFlow."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.checkpoint import directory
from tfdist.cluster.devices import machine
from tfdist.config import saved_run
from tfdist.tools.saved_runs.same_bits import chain as chain_lib
from tfdist.tools.saved_runs.same_bits import code
from tfdist.tools.saved_runs.same_bits.chain import Chain
from tfdist.tools.saved_runs.same_bits.replayed import Replayed, ReplayError
from tfdist.tools.saved_runs.same_bits.stepwise import Task


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Which steps are trained again."""

    # The step after which both begin, and the checkpoints of A and B there; None: the start of the run.
    first: int
    checkpoints: tuple[Path | None, Path | None]
    # The first step after which the recorded states differ, and the last one that both have recorded.
    different: int
    last: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where two runs that were trained again begin to differ."""

    # "start": before the first step; "step": in a step; "between": after a step and before the next; "apart": one run
    # has made another number of steps.
    kind: str
    # The number of steps that were done then.
    step: int
    # A's hash there.
    expected: str
    # Variables that differ, and their number.
    variables: tuple[str, ...] = ()
    all_variables: int = 0
    # What the step computed in A and in B; see `inside_step.record`.
    inside: tuple[Mapping[str, Any], ...] = ()
    # Differences in arrays of `inside`, for the reader: (part, name of the feature, index of the example) -> words.
    words: Mapping[tuple[str, str, int], str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True, kw_only=True)
class Outcome:
    """What was found by training two runs again."""

    interval: Interval
    difference: Difference | None = None
    # "A" or "B" -> the first step after which its state was not the recorded one; and the last whose state was.
    not_reproduced: dict[str, int] = dataclasses.field(default_factory=dict)
    reproduced: dict[str, int] = dataclasses.field(default_factory=dict)
    # Names of facts that are others here than in the run.
    changed: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    # Variables of a recorded checkpoint that differ from those trained again, for runs in `not_reproduced`.
    damaged: dict[str, str] = dataclasses.field(default_factory=dict)


def find_interval(first: Chain, second: Chain) -> Interval | None:
    """Returns what must be trained again to find the first difference; None: all common reports are equal.

    It begins at the newest checkpoint, of either run, of a step after which the recorded states are equal.
    """
    common, different = chain_lib.common_steps(first, second), chain_lib.first_different(first, second)
    if different is None:
        return None
    equal = [step for step in common if step < different]
    for step in sorted(equal, reverse=True):
        paths = [directory.step_path(one.workdir / "checkpoints", step) for one in (first, second)]
        there = [path for path in paths if path.is_dir()]
        if there:
            found = tuple(path if path.is_dir() else there[0] for path in paths)
            return Interval(first=step, checkpoints=found, different=different, last=common[-1])
    return Interval(first=0, checkpoints=(None, None), different=different, last=common[-1])


def tasks_of(
    chains: Sequence[Chain],
    index: int,
    interval: Interval,
    scratch: Path,
    other: tuple[int, Mapping[str, Any]] | None = None,
) -> list[Task]:
    """Returns the tasks of training a run again: one, and one more for each later start with other facts.

    Args:
        index: 0 for the first of `chains`, A; 1 for B.
        scratch: a directory that does not exist yet.
        other: (step, facts): from this step on the run has these facts in the place of its own, with "config" as JSON
            values.

    Raises:
        ReplayError: the run was made by a script.
    """
    chain = chains[index]
    begin = chain.start_at(interval.first)
    if begin is None or "target" not in begin.config.get("model", {}):
        raise ReplayError(f"{chain.workdir} is of a script, whose model and data cannot be built again.")
    parts = {interval.first: {**begin.facts, "config": begin.config}}
    last = interval.last if other is None else other[0]
    for start in chain.starts:
        facts = {**start.facts, "config": start.config}
        if interval.first < start.step <= last and _task_facts(facts) != _task_facts([*parts.values()][-1]):
            parts[start.step] = facts
    if other is not None:
        parts[other[0]] = [*parts.values()][-1] | dict(other[1])
    return [_task_of(chains, index, interval, scratch, step, facts) for step, facts in parts.items()]


def _task_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those facts of a start that a task has."""
    taken = ("config", "code.", "threads.", "replicas.", "onednn.")
    return {name: value for name, value in facts.items() if name.startswith(taken)}


def _task_of(
    chains: Sequence[Chain], index: int, interval: Interval, scratch: Path, step: int, facts: Mapping[str, Any]
) -> Task:
    chain = chains[index]
    folders = saved_run.import_folders(str(chain.workdir / saved_run.FILE))
    copies = code.lay_out(facts, [one.workdir for one in chains], folders, scratch.with_name(f"{scratch.name}-{step}"))
    return Task(
        first=step,
        config=facts["config"],
        checkpoint=interval.checkpoints[index] if step == interval.first else None,
        scratch=scratch,
        modules=(*copies, *folders),
        directory=folders[0] if folders else None,
        threads=_threads(facts),
        onednn=facts.get("onednn.enabled"),
        replicas=1 if facts["config"]["train"].get("virtual_replicas") else facts.get("replicas.all", 1),
    )


def _threads(facts: Mapping[str, Any]) -> int:
    """Returns the threads in an op that a run had; 0: the default of this machine."""
    threads, cores = facts.get("threads.in an op", 0), facts.get("threads.cores", 0)
    return threads or (0 if cores == machine.num_cores() else cores)


def search(chains: Sequence[Chain], tasks: Sequence[Sequence[Task]], interval: Interval) -> Outcome:
    """Trains both runs again, and returns where they differ, and how far each has the recorded states.

    Raises ReplayError if a run cannot be trained again here.
    """
    runs = [Replayed(name, task) for name, task in zip("AB", tasks, strict=True)]
    try:
        return _search(chains, runs, interval)
    finally:
        for run in runs:
            run.close()


def _search(chains: Sequence[Chain], runs: Sequence[Replayed], interval: Interval) -> Outcome:
    outcome = Outcome(interval=interval)
    for chain, run in zip(chains, runs, strict=True):
        facts, here = chain.start_at(interval.first).facts, run.facts()
        if here["function"] not in chain.functions:
            raise ReplayError(
                f"{run.name} was trained on another kind of device: its states are hashed by "
                f"{', '.join(chain.functions)}, and those of this machine by {here['function']}."
            )
        outcome.changed[run.name] = [name for name, value in here.items() if facts.get(name, value) != value]
    seen: list[dict[int, list[str]]] = [{}, {}]
    while True:
        events = [run.event() for run in runs]
        (place, step, _), other = events[0], events[1]
        for known, (_, done, value) in zip(seen, events, strict=True):
            known.setdefault(done, []).append(value)
        if "ended" in (place, other[0]) or (place, step) != other[:2]:
            if outcome.difference is None and (place, step) != other[:2]:
                outcome.difference = Difference(kind="apart", step=min(step, other[1]), expected="")
            return outcome
        if outcome.difference is None and events[0][2] != other[2]:
            outcome.difference = _describe(runs, events[0], interval)
        if place == "before":
            for run, chain, known in zip(runs, chains, seen, strict=True):
                _compare_with_record(outcome, run, chain, step, known[step])
            differs = outcome.difference is not None and step >= interval.different
            if step >= interval.last or outcome.not_reproduced or differs:
                return outcome
        for run in runs:
            run.go()


def _compare_with_record(outcome: Outcome, run: Replayed, chain: Chain, step: int, found: list[str]) -> None:
    """Notes whether the states after a step, `found`, are those that the run has recorded."""
    recorded = chain.hashes(step)
    if step == outcome.interval.first:
        recorded = recorded[-1:]
    if not recorded or run.name in outcome.not_reproduced:
        return
    if set(recorded) <= set(found):
        outcome.reproduced[run.name] = step
        return
    outcome.not_reproduced[run.name] = step
    path = directory.step_path(chain.workdir / "checkpoints", step)
    if path.is_dir():
        outcome.damaged[run.name] = run.ask("compare", str(path))


def _describe(runs: Sequence[Replayed], event: tuple[str, int, str], interval: Interval) -> Difference:
    place, step, expected = event
    first, second = (run.ask("variables") for run in runs)
    names = tuple(name for name in first if first[name] != second.get(name))
    names += tuple(name for name in second if name not in first)
    kind = "step" if place == "after" else "between" if step > interval.first else "start"
    found = Difference(kind=kind, step=step, expected=expected, variables=names, all_variables=len({*first, *second}))
    if kind != "step":
        return found
    inside = tuple(run.ask("inside") for run in runs)
    return dataclasses.replace(found, inside=inside, words=_words(runs, inside))


def _words(runs: Sequence[Replayed], inside: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, int], str]:
    """Returns how the first example that differs does so, in each feature that was read and prepared."""
    words = {}
    for part in ("read", "prepared"):
        for name in [name for name in inside[0][part] if name in inside[1][part]]:
            rows = differing_rows(inside, part, name)
            if rows:
                first, second = (run.ask("row", (part, name, rows[0])) for run in runs)
                words[part, name, rows[0]] = _values(first, second)
    return words


def differing_rows(inside: Sequence[Mapping[str, Any]], part: str, name: str) -> list[int]:
    """Returns the places in the batch at which a feature differs."""
    first, second = inside[0][part][name], inside[1][part].get(name, [])
    return [row for row, (one, other) in enumerate(zip(first, second, strict=False)) if one != other]


def _values(first: Any, second: Any) -> str:
    if first.shape != second.shape or first.dtype != second.dtype:
        return f"{first.dtype}{list(first.shape)} in A, {second.dtype}{list(second.shape)} in B"
    places = (first != second).nonzero() if first.ndim else ()
    if not first.ndim or first.size == 1:
        return f"{first.item()} in A, {second.item()} in B"
    if not len(places[0]):  # Such as NaN of other bits.
        return "other bits"
    at = tuple(int(axis[0]) for axis in places)
    return f"{len(places[0])} of {first.size} values; at {list(at)} {first[at]} in A, {second[at]} in B"
