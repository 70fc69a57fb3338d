"""One training step and one evaluation step: the mathematics of a replica, and the calls that run many of them."""

import dataclasses
import functools
import math
from collections.abc import Callable

import keras
import tensorflow as tf

from tfdist import config as config_lib
from tfdist import fused, randomness, timing
from tfdist import gradients as gradients_lib
from tfdist.cluster import cluster as cluster_lib
from tfdist.cluster.cluster import Cluster
from tfdist.compiled import Compiled, Element
from tfdist.data.stream import Batch

# objective(model, batch, *, training) -> {"loss": [n], ...}
Objective = Callable[..., dict[str, tf.Tensor]]

# What travels to Python at the end of a call behind the sums of the objective's values.
EXTRAS = ("examples", "skipped", "clean", "wait_seconds", "stop", "seconds")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """All that a step needs; made once, in `strategy.scope`, by `build_trainer`."""

    cluster: Cluster
    config: config_lib.Config
    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    # Where the model was not given to `compile`.
    objective: Objective | None = None
    # The losses and metrics of a model that was.
    compiled: Compiled | None = None
    # The objective's keys, in order; "regularization" is added where the model has such losses.
    names: tuple[str, ...]
    # Moving statistics and the like, which each replica updates from its own examples.
    statistics: tuple[keras.Variable, ...]
    loss_scale: gradients_lib.LossScale | None
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


def build_trainer(
    cluster: Cluster,
    config: config_lib.Config,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    objective: Objective,
    element_spec: dict[str, tf.TensorSpec],
) -> Trainer:
    """Builds what is not built yet, and checks that the objective keeps its contract.

    Args:
        element_spec: shapes and dtypes of a batch; one of two blank examples is run through the objective, which
            also builds a subclassed model.

    Raises:
        ValueError: the objective returns something else than one value per example, or no "loss"; the optimizer clips,
            accumulates or scales by itself; or XLA cannot compile the model.
    """
    gradients_lib.check_optimizer(optimizer)
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
    return _trainer(cluster, config, model, optimizer, names, objective=objective)


def compiled_trainer(
    cluster: Cluster, config: config_lib.Config, compiled: Compiled, optimizer: keras.optimizers.Optimizer
) -> Trainer:
    """Like `build_trainer`, for a built model that was given to `compile`; its optimizer may clip by itself."""
    return _trainer(cluster, config, compiled.model, optimizer, compiled.names, compiled=compiled)


def _trainer(
    cluster: Cluster,
    config: config_lib.Config,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    names: tuple[str, ...],
    **mathematics: Objective | Compiled,
) -> Trainer:
    gradients_lib.take_over_reduction(optimizer)
    fused.fuse(optimizer)
    statistics = tuple(_statistics(model))
    cluster.average_updates(statistics)
    with cluster.scope():
        optimizer.build(model.trainable_variables)
        sums = tf.Variable(
            tf.zeros([len(names) + 3], tf.float64),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
        communication = timing.make_counter()
        loss_scale = gradients_lib.LossScale.create() if config.train.precision == "float16" else None
    return Trainer(
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


def train_step(trainer: Trainer, batch: Batch | Element) -> tf.Tensor:
    """One optimizer step on one replica's share of the global batch; runs in `strategy.run`.

    Returns:
        float64 [len(names) + 1]: the sums of this replica's values, and its number of examples.
    """
    gradients_lib.check_trainable(trainer.model)
    before = [tf.convert_to_tensor(statistic.value) for statistic in trainer.statistics]
    if trainer.compiled is None:
        sums, gradients = _accumulate(trainer, batch)
        weight = 1 / trainer.cluster.num_replicas
    else:
        sums, gradients, weight = trainer.compiled.learn(
            batch, 1.0 if trainer.loss_scale is None else trainer.loss_scale.value
        )
    if trainer.guarded:  # Whether the loss is finite travels with the gradients: all replicas must decide alike.
        loss = sums[trainer.names.index("loss")]
        gradients = [*gradients, tf.where(tf.math.is_finite(loss), 0.0, 1.0)]
    gradients = sum_over_replicas(trainer, gradients, before, weight)
    bad_loss = gradients.pop() > 0 if trainer.guarded else tf.constant(False)
    if trainer.guarded or trainer.loss_scale is not None:
        skipped = _apply_if_finite(trainer, gradients, bad_loss, before)
    else:
        apply(trainer, gradients)
        skipped = None
    add_to_totals(trainer, sums, skipped)
    # Handed back when the step is done, not when its forward pass is: the first layer is updated last.
    with tf.control_dependencies([tf.convert_to_tensor(trainer.model.trainable_variables[0].value)]):
        return tf.identity(sums)


def _apply_if_finite(
    trainer: Trainer, gradients: gradients_lib.Gradients, bad_loss: tf.Tensor, before: list[tf.Tensor]
) -> tf.Tensor:
    """Makes the update where loss and gradients are finite; else leaves nothing of the step but that it was made.

    Returns:
        bool []: whether the step counts as skipped. Overflows of scaled gradients do not count: a smaller scale mends
        them.
    """
    scale = None if trainer.loss_scale is None else tf.convert_to_tensor(trainer.loss_scale.value)
    if scale is not None:
        gradients = [None if gradient is None else gradient / scale for gradient in gradients]
    finite = gradients_lib.all_finite(gradients) & ~bad_loss

    def leave_out() -> None:
        # Schedule, dropout and report go by the step.
        trainer.optimizer.iterations.assign_add(1)
        if trainer.loss_scale is not None:
            trainer.loss_scale.update(finite=False)

    gradients_lib.apply_if(finite, gradients, lambda finite_gradients: apply(trainer, finite_gradients), leave_out)
    for statistic, old in zip(trainer.statistics, before, strict=True):
        statistic.assign(tf.where(finite, statistic.value, old))
    return ~finite if scale is None else bad_loss | (~finite & (scale <= 1.0))


def add_to_totals(trainer: Trainer, sums: tf.Tensor, skipped: tf.Tensor | None) -> None:
    """Adds a step's sums over examples (float64 [len(names) + 1]) to those of the call, unless it was `skipped`."""
    steps = tf.zeros([2], tf.float64)
    if skipped is not None:
        sums = tf.where(skipped, tf.zeros_like(sums), sums)
        met = skipped | (tf.identity(trainer.totals)[-2] > 0)
        steps = tf.cast(tf.stack([skipped, ~met]), tf.float64) / trainer.cluster.num_replicas
    trainer.totals.assign_add(tf.concat([sums, steps], axis=0))


def apply(trainer: Trainer, gradients: gradients_lib.Gradients) -> None:
    """Makes one update of the optimizer, clipped if the config says so; to be called in `strategy.run`."""
    if trainer.config.train.clip_norm is not None:
        gradients = gradients_lib.clip(gradients, trainer.config.train.clip_norm)
    trainer.optimizer.apply(gradients, trainer.model.trainable_variables)
    if trainer.loss_scale is not None:
        trainer.loss_scale.update(finite=True)


def _accumulate(trainer: Trainer, batch: Batch) -> tuple[tf.Tensor, gradients_lib.Gradients]:
    """Runs the micro-batches one after another and adds up their sums and gradients."""
    pieces = trainer.config.train.micro_batches
    if pieces == 1:
        return forward_backward(trainer, batch, tf.constant(0))
    count, group = next(iter(batch.values())).shape[0] // pieces, _group_size(trainer.model)
    group = 1 if count % group else group
    # Each takes every so many-th group: on any number of replicas the same examples of the global batch, and so the
    # same changes of a normalisation's moving statistics.
    split = {name: tf.reshape(value, [-1, pieces, group, *value.shape[1:]]) for name, value in batch.items()}
    variables = trainer.model.trainable_variables
    initial = [tf.zeros(variable.shape, variable.dtype) for variable in variables]

    def body(piece: tf.Tensor, sums: tf.Tensor, gradients: list[tf.Tensor]) -> tuple:
        part = {name: tf.reshape(value[:, piece], [count, *value.shape[3:]]) for name, value in split.items()}
        more, these = forward_backward(trainer, part, piece)
        added = [
            old if new is None else old + tf.convert_to_tensor(new) for old, new in zip(gradients, these, strict=True)
        ]
        return piece + 1, sums + more, added

    start = (tf.constant(0), tf.zeros([len(trainer.names) + 1], tf.float64), initial)
    _, sums, gradients = tf.while_loop(lambda piece, *_: piece < pieces, body, start, parallel_iterations=1)
    return sums, gradients


def _group_size(model: keras.Model) -> int:
    """How many examples of a batch belong together: a multiple of the sizes of all groups with statistics."""
    normalisations = (one for one in model._flatten_layers() if isinstance(one, keras.layers.BatchNormalization))
    return math.lcm(*(getattr(layer, "group_size", None) or 1 for layer in normalisations))


def forward_backward(trainer: Trainer, batch: Batch, piece: tf.Tensor) -> tuple[tf.Tensor, gradients_lib.Gradients]:
    """Runs micro-batch `piece` (int32 []) forward and backward; returns the sums of its values and its gradients."""
    run = functools.partial(_forward_backward, trainer)
    if trainer.config.train.xla:  # This much and no more: XLA compiles no communication between workers.
        run = tf.function(run, autograph=False, jit_compile=True)
    return run(batch, piece)


def _forward_backward(trainer: Trainer, batch: Batch, piece: tf.Tensor) -> tuple[tf.Tensor, gradients_lib.Gradients]:
    config = trainer.config
    randomness.begin(piece)
    with tf.GradientTape() as tape:
        values = trainer.objective(trainer.model, batch, training=True)
        num_examples = next(iter(batch.values())).shape[0]
        names = {*check_objective(values, num_examples)} ^ {*trainer.names} - {"regularization"}
        if names:
            raise ValueError(
                "config.objective must return the same values in training and evaluation. Received in one of them "
                f"alone: {', '.join(sorted(names))}"
            )
        # Divided once, by the true global count: the optimizer applies the sum over replicas and micro-batches.
        dtype = tf.float64 if values["loss"].dtype == tf.float64 else tf.float32
        loss = tf.nn.compute_average_loss(tf.cast(values["loss"], dtype), global_batch_size=config.data.batch_size)
        regularization = None
        if trainer.model.losses:
            regularization = tf.cast(tf.add_n(trainer.model.losses), dtype)
            loss += tf.nn.scale_regularization_loss(regularization) / config.train.micro_batches
        if trainer.loss_scale is not None:
            loss *= trainer.loss_scale.value
    gradients = tape.gradient(loss, trainer.model.trainable_variables)
    if regularization is not None:
        values = values | {"regularization": tf.fill([num_examples], regularization)}
    return _sums(trainer, values, tf.ones([num_examples], tf.bool)), gradients


def sum_over_replicas(
    trainer: Trainer, gradients: gradients_lib.Gradients, before: list[tf.Tensor], weight: tf.Tensor | float
) -> gradients_lib.Gradients:
    """The one communication of a step: sums the gradients, and averages what each replica did to its statistics.

    `weight` is what this replica's statistics count in the mean; those of all replicas add up to 1.
    """
    # In every step: averaged at a save alone, the time of the save would show in the last bits of the run. The changes
    # are averaged and not the values, so that what did not move stays exactly as it is.
    options = trainer.config.communication
    if trainer.cluster.num_replicas == 1:
        # Dense, as sums over replicas are: of rows that come twice in a sparse one, Keras squares each alone.
        return [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]
    ready = timing.ready(gradients)
    changes = [(s.value - old) * tf.cast(weight, old.dtype) for s, old in zip(trainer.statistics, before, strict=True)]
    if options.dtype == "float32":
        reduced = gradients_lib.all_reduce([*gradients, *changes], options)
        gradients, changes = reduced[: len(gradients)], reduced[len(gradients) :]
    else:
        gradients = gradients_lib.all_reduce(gradients, options)
        changes = gradients_lib.all_reduce(changes, dataclasses.replace(options, dtype="float32"))
    trainer.communication.assign_add(timing.ready([*gradients, *changes]) - ready)
    for statistic, old, change in zip(trainer.statistics, before, changes, strict=True):
        statistic.assign(old + change)
    return gradients


def _sums(trainer: Trainer, values: dict[str, tf.Tensor], mask: tf.Tensor) -> tf.Tensor:
    columns = [tf.cast(tf.ensure_shape(values[n], mask.shape), tf.float64) for n in trainer.names if n in values]
    if len(columns) < len(trainer.names):
        columns.append(tf.zeros_like(columns[0]))
    columns.append(tf.ones_like(columns[0]))
    # where, not a product: a NaN in padding must not spoil the sum.
    return tf.reduce_sum(tf.where(mask, tf.stack(columns), tf.zeros([], tf.float64)), axis=1)


def evaluation_step(trainer: Trainer, batch: Batch | Element, mask: tf.Tensor | None = None) -> tf.Tensor:
    """Adds one replica's share of an evaluation batch to the totals; `mask`, bool [n], is False for padding."""
    if trainer.compiled is None:
        sums = _sums(trainer, trainer.objective(trainer.model, batch, training=False), mask)
    else:
        sums = trainer.compiled.assess(batch)
    add_to_totals(trainer, sums, None)
    return sums


def make_call(trainer: Trainer, step: Callable[..., tf.Tensor]) -> Callable[..., tuple[tf.Tensor, tf.Tensor]]:
    """Compiles the call that runs `step` many times on the devices and hands one small vector to Python.

    Returns:
        call(iterator, count, stop): `count` int64 [] steps; `stop` float64 [], 1 where this worker asks all to stop.
        Returns, equal on all workers, float64 [len(names) + len(EXTRAS)], the sums over all replicas, and float64
        [num_replicas, 3], the seconds of each (see timing.py). `skipped` steps were left out, the first of them after
        `clean` others. `seconds` is what the steps took, of which `wait_seconds` went by waiting for input; on a GPU
        all are of the host, which runs ahead of the device.
    """
    strategy, totals, communication = trainer.cluster.strategy, trainer.totals, trainer.communication
    num_replicas = trainer.cluster.num_replicas
    # A central variable holds the sum over replicas already, and each of them is asked for its part.
    parts = num_replicas if trainer.cluster.variables_are_central else 1

    def local(value: tf.Tensor) -> list[tf.Tensor]:
        return tf.nest.flatten(strategy.experimental_local_results(value))

    def take_totals(waited: tf.Tensor, stop: tf.Tensor, seconds: tf.Tensor) -> tf.Tensor:
        own = timing.placed(cluster_lib.replica_id(), num_replicas, waited, tf.identity(communication) / parts, seconds)
        vector = tf.concat([tf.identity(totals) / parts, [waited, stop, seconds], own], axis=0)
        with tf.control_dependencies([vector]):
            totals.assign(tf.zeros_like(totals))
            communication.assign(tf.zeros_like(communication))
        return vector

    @tf.function(autograph=False)
    def call(iterator, count, stop):
        def one(number: tf.Tensor, waited: tf.Tensor, done: tf.Tensor) -> tuple[tf.Tensor, ...]:
            elements = next(iterator)
            with tf.control_dependencies(tf.nest.flatten(elements, expand_composites=True)):
                ready = tf.timestamp()
            sums = strategy.run(step, args=elements if isinstance(elements, tuple) else (elements,))
            with tf.control_dependencies(local(sums)):
                return number + 1, waited + tf.maximum(ready - done, 0.0), tf.timestamp()

        started = tf.timestamp()
        first = (tf.zeros([], tf.int64), tf.zeros([], tf.float64), started)
        _, waited, done = tf.while_loop(lambda number, *_: number < count, one, first)
        vector = strategy.reduce("SUM", strategy.run(take_totals, args=(waited, stop, done - started)), axis=None)
        seconds = num_replicas * len(timing.COLUMNS)
        return vector[:-seconds], tf.reshape(vector[-seconds:], [num_replicas, -1])

    return call


def means(trainer: Trainer, totals: dict[str, float]) -> dict[str, float]:
    """Divides sums by the number of examples, once; NaN where all steps were skipped."""
    return {name: totals[name] / (totals["examples"] or math.nan) for name in trainer.names}
