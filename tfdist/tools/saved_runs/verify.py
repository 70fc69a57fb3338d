"""Checks a finished run by training parts of it again: `python -m tfdist verify DIR --intervals=5`.

DIR is the workdir of a run of a config. A few examples and every kept checkpoint are hashed, and compared with
metrics.jsonl. Then random intervals between two kept checkpoints, or between the start and the first checkpoint, are
trained again, and all hashes in them are compared. Nothing in DIR changes. The number of replicas must be that of the
run, except with virtual replicas.

    tfdist verify runs/digits --intervals=2

Exit codes: 0 all are equal; 1 there are differences, which are listed; 2 the run cannot be checked.
"""

import argparse
import itertools
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tfdist.checkpoint import directory
from tfdist.cluster.devices import onednn
from tfdist.config import diff, tensorflow_log, tool_flags
from tfdist.report import metrics_file, run_info
from tfdist.tools import child_runs
from tfdist.tools.saved_runs import saved as saved_lib
from tfdist.tools.saved_runs.saved import SavedRun

USAGE = "DIR [flags]"


def add_flags(parser: tool_flags.Parser) -> None:
    """Adds the flags and words."""
    parser.add_argument("dir", metavar="DIR", help="The workdir of a run.")
    meaning = "Intervals between checkpoints to train again. Default: 5."
    parser.add_argument("--intervals", metavar="N", type=tool_flags.at_least(0), default=5, help=meaning)


def main(args: argparse.Namespace) -> int:
    """Prints what is different, and a sentence about what was checked; returns the exit code."""
    try:
        saved = saved_lib.open_run(args.dir)
        recorded, facts = _read_states(saved), _read_facts(saved)
        _check(saved, facts)
    except ValueError as error:
        print(f"tfdist verify: {error}", file=sys.stderr)
        return 2
    tensorflow_log.announce()
    onednn.choose(os.environ, saved.workdir)
    for line in _other_machine(facts):
        print(f"tfdist verify: {line}: the same steps may have other hashes here", file=sys.stderr)
    steps = sorted({*directory.steps(saved.checkpoints), *([0] if 0 in recorded else [])} & recorded.keys())
    intervals = list(itertools.pairwise(steps))  # An interval begins at step 0 or a kept checkpoint.
    chosen = sorted(random.sample(intervals, min(args.intervals, len(intervals))))
    with tempfile.TemporaryDirectory() as scratch:
        try:
            replay = _Replay(saved, recorded, facts, Path(scratch))
        except ValueError as error:
            print(f"tfdist verify: {error}", file=sys.stderr)
            return 2
        wrong = list(replay.differences(chosen))
    for line in wrong:
        print(line)
    shown = ", ".join(f"{first} to {last}" for first, last in chosen) or "none"
    checked = (
        f"examples of the data, {len(steps)} kept states, and {len(chosen)} of {len(intervals)} intervals that were "
        f"trained again, the steps {shown}"
    )
    print(f"the lines above list the differences; compared: {checked}" if wrong else f"all hashes are equal: {checked}")
    return int(bool(wrong))


def _read_states(saved: SavedRun) -> dict[int, str]:
    """Returns the last hash of each step; raises ValueError if there is none."""
    states = {record["step"]: record["hash"] for record in child_runs.reports(saved.workdir, "state")}
    if not states:
        raise ValueError(
            f"{saved.workdir / metrics_file.METRICS} has no hashes of states: give the workdir of a run that this "
            'version of tfdist has trained, without config.report.state_hash="none".'
        )
    return states


def _read_facts(saved: SavedRun) -> dict[str, Any]:
    """Returns facts about the last start, such as "processor", "versions.keras", "data.'image' of the train split"."""
    hashes = child_runs.last_report(saved.workdir, "data").get("hashes", {})
    return dict(diff.flatten(child_runs.last_report(saved.workdir, "environment") | {"data": hashes}))


def _check(saved: SavedRun, facts: Mapping[str, Any]) -> None:
    """Raises ValueError, with the reason, if the steps of a run cannot be trained again here."""
    config = saved.config
    if config.callbacks:
        raise ValueError(f"{saved.workdir} has callbacks, which may change what is trained between steps.")
    if config.train.virtual_replicas is None and facts.get("replicas.workers") != 1:
        raise ValueError(
            f"{saved.workdir} was trained by several workers; this command uses one, which rounds sums differently. "
            "Runs with config.train.virtual_replicas can be checked on any number of replicas."
        )


def _other_machine(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yields the differences from the machine of the run that may change the bits of results."""
    now = {"processor": onednn.read_processor().name, "onednn.enabled": onednn.enabled()}
    versions = run_info.versions()
    now |= {f"versions.{name}": versions.get(name) for name in ("tensorflow", "keras", "numpy")}
    for name, value in now.items():
        if name in facts and facts[name] != value:
            yield f"{name} was {facts[name]} and is {value} here"


def _compare(what: str, found: str, expected: str | None) -> Iterator[str]:
    if expected is not None and found != expected:
        yield f"{what}: {found}, and metrics.jsonl has {expected}"


class _Replay:
    """A run that is built again, with an empty directory as its workdir."""

    def __init__(self, saved: SavedRun, recorded: Mapping[int, str], facts: Mapping[str, Any], scratch: Path):
        from tfdist.checkpoint import format as checkpoint_format
        from tfdist.training import opening, setup

        self._saved, self._recorded, self._facts = saved, recorded, facts
        self._run = setup.build_run(saved.config, scratch)
        here = self._run.cluster.num_replicas
        if saved.config.train.virtual_replicas is None and facts.get("replicas.all", here) != here:
            raise ValueError(
                f"{saved.workdir} was trained on {facts['replicas.all']} replicas, and there are {here} here: sums are "
                "rounded differently. Verify it on a machine with as many GPUs."
            )
        self._services = opening.make_silent_services(self._run)
        self._initial = checkpoint_format.snapshot(self._run.variables)

    def differences(self, chosen: list[tuple[int, int]]) -> Iterator[str]:
        """Yields a line for each hash of data, checkpoints and `chosen` intervals that differs from its record."""
        from tfdist.training.consistency import hashing, start_checks

        hashes = start_checks.hash_examples(self._run.feed.examples(start_checks.EXAMPLES))
        for name, value in (hashes["columns"] | hashes["common"]).items():
            yield from _compare(f"data: {name}", hashing.as_text(value), self._facts.get(f"data.{name}"))
        steps = sorted(directory.steps(self._saved.checkpoints))
        for step in steps:
            if step not in self._recorded:
                yield f"checkpoint of step {step}: metrics.jsonl has no hash of it"
            yield from self._restore(step)
        for first, last in chosen:
            problem = list(self._restore(first))
            yield from [] if first in steps else problem
            yield from [] if problem else self._train(first, last)

    def _restore(self, step: int) -> Iterator[str]:
        """Restores the checkpoint of `step`; for 0, if there is none, the initial state."""
        from tfdist.checkpoint import format as checkpoint_format
        from tfdist.checkpoint import restore

        path = directory.step_path(self._saved.checkpoints, step)
        try:
            if step == 0 and not path.is_dir():
                for name, array in self._initial.items():
                    checkpoint_format.tf_variable(self._run.variables[name]).assign(array)
            else:
                restore.restore(self._run.cluster, checkpoint_format.verify(path), self._run.variables)
        except ValueError as error:  # The checkpoint is damaged, or of another model or optimizer.
            yield f"state of step {step}: {error}"
            return
        yield from _compare(f"state of step {step}", self._hash(), self._recorded.get(step))

    def _hash(self) -> str:
        from tfdist.training.consistency import comparison

        return comparison.Comparison(cluster=self._run.cluster, variables=self._run.variables).check(step=0)

    def _train(self, first: int, last: int) -> Iterator[str]:
        """Trains an interval again, up to the first hash that differs, and yields a line about that one."""
        batches, step = self._run.feed.open_training(first, self._run.total_steps), first
        for stop in sorted(one for one in self._recorded if first < one <= last):
            while step < stop:
                step += self._services.train_runner.execute(batches, stop - step).steps
            what = f"after step {step}, trained again from {first}"
            found = list(_compare(what, self._hash(), self._recorded[step]))
            yield from found
            if found:
                return  # All later ones differ, too.
