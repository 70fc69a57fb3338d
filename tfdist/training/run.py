"""`Run`: a run that is ready to train or to evaluate, seen from one worker."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster import interruption
from tfdist.cluster.cluster import Cluster
from tfdist.data.stream import ReplicaShard
from tfdist.training import triggers
from tfdist.training.callbacks.callback_runner import CallbackRunner
from tfdist.training.state import DataHashes
from tfdist.training.step import train_step as train_step_lib
from tfdist.training.step.context import StepContext
from tfdist.training.step.objective import Objective


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The parts of a run; made by `setup.build_run`, and by `keras_fit.setup.make_run` for scripts."""

    config: config_lib.Config
    # None: nothing is written, and nothing is resumed.
    workdir: Path | None
    cluster: Cluster
    # Stop requests to this worker.
    stop: interruption.StopRequest
    context: StepContext
    # (first_step, last_step) -> this worker's shard of the steps [first_step, last_step), repeated endlessly; with the
    # textbook pipeline, global batches.
    training_data: Callable[[int, int], tf.data.Dataset]
    # (first_step, last_step) -> an iterator over them, with an element for all local replicas in each step.
    open_training: Callable[[int, int], Iterator[Any]]
    # () -> this worker's shard of the evaluation split, repeated endlessly, and its steps; None: no evaluation.
    evaluation_data: Callable[[], tuple[tf.data.Dataset, int]] | None
    # Examples of the evaluation split; None: not known before it is read.
    evaluation_examples: int | None
    steps_per_epoch: int
    total_steps: int
    callbacks: CallbackRunner
    # Scripts: executions end with epochs, intervals are reported by epochs, and a finished run may be extended.
    by_epochs: bool = False
    # Each reads a split, and raises a ValueError that names the first example that cannot be read.
    verify: tuple[Callable[[], None], ...] = ()
    # (label) -> the first example with this label, such as "Example 17 of the split 'train'"; "": none was found.
    find_label: Callable[[int], str] = lambda label: ""
    # Hashes the data, to compare it with that of other workers and of the saved run.
    data_hashes: Callable[[], DataHashes] = DataHashes
    # The first step of a new run: above 0 for a script with `initial_epoch`.
    first_step: int = 0
    # The chosen preparation of the data and what it returns, for the log; "": there is none.
    preparation: str = ""
    # The context in which the model has the weights that are evaluated and exported.
    evaluated_weights: Callable[[], AbstractContextManager] = contextlib.nullcontext
    # The learning rate that the config or the script sets, if callbacks may change it; None: a schedule computes it.
    learning_rate: float | None = None
    # The name of examples in the log.
    example_name: str = "examples"
    # For the log, not known for scripts: the config file, and the examples of the training split.
    config_file: str = ""
    training_examples: int | None = None
    # Warnings about the data, for the log.
    notes: tuple[str, ...] = ()
    # (first step, last step), counted from 1 -> the first of these steps whose examples, on this worker, have a value
    # that is not finite, and a sentence about it; None: there is none.
    search_data: Callable[[int, int], tuple[int, str] | None] = lambda first_step, last_step: None
    # (whether the data are the reason) -> what to do if a loss or weight is not finite.
    advice_if_diverged: Callable[[bool], str] = lambda in_data: ""
    # Text about the input of the exported model; "": none.
    model_input: str = ""
    # The model -> what is exported of it.
    exported: Callable[[keras.Model], keras.Model] = lambda model: model
    # The training step of each replica.
    train_step: Callable[[StepContext, Any], tf.Tensor] = train_step_lib.train_step
    # The context in which executions run.
    execution_context: Callable[[], AbstractContextManager] = contextlib.nullcontext
    # Variables that a checkpoint holds besides those of the model and the optimizer, by name.
    more_variables: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def objective(self) -> Objective:
        """The objective: the model with its loss and metrics."""
        return self.context.objective

    @property
    def checkpoints(self) -> Path | None:
        """The directory of the checkpoints."""
        return None if self.workdir is None else self.workdir / "checkpoints"

    @property
    def variables(self) -> dict[str, Any]:
        """Every variable that a checkpoint holds, by name."""
        loss_scale = self.context.loss_scale
        extra = {**(loss_scale.variables() if loss_scale else {}), **self.more_variables}
        return checkpoint_format.named_variables(self.context.model, self.context.optimizer, extra)

    def ends_at(self, step: int) -> bool:
        """Returns whether the run ends after `step`: it is the last one, or a callback has requested the end."""
        return step == self.total_steps or self.callbacks.stop()

    def save_is_due(self, step: int) -> bool:
        """Returns whether a checkpoint is due after `step`, apart from one after an evaluation with the best value."""
        first = step == 0 and self.config.train.nonfinite == "rollback"  # There must be one to roll back to.
        return first or self.ends_at(step) or triggers.is_due(self.config.checkpoint.every, step, self.steps_per_epoch)


def replica_shard(cluster: Cluster) -> ReplicaShard:
    """Returns the part of every global batch that this worker's replicas take."""
    local_replicas = cluster.num_replicas // cluster.num_workers
    return ReplicaShard(
        first_replica=cluster.rank * local_replicas,
        local_replicas=local_replicas,
        num_replicas=cluster.num_replicas,
    )
