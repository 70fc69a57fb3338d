"""`LoopTools`: what the loop works with, made once per start."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfdist.checkpoint import format as checkpoint_format
from tfdist.checkpoint.async_writer import AsyncCheckpointer
from tfdist.checkpoint.workdir_lock import WorkdirLock
from tfdist.cluster.cluster import Cluster
from tfdist.report.ledger import Ledger
from tfdist.report.reporter import Reporter
from tfdist.training import execution, features, triggers
from tfdist.training import run as run_lib
from tfdist.training.consistency import hashing, mismatch, replica_check
from tfdist.training.consistency.replica_check import ReplicaConsistencyCheck
from tfdist.training.execution import RunSteps, StepRunner


@dataclasses.dataclass(slots=True, kw_only=True)
class LoopTools:
    """The objects that the loop uses besides the state: report, checkpointer, compiled steps and checks."""

    run: run_lib.Run
    report: Reporter
    # None except on the chief.
    checkpointer: AsyncCheckpointer | None
    # None except on the chief of a run with a workdir.
    lock: WorkdirLock | None
    train_steps: StepRunner
    evaluation_steps: StepRunner
    # Returns which variable is not finite, as a sentence; "": none. The same on every worker.
    not_finite: Callable[[], str]
    consistency: ReplicaConsistencyCheck
    # What else runs between executions; see `features.Feature.extras`.
    extras: list[Any]
    # On what the time of this start is spent.
    ledger: Ledger

    def comparison_is_due(self, step: int) -> bool:
        """Returns whether the replicas are compared, and their state hashed, after `step`."""
        run, config = self.run, self.run.config
        sections = [config.consistency, *([config.report] if config.report.state_hash == "reports" else [])]
        due = any(triggers.is_due(one.every, step, run.steps_per_epoch) for one in sections)
        # Also after the first execution, which is one step: what a model's code does to one replica only shows there.
        return due or run.ends_at(step) or self.train_steps.length.executions == 1


def make_tools(
    run: run_lib.Run,
    report: Reporter,
    checkpointer: AsyncCheckpointer | None,
    lock: WorkdirLock | None = None,
    ledger: Ledger | None = None,
    keep: Callable[[RunSteps], RunSteps] | None = None,
) -> LoopTools:
    """Makes the tools of the loop; `keep`: see `execution.evaluation_steps`."""
    return LoopTools(
        run=run,
        report=report,
        checkpointer=checkpointer,
        lock=lock,
        train_steps=execution.training_steps(run),
        evaluation_steps=execution.evaluation_steps(run, keep),
        not_finite=make_finite_check(run.cluster, run.variables),
        consistency=replica_check.make_check(
            run.cluster,
            run.variables,
            run.config.consistency,
            report.event,
            mismatch.act,
            None if run.config.report.state_hash == "none" or run.workdir is None else _recorder(run, report),
        ),
        ledger=Ledger() if ledger is None else ledger,
        extras=[extra for feature in features.ALL for extra in feature.extras(run, report)],
    )


def make_silent_tools(run: run_lib.Run, keep: Callable[[RunSteps], RunSteps] | None = None) -> LoopTools:
    """As `make_tools`, but they report nothing: for an evaluation whose values are returned to the caller."""
    report = Reporter(
        rank=run.cluster.rank,
        num_replicas=run.cluster.num_replicas,
        steps_per_epoch=run.steps_per_epoch,
        console=None,
    )
    return make_tools(run, report, None, keep=keep)


def _recorder(run: run_lib.Run, report: Reporter) -> Callable[[int, int], None]:
    """Returns a function that records (step, hash of the state), with the examples since the record before."""
    previous: list[int] = []

    def record(step: int, value: int) -> None:
        first = min([*previous, step])  # A rollback goes back.
        previous[:] = [step]
        examples = [one * run.feed.sizes.global_batch for one in (first, step)]
        report.state(step, hashing.as_text(value), hashing.HASH_NAMES[run.cluster.device_type], examples)

    return record


def make_finite_check(cluster: Cluster, variables: Mapping[str, Any]) -> Callable[[], str]:
    """Returns a function that says, equal on all workers, which variable is not finite; "": all are. Collective."""
    check = check_worker(variables)

    def check_all() -> str:
        name = check()
        if not cluster.any_worker(bool(name)):
            return ""
        return f"The variable {next(filter(None, cluster.all_gather_text(name)))} is not finite"

    return check_all


def check_worker(variables: Mapping[str, Any]) -> Callable[[], str]:
    """Returns a function that returns the name of a variable that is not finite on this worker; "": there is none.

    A variable that is infinite now, such as a mask with -inf, may stay so: only NaN counts there.
    """
    values = [(name, checkpoint_format.tf_variable(variable)) for name, variable in variables.items()]
    floats = [(name, value) for name, value in values if value.dtype.is_floating]
    infinite = tf.stack([tf.reduce_any(tf.math.is_inf(value)) for _, value in floats]).numpy()

    def check() -> str:  # Without a graph: tracing one for hundreds of variables takes seconds.
        found = zip(floats, infinite, strict=True)
        bad = [tf.reduce_any(tf.math.is_nan(v) if allowed else ~tf.math.is_finite(v)) for (_, v), allowed in found]
        return next((name for (name, _), one in zip(floats, tf.stack(bad).numpy(), strict=True) if one), "")

    return check
