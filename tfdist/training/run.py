"""UNDOCUMENTED."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist import config as config_lib
from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster import interruption
from tfdist.cluster.cluster import Cluster
from tfdist.data import stream
from tfdist.training.callbacks.callback_runner import CallbackRunner
from tfdist.training.step import context


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run that is ready to train or to evaluate, seen from one worker."""

    config: config_lib.Config
    # None: nothing is written and nothing resumed.
    workdir: Path | None
    cluster: Cluster
    # Whether this worker was asked to stop.
    stop: interruption.StopRequest
    trainer: context.StepContext
    # Every variable that a checkpoint holds, by name.
    variables: dict[str, Any]
    # (first_step, last_step) -> this worker's share of the steps [first_step, last_step), which goes on for ever.
    training_data: Callable[[int, int], tf.data.Dataset]
    # () -> this worker's share of one pass, which goes on for ever, and the steps of the pass; None: no evaluation.
    evaluation_data: Callable[[], tuple[tf.data.Dataset, int]] | None
    # The examples of a pass where that is known.
    evaluation_examples: int | None
    steps_per_epoch: int
    total_steps: int
    # Examples in one training step, over all replicas; the last of an epoch may have fewer.
    batch_size: int
    callbacks: CallbackRunner
    # Look for the example that cannot be read, and raise a ValueError that names it.
    verify: tuple[Callable[[], None], ...] = ()
    # Reads a few examples by name, which must be the same on all workers.
    examples: Callable[[], dict[str, tf.Tensor]] = dict
    # Where a new run begins: not at 0 for a script that goes on from an epoch of its own.
    first_step: int = 0
    # What the user ought to know of the data before the first step.
    notes: tuple[str, ...] = ()

    @property
    def compiled(self) -> Any | None:
        """The losses and metrics of a model that was given to `compile`; None in the run of a config."""
        return self.trainer.compiled

    @property
    def checkpoints(self) -> Path | None:
        """The directory of the checkpoints."""
        return None if self.workdir is None else self.workdir / "checkpoints"


def evaluation_batch_size(config: config_lib.Config) -> int:
    """Examples in one evaluation step, over all replicas."""
    return config.data.evaluation_batch_size or config.data.batch_size


def make_run(
    config: config_lib.Config,
    workdir: Path | None,
    cluster: Cluster,
    stop: interruption.StopRequest,
    trainer: context.StepContext,
    **data: Any,
) -> Run:
    """Puts a run together, whose variables are those of `trainer`; `data` are the rest of `Run`'s fields."""
    more = trainer.loss_scale.variables() if trainer.loss_scale else {}
    return Run(
        config=config,
        workdir=workdir,
        cluster=cluster,
        stop=stop,
        trainer=trainer,
        variables=checkpoint_format.named_variables(trainer.model, trainer.optimizer, more),
        **data,
    )


def replica_shard(cluster: Cluster) -> stream.ReplicaShard:
    """The part of every global batch that this worker's replicas take."""
    local_replicas = cluster.num_replicas // cluster.num_workers
    return stream.ReplicaShard(
        first_replica=cluster.rank * local_replicas,
        local_replicas=local_replicas,
        num_replicas=cluster.num_replicas,
    )
