"""Computes the outputs of a model for all examples on all replicas, and gathers them on every worker."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.cluster.cluster import Cluster
from tfdist.cluster.devices import gather as gather_lib
from tfdist.keras_fit.compiled_objective import Element
from tfdist.keras_fit.own_step import eager_steps
from tfdist.training import api as trainer

# Takes an iterator of batches, and returns the step that predicts the next one.
Bind = Callable[[Iterator], Callable[[], Any]]


def build(cluster: Cluster, model: keras.Model, element_spec: Any) -> None:
    """Builds a model that is not built, for data of `element_spec`: a step of several devices cannot."""
    if model.built:
        return
    with cluster.scope(), keras.StatelessScope():
        if model.run_eagerly:
            model.predict_step(eager_steps.batch_of(element_spec))
            return
        with keras.SymbolicScope():
            tf.function(model.predict_step, autograph=False).get_concrete_function(element_spec)


def make_step(cluster: Cluster, model: keras.Model) -> Bind:
    """Compiles a step of a prediction: runs `model` on one batch, and gathers the outputs of all replicas.

    Returns:
        A function of the iterator, which traces the step if the batches have new shapes or dtypes. TensorFlow would
        warn about tracing in a script with many models if it traced at a call.
    """
    traced: dict[tf.TypeSpec, Any] = {}

    @tf.function(autograph=False)
    def step(iterator: Iterator) -> Any:
        return gather_lib.gather(cluster, _outputs(cluster, model, iterator))

    def bind(iterator: Iterator) -> Callable[[], Any]:
        spec = tf.type_spec_from_value(iterator)
        if spec not in traced:
            traced[spec] = step.get_concrete_function(iterator)
        return functools.partial(traced[spec], iterator)

    return bind


def make_eager_step(cluster: Cluster, model: keras.Model) -> Bind:
    """As `make_step`, for `compile(run_eagerly=True)`: `model` runs in Python, one operation after another."""

    # TensorFlow has no eager gather of several replicas.
    @tf.function(autograph=False)
    def gather_outputs(outputs: Any) -> Any:
        return gather_lib.gather(cluster, outputs)

    def step(iterator: Iterator) -> Any:
        with eager_steps.eager_if(eagerly=True):
            outputs = _outputs(cluster, model, iterator)
        return gather_outputs(outputs)

    return lambda iterator: functools.partial(step, iterator)


def _outputs(cluster: Cluster, model: keras.Model, iterator: Iterator) -> Any:
    """Returns the outputs of each replica for its shard of the next batch."""

    @tf.autograph.experimental.do_not_convert
    def predict_step(element: Element) -> Any:
        outputs = model.predict_step(element["data"])
        return tf.nest.map_structure(lambda output: output[: element["count"]], outputs)

    return cluster.strategy.run(predict_step, args=(next(iterator),))


def gather(
    cluster: Cluster, bind: Bind, elements: Iterator, steps: int, callbacks: trainer.CallbackRunner, *, keep: bool
) -> Any:
    """Computes the outputs of `steps` batches, each replica its shard. Collective: all workers call it.

    Args:
        elements: what `Cluster.distribute` returned for the dataset of a data adapter.
        keep: whether this worker keeps the outputs of all batches in host memory.

    Returns:
        Arrays [examples, ...] in the order of the data, in the structure of the model's outputs; None without `keep`.
    """
    batches = []
    callbacks.call("on_predict_begin")
    with cluster.collective("tfdist.predict"):
        step = bind(elements)
    for index in range(steps):
        if callbacks.begins_batch("predict", index):
            callbacks.call("on_predict_batch_begin", index)
        with cluster.collective("tfdist.predict"):
            outputs = tf.nest.map_structure(lambda output: output.numpy(), step())
        if keep:
            batches.append(outputs)
        cluster.note_progress(index + 1)
        if callbacks.ends_batch("predict", index, steps):
            last = callbacks.last_of_batch("predict", index)
            callbacks.call("on_predict_batch_end", last, {"outputs": outputs})
        if callbacks.wants_progress("predict"):
            callbacks.progress(index + 1, {})
    callbacks.call("on_predict_end")
    return tf.nest.map_structure(lambda *parts: np.concatenate(parts), *batches) if keep else None
