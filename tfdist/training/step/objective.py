"""`Objective`: the protocol of a model with its loss and metrics, as the step and the loop use it."""

from typing import Any, NamedTuple, Protocol

import keras
import tensorflow as tf

from tfdist.training.step.updates.tables import Gradients

# Fields of an execution's totals, after the sums of the objective's values: examples, skipped steps, steps before the
# first skipped one; then seconds of waiting for input, stop requests, and total seconds.
COUNTS = ("examples", "skipped", "steps_before_skip")
MEASUREMENTS = ("wait_seconds", "stop", "seconds")


class ShardResult(NamedTuple):
    """The sums and gradients of one replica's shard of the global batch."""

    # float64 [len(names) + 1]: the sum of each name's values over the examples, and the number of examples.
    sums: tf.Tensor
    # The gradients of this shard's part of the global loss, times the loss scale. Their sum over replicas is the
    # gradient of the global loss.
    gradients: Gradients
    # A number or float64 []: the fraction of the global batch in this shard.
    weight: tf.Tensor | float


class Objective(Protocol):
    """A model with its loss and metrics, as the step and the loop use it. By default its sums are its only state."""

    # The model that is trained.
    model: keras.Model
    # Names of the values that each step sums over its examples; "loss" must be one of them, in any position.
    names: tuple[str, ...]

    def forward_backward(self, shard: Any, loss_scale: tf.Tensor | float) -> ShardResult:
        """Runs a replica's shard of a batch forward and backward; called in `strategy.run`."""

    def evaluate(self, *shard: Any) -> tf.Tensor:
        """Runs a replica's shard of an evaluation batch; returns sums as in `ShardResult`; called in `strategy.run`."""

    def results(self, totals: dict[str, float]) -> dict[str, float]:
        """Computes loss and metrics from the sums over examples. A collective: every worker must call it."""

    def epoch_logs(self, logs: dict[str, float]) -> dict[str, float]:
        """Returns the values of an epoch or an evaluation from the logs of its last step. A collective."""
        return logs

    def reset(self) -> None:
        """Resets metrics before an epoch or an evaluation."""

    def variables(self) -> list[keras.Variable]:
        """Returns the variables, other than the model's metrics, that a step writes and `state` returns."""
        return []

    def state(self) -> list[Any]:
        """Returns the metrics' state within an epoch as JSON values. A collective: every worker must call it."""
        return []

    def restore_state(self, values: list[Any]) -> None:
        """Restores what `state` returned; called on every worker."""

    def finalise_weights(self) -> None:
        """Finalises the weights after the last step; called in `strategy.scope`."""
