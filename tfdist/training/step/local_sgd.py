"""Local SGD: each replica takes several optimizer steps by itself, then all average (Stich, arXiv 1805.09767).

For slow networks: one communication for `config.train.local_steps` optimizer steps. It is another algorithm than the
sum of gradients in every step, so N replicas are not the run of one; what stays is that a run repeats, resumes, and is
the same on any workers that the same replicas are spread over.
"""

import dataclasses
from collections.abc import Callable

import keras
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.data.stream import Batch
from tfdist.training.step import context, optimizer, train_step
from tfdist.training.step import gradients as gradients_lib


def choose_step(options: config_lib.Train) -> Callable[..., tf.Tensor]:
    """Returns what a step is: `step.train_step`, or with `local_steps` a round of them."""
    return train_step.train_step if options.local_steps == 1 else train_round


def train_round(trainer: context.StepContext, batch: Batch) -> tf.Tensor:
    """As `step.train_step`: the share of a global batch is cut into `local_steps` pieces, one optimizer step for each.

    Weights, the optimizer's slots and moving statistics are averaged at the end, so that all replicas hold the same
    whenever the loop saves or evaluates.

    Returns:
        float64 [len(names) + 1]: the sums of this replica's values, and its number of examples.
    """
    optimizer.check_trainable(trainer.model)
    config, replicas = trainer.config, trainer.cluster.num_replicas
    pieces = config.train.local_steps
    # As if a piece of each replica were the global batch: a replica's loss is then its own mean, divided by `replicas`.
    data = dataclasses.replace(config.data, batch_size=config.data.batch_size // pieces)
    of_piece = dataclasses.replace(trainer, config=dataclasses.replace(config, data=data))
    moving = [v for v in (*trainer.model.trainable_variables, *trainer.optimizer.variables) if _is_float(v)]
    before = [tf.identity(variable.value) for variable in (*moving, *trainer.statistics)]
    split = {name: tf.reshape(value, [pieces, -1, *value.shape[1:]]) for name, value in batch.items()}
    sums = tf.zeros([len(trainer.names) + 1], tf.float64)
    # A loop in Python: an optimizer's update within a loop of the graph is refused on mirrored replicas.
    for piece in range(pieces):
        part = {name: value[piece] for name, value in split.items()}
        more, gradients = train_step.forward_backward(of_piece, part, tf.constant(piece))
        train_step.apply(trainer, [None if g is None else replicas * tf.convert_to_tensor(g) for g in gradients])
        sums += more
    if replicas > 1:
        changes = [(variable.value - old) / replicas for variable, old in zip(moving, before, strict=False)]
        changes = gradients_lib.sum_over_replicas(trainer, changes, before[len(moving) :], 1 / replicas)
        for variable, old, change in zip(moving, before, changes, strict=False):
            variable.assign(old + change)
    train_step.add_to_totals(trainer, sums, None)
    with tf.control_dependencies([tf.convert_to_tensor(trainer.model.trainable_variables[0].value)]):
        return tf.identity(sums)


def _is_float(variable: keras.Variable) -> bool:
    return keras.backend.is_float_dtype(variable.dtype)
