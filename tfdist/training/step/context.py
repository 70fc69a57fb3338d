"""UNDOCUMENTED."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.cluster.cluster import Cluster
from tfdist.training.step import loss_scale as loss_scale_lib
from tfdist.training.step import optimizer as optimizer_lib
from tfdist.training.step import timing

# objective(model, batch, *, training) -> {"loss": [n], ...}
Objective = Callable[..., dict[str, tf.Tensor]]

# What travels to Python at the end of a call behind the sums of the objective's values.
EXTRAS = ("examples", "skipped", "clean", "wait_seconds", "stop", "seconds")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """All that a step needs; made once, in `strategy.scope`, by `build_trainer`."""

    cluster: Cluster
    config: config_lib.Config
    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    # Where the model was not given to `compile`.
    objective: Objective | None = None
    # The losses and metrics of a model that was.
    compiled: Any | None = None
    # The objective's keys, in order; "regularization" is added where the model has such losses.
    names: tuple[str, ...]
    # Moving statistics and the like, which each replica updates from its own examples.
    statistics: tuple[keras.Variable, ...]
    loss_scale: loss_scale_lib.LossScale | None
    # Since the last call, float64 [len(names) + 3]: sums of each name's values over the examples of all steps that were
    # not skipped, and their number; the steps that were skipped, and those before the first of them. Each replica holds
    # its own, so that adding to it costs no communication; of the steps, its part of the number.
    totals: tf.Variable
    # Seconds of communication since the last call; see timing.py.
    communication: tf.Variable

    @property
    def guarded(self) -> bool:
        """Whether a step that is not finite is left out."""
        return self.config.train.nonfinite != "stop"


def build_context(
    cluster: Cluster,
    config: config_lib.Config,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    objective: Objective,
    element_spec: dict[str, tf.TensorSpec],
) -> StepContext:
    """Builds what is not built yet, and checks that the objective keeps its contract.

    Args:
        element_spec: shapes and dtypes of a batch; one of two blank examples is run through the objective, which
            also builds a subclassed model.

    Raises:
        ValueError: the objective returns something else than one value per example, or no "loss"; the optimizer clips,
            accumulates or scales by itself; or XLA cannot compile the model.
    """
    optimizer_lib.check_optimizer(optimizer)
    if config.train.xla and any(getattr(layer, "synchronized", False) for layer in model._flatten_layers()):
        raise ValueError(
            "config.train.xla=True compiles no communication, and the model normalises over the batches of all "
            "replicas: set xla to False, or take statistics over groups (docs/guide.md)."
        )
    with cluster.scope():
        blank = {name: tf.zeros([2, *spec.shape[1:]], spec.dtype) for name, spec in element_spec.items()}
        names = check_objective(objective(model, blank, training=False), num_examples=2)
        if model.losses:
            names = (*names, "regularization")
    return _context(cluster, config, model, optimizer, names, objective=objective)


def compiled_context(
    cluster: Cluster, config: config_lib.Config, compiled: Any, optimizer: keras.optimizers.Optimizer
) -> StepContext:
    """Like `build_trainer`, for a built model that was given to `compile`; its optimizer may clip by itself."""
    return _context(cluster, config, compiled.model, optimizer, compiled.names, compiled=compiled)


def _context(
    cluster: Cluster,
    config: config_lib.Config,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    names: tuple[str, ...],
    **mathematics: Any,
) -> StepContext:
    optimizer_lib.take_over_reduction(optimizer)
    optimizer_lib.fuse(optimizer)
    statistics = tuple(_statistics(model))
    with cluster.scope():
        optimizer.build(model.trainable_variables)
        sums = tf.Variable(
            tf.zeros([len(names) + 3], tf.float64),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
        communication = timing.make_counter()
        loss_scale = loss_scale_lib.LossScale.create() if config.train.precision == "float16" else None
    return StepContext(
        cluster=cluster,
        config=config,
        model=model,
        optimizer=optimizer,
        names=names,
        statistics=statistics,
        loss_scale=loss_scale,
        totals=sums,
        communication=communication,
        **mathematics,
    )


def check_objective(values: dict[str, tf.Tensor], num_examples: int) -> tuple[str, ...]:
    """Returns the keys of what an objective returned, after checking that it is one value per example.

    Raises:
        ValueError: names the key, and the shape received.
    """
    if not isinstance(values, dict) or "loss" not in values:
        received = sorted(values) if isinstance(values, dict) else type(values).__name__
        raise ValueError(f'config.objective must return a dict with a "loss". Received: {received}')
    for name, value in values.items():
        shape = tf.convert_to_tensor(value).shape
        if not shape.is_compatible_with([num_examples]):  # In a graph it may be unknown; `_sums` looks again.
            raise ValueError(
                f"config.objective must return one value per example, without averaging: {name!r} has shape "
                f"{shape} for a batch of {num_examples} examples, and should have ({num_examples},)."
            )
        if name in (*EXTRAS, "regularization"):
            raise ValueError(f"config.objective returns {name!r}, a name that tfdist uses itself: choose another.")
    return tuple(values)


def _statistics(model: keras.Model) -> list[keras.Variable]:
    # Born untrainable, in a layer that trains: a frozen layer's weights and statistics do not move.
    return [
        variable
        for layer in model._flatten_layers()
        if layer.trainable
        for variable in layer._non_trainable_variables
        if keras.backend.is_float_dtype(variable.dtype)
    ]
