"""`Run`: a run that is ready to train or to evaluate, seen from one worker."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist import config as config_lib
from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster import interruption
from tfdist.cluster.cluster import Cluster
from tfdist.cluster.devices import replicas as replicas_lib
from tfdist.data.feed import Feed
from tfdist.data.stream import ReplicaShard
from tfdist.training import triggers
from tfdist.training.hooks import Hooks
from tfdist.training.step import train_step as train_step_lib
from tfdist.training.step.context import StepContext
from tfdist.training.step.objective import Objective


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Settings of the log, and lines for it."""

    # What is printed: "all", "events" (no interval reports, no evaluations) or "nothing".
    console: str = "all"
    # The config file; "": not known.
    config_file: str = ""
    # Warnings about the data and the config.
    notes: tuple[str, ...] = ()
    # Lines about automatic choices, for the start of the log; see `report_run.start_lines`.
    chosen: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The parts of a run; made by `setup.build_run` from a config, or from the model and the data of a script."""

    config: config_lib.Config
    # None: nothing is written or resumed.
    workdir: Path | None
    cluster: Cluster
    stop: interruption.StopRequest
    context: StepContext
    # The input, and the numbers of examples and steps.
    feed: Feed
    # The callback hooks of Keras' training loop.
    hooks: Hooks
    # Whether the run comes from a script that calls `fit`, not from a config. Executions of a script end at the end of
    # an epoch, reports are per epoch, and a finished run may be extended.
    is_script: bool = False
    log: Log = Log()
    # Whether to check that a step draws no random numbers in Python while it is traced. False if threads that make data
    # may draw at the same time.
    checks_draws: bool = True
    # Returns a context manager in which the model has the weights to evaluate and export, such as averages.
    evaluated_weights: Callable[[], AbstractContextManager] = contextlib.nullcontext
    # (whether the data is the cause) -> advice if a loss or weight is not finite; None: the advice for a config.
    advice_if_diverged: Callable[[bool], str] | None = None
    # One training step on a replica; features and scripts may replace it.
    train_step: Callable[[StepContext, Any], tf.Tensor] = train_step_lib.train_step
    # ("train" or "test", run_steps, *args) -> the result of run_steps(*args), one execution; scripts may replace it.
    call_steps: Callable[..., Any] = lambda kind, run_steps, *args: run_steps(*args)
    # Returns the index, int32 [], of the replica whose random numbers a step draws.
    replica_of_draws: Callable[[], tf.Tensor] = replicas_lib.replica_id
    # Additional variables in a checkpoint, by name.
    more_variables: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def steps_per_epoch(self) -> int:
        return self.feed.sizes.steps_per_epoch

    @property
    def total_steps(self) -> int:
        """The number of steps of the run."""
        return self.feed.sizes.total_steps

    @property
    def objective(self) -> Objective:
        return self.context.objective

    @property
    def checkpoints(self) -> Path | None:
        return None if self.workdir is None else self.workdir / "checkpoints"

    @property
    def variables(self) -> dict[str, Any]:
        """Every variable that a checkpoint holds, by name."""
        loss_scale = self.context.loss_scale
        extra = {**(loss_scale.variables() if loss_scale else {}), **self.more_variables}
        return checkpoint_format.named_variables(self.context.model, self.context.optimizer, extra)

    def ends_at(self, step: int) -> bool:
        """Returns whether the run ends after `step`: it is the last one, or a hook has requested the end.

        As in Keras, one step is run even if the end is requested before the first step.
        """
        requested = step > self.feed.sizes.first_step and self.hooks.ends("train", step % self.steps_per_epoch)
        return step == self.total_steps or requested

    def due(self, every: config_lib.Every) -> triggers.DueSteps:
        """Returns the steps of this run at which an action with the interval `every` is due."""
        return triggers.DueSteps(every, self.steps_per_epoch)

    def save_is_due(self, step: int) -> bool:
        """Returns whether a checkpoint is due after `step`, not counting checkpoints of new best values."""
        return self.ends_at(step) or self.due(self.config.checkpoint.every).is_due(step)


def replica_shard(cluster: Cluster) -> ReplicaShard:
    """Returns this worker's part of every global batch."""
    local_replicas = cluster.num_replicas // cluster.num_workers
    return ReplicaShard(
        first_replica=cluster.rank * local_replicas,
        local_replicas=local_replicas,
        num_replicas=cluster.num_replicas,
    )
