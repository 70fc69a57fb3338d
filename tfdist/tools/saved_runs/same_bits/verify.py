"""Checks a finished run by training parts of it again: `python -m tfdist verify DIR --intervals=5`.

DIR is the workdir of a run of a config. The data and every kept checkpoint are hashed and compared with metrics.jsonl,
and the exported model with the last checkpoint. Then random intervals between two kept checkpoints, or the start and
the first one, are trained again, and all hashes and reported values in them are compared. Nothing in DIR changes. The
number of replicas must be that of the run, except with virtual replicas.

    tfdist verify runs/digits --intervals=2
"""

import functools
import itertools
import math
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from absl import flags

from tfdist.checkpoint import directory
from tfdist.cluster.devices import onednn
from tfdist.config import diff, tensorflow_log
from tfdist.config.command_line import tool_words
from tfdist.report import metrics_file, read_back, run_info
from tfdist.tools import child_runs
from tfdist.tools.saved_runs import saved as saved_lib
from tfdist.tools.saved_runs.saved import SavedRun

USAGE = "DIR [flags]"
# A mean depends on how many steps were in an execution, which depends on their times: sums of float64.
_RELATIVE = 1e-9


def define_flags() -> None:
    """Defines the flags; not at import, because other tools use the same names."""
    flags.DEFINE_integer("intervals", 5, "Intervals between checkpoints to train again.", lower_bound=0)
    flags.DEFINE_integer("seed", None, "Chooses the intervals. Default: another choice each time.")


parse = tool_words.need_words(1, "tfdist verify: give the workdir of one run, such as runs/digits.", most=1)


def main(argv: list[str]) -> int:
    """Prints what was checked; returns 0 if all hashes are equal, 1 if one is not, 2 if the run cannot be checked."""
    try:
        saved = saved_lib.open_run(argv[1])
        recorded, starts = _read_states(saved.workdir), _read_starts(saved.workdir)
        check(saved, starts)
    except ValueError as error:
        print(f"tfdist verify: {error}", file=sys.stderr)
        return 2
    tensorflow_log.announce()
    onednn.choose(os.environ, saved.workdir)
    for line in other_machine(starts[-1]):
        print(f"tfdist verify: {line}: the same steps may have other hashes here", file=sys.stderr)
    seed = random.SystemRandom().randrange(2**31) if flags.FLAGS.seed is None else flags.FLAGS.seed
    steps = sorted({*directory.steps(saved.checkpoints), *([0] if 0 in recorded else [])} & recorded.keys())
    intervals = list(itertools.pairwise(steps))  # Which can be trained again: from the start, and kept checkpoints.
    chosen = sorted(random.Random(seed).sample(intervals, min(flags.FLAGS.intervals, len(intervals))))
    with tempfile.TemporaryDirectory() as scratch:
        wrong = list(differences(saved, recorded, starts[-1], chosen, Path(scratch)))
    for line in wrong:
        print(line)
    shown = ", ".join(f"{first} to {last}" for first, last in chosen) or "none"
    print(f"trained again: the steps {shown}; {len(chosen)} of {len(intervals)} intervals, chosen by --seed={seed}")
    noticed = len(chosen) / len(intervals) if intervals else 0.0
    print(
        f"A run that was changed in one of its {len(intervals)} intervals would be noticed with a probability of "
        f"{noticed:.0%}; one whose kept checkpoints or first examples are others, with 100%."
    )
    print("different" if wrong else "all hashes are equal")
    return 1 if wrong else 0


def _read_states(workdir: Path) -> dict[int, str]:
    """Returns the last hash of each step; raises ValueError if there is none."""
    states = {record["step"]: record["hash"] for record in child_runs.reports(workdir, "state")}
    if not states:
        raise ValueError(
            f"{workdir / metrics_file.METRICS} has no hashes of states: give the workdir of a run that this version of "
            'tfdist has trained, without config.report.state_hash="none".'
        )
    return states


def _read_starts(workdir: Path) -> list[dict[str, Any]]:
    """Returns what each start was made of: "processor", "versions.keras", "data.'image' of the train split", ..."""
    starts, environment = [], {}
    for record in read_back.read_records(workdir / metrics_file.METRICS):
        if record.get("kind") == "environment":
            environment = record
        elif record.get("kind") == "data":  # Follows the environment of its start.
            starts.append(dict(diff.flatten(environment | {"data": record["hashes"]})))
    return starts


def check(saved: SavedRun, starts: list[dict[str, Any]]) -> None:
    """Checks that the steps of a run can be trained again here; raises ValueError, which says why, if they cannot."""
    config = saved.config
    if config is None:
        raise ValueError(f"{saved.workdir} is of a script, whose model and data cannot be built again.")
    if config.callbacks:
        raise ValueError(f"{saved.workdir} has callbacks, which may change what is trained between steps.")
    workers = {start.get("replicas.workers") for start in starts}
    if config.train.virtual_replicas is None and workers != {1}:
        raise ValueError(
            f"{saved.workdir} was trained by several workers, and this command is one: their sums have other bits. "
            "Runs with config.train.virtual_replicas can be checked on any number of replicas."
        )


def other_machine(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yields what of this machine differs from that of the run, by the facts of its last start, and changes bits."""
    now = {"processor": onednn.read_processor().name, "onednn.enabled": onednn.current(os.environ).enabled}
    versions = run_info.versions()
    now |= {f"versions.{name}": versions.get(name) for name in ("tensorflow", "keras", "numpy")}
    for name, value in now.items():
        if name in facts and facts[name] != value:
            yield f"{name} was {facts[name]} and is {value} here"


def differences(
    saved: SavedRun, recorded: dict[int, str], facts: Mapping[str, Any], chosen: list[tuple[int, int]], scratch: Path
) -> Iterator[str]:
    """Yields a line for each hash of data, checkpoints and `chosen` intervals that is not the recorded one."""
    from tfdist.tools.saved_runs.same_bits import replay as replay_lib

    replay = replay_lib.open_replay(saved.config, saved.checkpoints, scratch)
    for name, value in replay_lib.hash_data(replay.run).items():
        yield from _compare(f"data: {name}", value, facts.get(f"data.{name}"))
    steps = directory.steps(saved.checkpoints)
    for step in sorted(steps):
        if step not in recorded:
            yield f"checkpoint of step {step}: metrics.jsonl has no hash of it"
        yield from _restore(replay, step, recorded)
    if steps and (saved.workdir / saved_lib.MODEL).is_file():  # The newest checkpoint is restored now.
        for name in replay.missing_in_export(saved.workdir / saved_lib.MODEL):
            yield f"{saved_lib.MODEL}: the weight {name} is not that of the checkpoint of step {steps[0]}"
    # Kind -> step -> the last record of this step.
    reports = {
        kind: {record["step"]: record for record in child_runs.reports(saved.workdir, kind)}
        for kind in ("train", "evaluation")
    }
    for first, last in chosen:
        problem = list(_restore(replay, first, recorded))
        if problem:
            yield from () if first in steps else problem
            continue
        yield from _train(replay, recorded, reports, first, last)


def _compare_values(what: str, values: Mapping[str, float], record: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line for each of `values` that has another value in a record of metrics.jsonl."""
    for name, value in values.items():
        old = record.get(name)  # None: NaN or infinite.
        equal = not math.isfinite(value) if old is None else math.isclose(old, value, rel_tol=_RELATIVE)
        if not equal:
            yield f"{what}, step {record['step']}: {name} is {value}, and metrics.jsonl has {old}"


def _train(
    replay: Any, recorded: dict[int, str], reports: Mapping[str, dict[int, dict[str, Any]]], first: int, last: int
) -> Iterator[str]:
    """Trains an interval again, and yields a line for what is not as recorded; ends at the first such hash."""
    from tfdist.training import state
    from tfdist.training.evaluation import evaluate

    training, evaluations = reports["train"], reports["evaluation"]
    places = sorted({step for step in (*recorded, *training) if first < step <= last})
    done: dict[int, dict[str, float]] = {}
    for step, value, done[step] in replay.train(first, places):
        found = list(_compare(f"after step {step}, trained again from {first}", value, recorded.get(step)))
        yield from found
        if found:
            return  # All later ones differ, too.
        before = step - training[step]["steps"] if step in training else -1
        if before >= first:  # The report has means over the steps since then.
            totals = [one for place, one in done.items() if place > before]
            values = replay.run.objective.results(dict(functools.reduce(state.add_totals, totals)))
            yield from _compare_values("training", values, training[step])
        if step in evaluations:
            yield from _compare_values("evaluations", evaluate.evaluate(replay.tools, step), evaluations[step])


def _restore(replay: Any, step: int, recorded: dict[int, str]) -> Iterator[str]:
    try:
        yield from _compare(f"state of step {step}", replay.restore(step), recorded.get(step))
    except ValueError as error:
        yield f"state of step {step}: {error}"


def _compare(what: str, found: str, expected: str | None) -> Iterator[str]:
    if expected is not None and found != expected:
        yield f"{what}: {found}, and metrics.jsonl has {expected}"
