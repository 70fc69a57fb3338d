"""What an audited step has found: which replica computes wrongly, or holds another state; and what the run does then.

`training/step/variants/audited_step.py` makes the hashes that are judged here.
"""

import collections
import contextlib
import dataclasses
from collections.abc import Container, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.checkpoint import directory
from tfdist.cluster import interruption
from tfdist.config import text as text_lib
from tfdist.training import loop
from tfdist.training.consistency import mismatch
from tfdist.training.run import Run

# Directory of the checkpoints that were saved after the last audit that found no difference.
UNAUDITED = "unaudited"
_MAX_NAMED = 5


class AuditError(ArithmeticError):
    """A replica computes other bits than others from the same numbers, or holds another state."""

    exit_code = interruption.EXIT_MISMATCH

    def __init__(self, text: str, step: int):
        super().__init__(text)
        self.step = step


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The hashes of a replica r in an audited step.

    Those of its variables; then of its share r; of the share r + 1; and, computed again, of the shares r, r + 1, r + 2.
    """

    # Names of the variables, and of the tensors of a share.
    states: tuple[str, ...]
    values: tuple[str, ...]
    replicas: int

    @property
    def size(self) -> int:
        return self.replicas * (len(self.states) + 5 * len(self.values))

    def split(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns hashes of variables, [replicas, states], and of shares, [replicas, 5, values]."""
        rows = rows.reshape(self.replicas, -1)
        states, values = np.split(rows, [len(self.states)], axis=1)
        return states, values.reshape(self.replicas, 5, -1)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is wrong with one replica."""

    replica: int
    # "state": it holds another one. "persistent", "transient": it computes wrongly, also when it is repeated, or not.
    # "one of two": two replicas differ, and no third one says which of them is right.
    kind: str
    # The variables of the state, or whose gradients or changes differ.
    names: tuple[str, ...]


def judge(layout: Layout, rows: np.ndarray) -> list[Fault]:
    """Returns the faults, given int64 [layout.size]: the hashes of all replicas in a step with a difference."""
    states, values = layout.split(rows)
    faults = [
        Fault(replica=replica, kind="state" if certain else "one of two", names=names)
        for replica, certain, names in _find_states(layout.states, states)
    ]
    others = {fault.replica for fault in faults}  # From another state follow other gradients.
    for replica, kind, names in _find_results(layout, values):
        if replica not in others:
            faults.append(Fault(replica=replica, kind=kind, names=names))
    return faults


def _find_states(names: Sequence[str], hashes: np.ndarray) -> Iterator[tuple[int, bool, tuple[str, ...]]]:
    """Yields (replica, whether most others agree, names of the columns that differ) of hashes [replicas, names]."""
    usual, certain = _most(hashes)
    for replica, row in enumerate(hashes):
        if not certain or (row != usual).any():
            different = (hashes != hashes[0]).any(axis=0) if not certain else row != usual
            if different.any():
                yield replica, certain, tuple(np.array(names, object)[different])


def _most(rows: np.ndarray) -> tuple[np.ndarray, bool]:
    """Returns the most frequent row, and whether no other one is as frequent."""
    counts = collections.Counter(row.tobytes() for row in rows).most_common(2)
    return np.frombuffer(counts[0][0], rows.dtype), len(counts) == 1 or counts[0][1] > counts[1][1]


def _find_results(layout: Layout, values: np.ndarray) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Yields (replica, kind, names) where results for a share, int64 [replicas, 5, values], are not the usual ones."""
    count = layout.replicas
    wrong: dict[int, list[tuple[bool, np.ndarray]]] = collections.defaultdict(list)  # (repeated, which values)
    undecided = []
    for share in range(count):
        # (replica, repeated): with two replicas the third is the first.
        before, third = (share - 1) % count, (share - 2) % count
        opinions = [(share, False, values[share, 0]), (before, False, values[before, 1])]
        opinions += [(share, True, values[share, 2]), (before, True, values[before, 3])]
        opinions += [(third, True, values[third, 4])] if count > 2 else []
        usual, certain = _most(np.stack([row for *_, row in opinions]))
        undecided += [] if certain else [opinions]
        for replica, repeated, row in opinions if certain else ():
            if (row != usual).any():
                wrong[replica].append((repeated, row != usual))
    names = np.array(layout.values, object)
    for replica, found in sorted(wrong.items()):
        different = np.any([one for _, one in found], axis=0)
        kind = "persistent" if any(repeated for repeated, _ in found) else "transient"
        yield replica, kind, tuple(names[different])
    for replica, different in sorted(_find_undecided(undecided, wrong).items()):
        yield replica, "one of two", tuple(names[different])


def _find_undecided(
    undecided: Sequence[Sequence[tuple[int, bool, np.ndarray]]], wrong: Container[int]
) -> dict[int, Any]:
    """Returns replica -> which values differ, of those that differ in a share without those that are `wrong`."""
    found: dict[int, Any] = {}
    for opinions in undecided:
        rest = [(replica, row) for replica, _, row in opinions if replica not in wrong]
        rows = np.stack([row for _, row in rest]) if rest else np.zeros([1, 0])
        if (different := (rows != rows[0]).any(axis=0)).any():
            for replica, _ in rest:
                found[replica] = found.get(replica, False) | different
    return found


_TEXTS = {
    "state": "holds another state than most: {}",
    "persistent": "computes other bits than the others, and again when it is repeated (a persistent fault): {}",
    "transient": "computed other bits than the others once, and not when it was repeated (a transient fault): {}",
    "one of two": "this replica or another one is wrong, and no third one says which: {}",
}


def describe(run: Run, faults: Sequence[Fault], step: int) -> str:
    """Returns a line for each fault, with worker, host, device and variables."""
    names, local = mismatch.replica_names(run.cluster), run.cluster.num_replicas // run.cluster.num_workers
    lines = [f"The audit of step {step} (config.consistency.audit) has found a difference:"]
    for fault in faults:
        device = f"{run.cluster.device_type}:{fault.replica % local}"
        text = _TEXTS[fault.kind].format(text_lib.list_names(fault.names, _MAX_NAMED))
        lines.append(f"{names[fault.replica]}, device {device}: {text}")
    if not faults:
        lines.append("the hashes of all tensors agree: those that were compared first were computed or sent wrongly")
    return "\n  ".join(lines)


@contextlib.contextmanager
def check_after(run: Run, layout: Layout, found: tf.Variable) -> Iterator[None]:
    """As `run.execution_context`, and raises AuditError if an audited step of the execution has found a difference."""
    with run.execution_context():
        yield
    values = found.numpy()
    if values[0]:
        found.assign(tf.zeros_like(values))  # Another start in this process begins without it.
        raise AuditError(describe(run, judge(layout, values[1:]), int(values[0])), int(values[0]))


def train(run: Run, *, allow_config_changes: bool = False) -> int:
    """As `loop.train`, of a run with audits: after a difference it ends, or goes back to the newest audited checkpoint.

    Checkpoints of steps after the last audit without a difference are moved to `UNAUDITED` in the workdir.

    Raises:
        AuditError: names the replicas, the variables, and the checkpoint that a restart resumes from.
    """
    options, started, gone_back = run.config.consistency.audit, run, 0
    while True:
        try:
            return loop.train(started, allow_config_changes=allow_config_changes)
        except AuditError as error:
            text = f"{error}\n{_set_aside(run, error.step - options.every)}"
            if reason := _reason_to_end(run, gone_back):
                raise AuditError(f"{text} {reason}", error.step) from None
        gone_back += 1
        note = f"WARNING: {text} The run goes back to it: {gone_back} of at most {options.limit} times."
        started = dataclasses.replace(run, log=dataclasses.replace(run.log, notes=(note,)))


def _reason_to_end(run: Run, gone_back: int) -> str:
    """Returns why a run with a difference ends and what to do, as sentences; "": it goes back. Collective."""
    options = run.config.consistency.audit
    if options.action == "end":
        return "Leave out that host or device, and run the same command to continue."
    if run.cluster.broadcast(_newest(run)) < 0:
        return "The run cannot go back: run the same command to start again."
    if gone_back >= options.limit:
        often = f"{gone_back} times before, which is the maximum (config.consistency.audit.limit)"
        return f"The run has gone back {often}: leave out that host or device, and run the same command to continue."
    return ""


def _set_aside(run: Run, last: int) -> str:
    """Moves the checkpoints of steps after `last` out of the way, and returns which is the newest then. Collective."""
    later = []
    if run.cluster.is_chief and run.workdir is not None:
        later = [step for step in directory.steps(run.checkpoints) if step > max(last, 0)]
    if later:
        parent = run.workdir / UNAUDITED
        target = parent / f"{len(list(parent.iterdir())) + 1 if parent.is_dir() else 1}"
        target.mkdir(parents=True)
        for step in later:
            place = directory.step_path(run.checkpoints, step)
            place.rename(target / place.name)
    run.cluster.barrier()
    newest = run.cluster.broadcast(_newest(run))
    kept = ""
    if later:
        steps = text_lib.list_names(later, _MAX_NAMED)
        kept = f"The checkpoints of steps {steps} were saved after the audit before, and are in {target} now. "
    if newest < 0:
        return f"{kept}There is no audited checkpoint."
    return f"{kept}The newest audited checkpoint is that of step {newest}."


def _newest(run: Run) -> int:
    """Returns the step of the newest checkpoint as the chief sees it; -1: there is none."""
    steps = directory.steps(run.checkpoints) if run.cluster.is_chief and run.workdir is not None else ()
    return max(steps, default=-1)
