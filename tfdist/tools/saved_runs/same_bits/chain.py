"""What metrics.jsonl says of a run: the starts, each with what it was made of, and the hashes of the states."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tfdist.config import diff
from tfdist.report import metrics_file, read_back

# Entries of an environment record whose values may change bits, besides config, code, git and versions.
_MACHINE = ("python", "processor", "threads", "onednn", "gpu", "replicas")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A start of a run."""

    # The step after which it began.
    step: int
    # Name -> value: "config.seed", "code.my_lab.py", "data.'image' of the train split", "versions.keras", "processor".
    facts: Mapping[str, Any]
    # The config, as JSON values; {}: not recorded.
    config: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The starts and states of a run, in the order of metrics.jsonl."""

    workdir: Path
    starts: tuple[Start, ...]
    # (step, hash).
    states: tuple[tuple[int, str], ...]
    # The functions that made the hashes.
    functions: frozenset[str]

    def by_step(self) -> dict[int, str]:
        """Returns the last hash of each step, in the order of the steps."""
        return dict(sorted(dict(self.states).items()))

    def hashes(self, step: int) -> list[str]:
        """Returns the hashes of the state after `step`, without repetitions, in their order."""
        return list(dict.fromkeys(value for place, value in self.states if place == step))

    def start_at(self, step: int) -> Start | None:
        """Returns the start that made the steps after `step`."""
        return next((one for one in reversed(self.starts) if one.step <= step), None)


def common_steps(first: Chain, second: Chain) -> list[int]:
    """Returns the steps after which both runs have recorded their states."""
    theirs = second.by_step()
    return [step for step in first.by_step() if step in theirs]


def first_different(first: Chain, second: Chain) -> int | None:
    """Returns the first common step whose states differ, at once or before the next step; None: all are equal."""
    common = common_steps(first, second)
    for step, following in zip(common, [*common[1:], None], strict=True):
        ours, theirs = first.hashes(step), second.hashes(step)
        if ours == theirs:
            continue
        # One of them may have recorded a state twice, before and after an evaluation, and the other only once.
        goes_on = following is not None and first.hashes(following)[0] == second.hashes(following)[0]
        if ours[0] != theirs[0] or not goes_on:
            return step
    return None


def read(workdir: Path) -> Chain:
    """Reads the records of a workdir; raises ValueError if there are none, or the file cannot be read."""
    records = read_back.read_records(workdir / metrics_file.METRICS)
    if not records and not (workdir / metrics_file.METRICS).exists():
        raise ValueError(f"{workdir} has no run: it has no {metrics_file.METRICS}. Give the workdir of a run.")
    states = [one for one in records if one.get("kind") == "state"]
    if not states:
        raise ValueError(
            f"{workdir / metrics_file.METRICS} has no hashes of states: give the workdir of a run that this version of "
            'tfdist has trained, without config.report.state_hash="none".'
        )
    return Chain(
        workdir=workdir,
        starts=tuple(_starts(records)),
        states=tuple((one["step"], one["hash"]) for one in states),
        functions=frozenset(one["function"] for one in states),
    )


def _starts(records: list[dict[str, Any]]) -> Iterator[Start]:
    step, facts, config = 0, {}, {}
    for record in records:
        kind = record.get("kind")
        if kind == metrics_file.START:
            step = record["step"]
        elif kind == "environment":
            facts, config = dict(_environment(record)), record.get("config") or {}
        elif kind == "data":  # Follows the environment of its start.
            data = {f"data.{name}": one for name, one in record["hashes"].items()}
            yield Start(step=step, facts=facts | data, config=config)


def _environment(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in diff.flatten(record.get("config") or {}):
        yield f"config.{name}", value
    for part in ("code", "versions", "git"):
        yield from ((f"{part}.{name}", value) for name, value in (record.get(part) or {}).items())
    for name in _MACHINE:
        value = record.get(name)
        if isinstance(value, dict):
            yield from ((f"{name}.{key}", one) for key, one in value.items() if key != "reason")
        elif value is not None:
            yield name, value
