"""Computes the outputs of a model for all examples on all replicas, and gathers them on every worker.

Each replica runs the model on its shard of a batch. Outputs with one row per example and a known shape are
concatenated. Other outputs, such as a number or rows of an unknown length, are computed on the whole batch, as on one
device. So are the outputs of a user's `predict_step`; and those of a model with the user's layers, with functions as
layers or with layers of Keras that may mix rows, unless a test with random rows shows that they do not mix them.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import trainer as keras_trainer

from tfdist.cluster.cluster import Cluster
from tfdist.cluster.devices import gather as gather_lib
from tfdist.cluster.devices import replicas as replicas_lib
from tfdist.keras_fit import compiled_model, patches
from tfdist.keras_fit.adapters import base
from tfdist.keras_fit.own_step import plain_values
from tfdist.keras_fit.whole_batch import global_view, probe
from tfdist.keras_fit.whole_batch.global_view import GlobalView
from tfdist.keras_fit.whole_batch.rows import Element
from tfdist.training import api as trainer


def check_rows(cluster: Cluster, model: keras.Model, element_spec: Any) -> None:
    """Raises ValueError if x seems to have no rows, but other parts of the data have."""
    x, _, _ = keras.utils.unpack_x_y_sample_weight(element_spec)
    of_x = base.have_rows(element_spec)[: len(tf.nest.flatten(x))]
    if cluster.num_replicas > 1 and not compiled_model.overrides(model, "predict_step") and not any(of_x):
        raise ValueError(
            "The data of predict has a known number of rows in x, but not in other parts, so x seems to have no "
            f"rows: pass data of x alone, such as data.map(lambda x, y: x). Received: {element_spec}"
        )


class Predictor:
    """Runs a model on batches, and gathers its outputs.

    Args:
        element_spec: nested tf.TensorSpec of a global batch, as it is in the data.
    """

    def __init__(self, cluster: Cluster, model: keras.Model, traced: plain_values.TracedValues, element_spec: Any):
        self._cluster, self._model, self._traced = cluster, model, traced
        self._alone = cluster.num_replicas == 1
        with cluster.scope():
            if not model.built:  # A step on several devices cannot build it.
                plain_values.trace_without_effect(model, model.predict_step, element_spec)
            self._divides = self._alone or not probe.may_mix(model) or self._rows_are_independent(element_spec)
            # The batches so far.
            self._count = keras.Variable(0, dtype="int64", trainable=False)
        compiled = functools.partial(tf.function, autograph=False, reduce_retracing=True)
        self._of_shards = compiled(self._run_shards)
        self._of_batch = compiled(self._run_batch)

    def _rows_are_independent(self, element_spec: Any) -> bool:
        """Returns whether the calls of layers that Keras' `predict_step` makes are known not to mix rows."""

        def trace(view: GlobalView, data: Any) -> None:
            with patches.patch_keras(), global_view.tracing_step(True, view):
                self._model.predict_step(view.whole_batch(data))

        if compiled_model.overrides(self._model, "predict_step"):
            return False
        divided = iter(base.have_rows(element_spec))

        def of_any_size(spec: Any) -> Any:  # The batches of later calls may have another size.
            if spec is None or not next(divided) or not isinstance(spec, tf.TensorSpec):
                return spec
            return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)

        with plain_values.restore_values(self._model):
            return not any(probe.mixing_layers(trace, tf.nest.map_structure(of_any_size, element_spec)))

    def __call__(self, iterator: Iterator, traced: set[str]) -> Any:
        """Predicts the next batch of `iterator`, and returns tensors; `traced`: see `run_steps`. Collective."""
        with self._own_draws() if "predict" not in traced else contextlib.nullcontext():
            element, outputs = self._traced.run_steps(traced, "predict", self._of_shards, iterator)
        if not self._alone:
            self._count.assign_add(1)
        if self._alone:
            return outputs
        total = int(gather_lib.of_first_replica(self._cluster, element["total"]))
        if outputs is not None and all(one.shape[0] == total for one in tf.nest.flatten(outputs)):
            return outputs
        with self._traced.as_traced("predict"):
            return self._of_batch(element)

    @contextlib.contextmanager
    def _own_draws(self) -> Iterator[None]:
        """In the block, which traces predictions, the replicas draw different numbers; one alone draws as in Keras."""
        with trainer.advance_in_block(self._model):
            if not self._alone:
                trainer.make_stateless(self._model, self._count, replicas_lib.replica_id, seed=0)
            yield

    def _run_shards(self, iterator: Iterator) -> tuple[Any, Any]:
        """Returns the next batch and its outputs; these are None if the replicas' outputs are not rows of the batch."""
        element = next(iterator)
        outputs = self._cluster.strategy.run(self._on_shard, args=(element,))
        return element, None if outputs is None else gather_lib.gather(self._cluster, outputs)

    @tf.autograph.experimental.do_not_convert
    def _on_shard(self, element: Element) -> Any:
        """Returns the outputs of a replica's shard; None if they are not rows of one known shape."""
        trainer.begin_evaluation_pass()
        outputs = self._model.predict_step(element["data"][0]) if self._divides else None
        if self._alone:
            return outputs
        if not all(_are_rows(one) for one in tf.nest.flatten(outputs)):
            return None
        present = tf.cast(element["count"] > 0, tf.int64)  # An empty shard has a blank example.
        return tf.nest.map_structure(lambda one: one[: present * tf.shape(one, tf.int64)[0]], outputs)

    def _run_batch(self, element: Element) -> Any:
        """Computes the whole batch on every replica, and returns the outputs of the first one."""

        def rows(element: Element) -> Any:
            return tf.nest.map_structure(lambda part: gather_lib.first_rows(part, element["count"]), element["data"])

        step, run = tf.autograph.experimental.do_not_convert(self._model.predict_step), self._cluster.strategy.run
        (data,) = gather_lib.gather(self._cluster, run(rows, args=(element,)))
        return gather_lib.of_first_replica(self._cluster, run(step, args=(data,)))


def _are_rows(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and bool(value.shape.rank) and value.shape[1:].is_fully_defined()


def gather(
    cluster: Cluster,
    predictor: Predictor,
    elements: Iterator,
    steps: int,
    callbacks: trainer.CallbackRunner,
) -> Any:
    """Computes the outputs of `steps` batches, each replica its shard. Collective: all workers call it.

    Args:
        elements: what `Cluster.distribute` returned for the dataset of a data adapter.

    Returns:
        Arrays [examples, ...] in the order of the data, in the structure of the model's outputs.
        As in Keras, ragged tensors where the batches have rows of different shapes.
    """
    batches: list[Any] = []
    traced: set[str] = set()
    callbacks.call("on_predict_begin")
    for index in range(steps):
        callbacks.before_steps("predict", index)
        with cluster.monitor.in_collective("tfdist.predict"):
            outputs = predictor(elements, traced)
            outputs = tf.nest.map_structure(lambda one: one.cpu() if isinstance(one, tf.Tensor) else one, outputs)
        batches.append(outputs)
        cluster.monitor.note_progress(index + 1)
        callbacks.after_steps("predict", index, steps, functools.partial(dict, outputs=outputs))
        if callbacks.ends("predict", index + 1):
            break
    callbacks.call("on_predict_end")
    with tf.device("CPU:0"):
        found = tf.nest.map_structure(lambda *parts: keras_trainer.potentially_ragged_concat([*parts]), *batches)
    return tf.nest.map_structure(lambda one: one.numpy() if isinstance(one, tf.Tensor) else one, found)
