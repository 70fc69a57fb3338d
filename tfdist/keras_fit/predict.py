"""Computes the outputs of a model for all examples on all replicas, and gathers them on every worker.

Each replica runs the model on its shard of a batch. Outputs with one row per example, of one shape on all replicas, are
the rows of the batch, in turn. Others, such as a number, ragged rows, or the rows that a `predict_step` selects, are
computed on the whole batch: so they are those of one device. So are those of a model with layers of the user's, unless
random rows come out as their halves do: the layers may compare the examples of a batch.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.cluster.cluster import Cluster
from tfdist.cluster.devices import gather as gather_lib
from tfdist.keras_fit import compiled_model
from tfdist.keras_fit.adapters import base
from tfdist.keras_fit.own_step import eager_steps, plain_values
from tfdist.keras_fit.whole_batch import probe
from tfdist.keras_fit.whole_batch.rows import Element
from tfdist.training import api as trainer


def takes_data_as_given(model: keras.Model) -> bool:
    """Returns whether `predict_step` is the model's own, which gets the batches as they are in the data."""
    return compiled_model.overrides(model, "predict_step")


def check_rows(cluster: Cluster, model: keras.Model, element_spec: Any) -> None:
    """Raises ValueError if x seems to have no rows, beside others that have."""
    x = element_spec[0] if isinstance(element_spec, tuple) else element_spec
    of_x = base.have_rows(element_spec)[: len(tf.nest.flatten(x))]
    if cluster.num_replicas > 1 and not takes_data_as_given(model) and not any(of_x):
        raise ValueError(
            "The data of predict has a known number of rows in x, and an unknown one beside it, which hides that x has "
            f"rows: pass data of x alone, such as data.map(lambda x, y: x). Received: {element_spec}"
        )


def _data_of(model: keras.Model, data: Any) -> Any:
    return data[0] if takes_data_as_given(model) else data


class Predictor:
    """Runs a model on batches, and gathers its outputs; with `compile(run_eagerly=True)` in Python."""

    def __init__(self, cluster: Cluster, model: keras.Model, trace: plain_values.Trace, element_spec: Any):
        self._cluster, self._model, self._eager, self._trace = cluster, model, model.run_eagerly, trace
        spec = _data_of(model, element_spec)
        with cluster.scope():
            if not model.built:  # A step of several devices cannot.
                eager_steps.call_without_effect(model, model.predict_step, spec)
            with plain_values.put_back(model):
                may_mix = cluster.num_replicas > 1 and probe.may_mix(model)
                self._divides = not (may_mix and probe.mixes_rows(model.predict_step, spec))
        compiled = functools.partial(tf.function, autograph=False, reduce_retracing=True)
        # TensorFlow has no eager gather of several replicas.
        self._gather = compiled(functools.partial(gather_lib.gather, cluster))
        self._gather_batch = compiled(self._whole_batch)
        self._of_shards = self._run_shards if self._eager else compiled(self._run_shards)
        self._of_batch = self._run_batch if self._eager else compiled(self._run_batch)
        # By the type of the iterator.
        self._traced: dict[tf.TypeSpec, Callable[..., Any]] = {}
        # Whether outputs are gathered without a look at their shapes; known after a shard is run or traced.
        self._gathers = False

    def bind(self, iterator: Iterator) -> Callable[[], Any]:
        """Returns a function that predicts the next batch of `iterator`, and returns tensors. Collective.

        It traces here if the batches have new shapes or dtypes: TensorFlow would warn about tracing in a script with
        many models if it traced at a call.
        """
        run, divided = self._of_shards, self._divides
        if not self._eager:
            spec = tf.type_spec_from_value(iterator)
            if spec not in self._traced:
                with plain_values.as_traced(self._model, self._trace, traces_now=True):
                    self._traced[spec] = run.get_concrete_function(iterator)
            run = self._traced[spec]

        def of_batch(element: Element) -> Any:
            with plain_values.as_traced(self._model, self._trace):
                return self._of_batch(element)

        def predict() -> Any:
            nonlocal divided
            if not divided:
                return of_batch(next(iterator))
            element, outputs, sizes = run(iterator)
            if sizes is not None:
                sizes = self._gather(sizes)
                outputs = self._gather(outputs) if tf.reduce_all(sizes == sizes[0]) else None
            if self._cluster.num_replicas == 1:
                return outputs
            total = int(gather_lib.of_first_replica(self._cluster, element["total"]))
            divided = outputs is not None and all(one.shape[0] == total for one in tf.nest.flatten(outputs))
            return outputs if divided else of_batch(element)

        return predict

    def _run_shards(self, iterator: Iterator) -> tuple[Any, Any, Any]:
        """Returns the next batch, its outputs, gathered if their shapes are known, and if not the sizes of their rows.

        The outputs are None if they cannot be gathered.
        """
        element = next(iterator)
        with eager_steps.eager_if(self._eager):
            outputs, sizes = self._cluster.strategy.run(self._on_shard, args=(element,))
        return element, gather_lib.gather(self._cluster, outputs) if self._gathers else outputs, sizes

    @tf.autograph.experimental.do_not_convert
    def _on_shard(self, element: Element) -> tuple[Any, tf.Tensor | None]:
        """Returns the outputs of a replica's shard, and the sizes of their rows, if they are not known."""
        outputs = self._model.predict_step(_data_of(self._model, element["data"]))
        leaves, alone = tf.nest.flatten(outputs), self._cluster.num_replicas == 1
        known = not self._eager and all(_has_rows(one) and one.shape[1:].is_fully_defined() for one in leaves)
        self._gathers = alone or known
        if alone:
            return outputs, None
        if not all(_has_rows(one) for one in leaves):
            return None, None
        present = tf.cast(element["count"] > 0, tf.int64)  # An empty shard has a blank example.
        outputs = tf.nest.map_structure(lambda one: one[: present * tf.shape(one, tf.int64)[0]], outputs)
        return outputs, None if known else tf.concat([[0], *(tf.shape(one, tf.int64)[1:] for one in leaves)], 0)[None]

    def _run_batch(self, element: Element) -> Any:
        """Computes the whole batch on every replica, and returns the outputs of the first one."""
        step = tf.autograph.experimental.do_not_convert(self._model.predict_step)
        data = _data_of(self._model, self._gather_batch(element))
        with eager_steps.eager_if(self._eager):
            outputs = self._cluster.strategy.run(step, args=(data,))
        return gather_lib.of_first_replica(self._cluster, outputs)

    def _whole_batch(self, element: Element) -> Any:
        def rows(element: Element) -> Any:
            return tf.nest.map_structure(lambda part: gather_lib.first_rows(part, element["count"]), element["data"])

        return gather_lib.gather(self._cluster, self._cluster.strategy.run(rows, args=(element,)))


def _has_rows(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and value.shape.rank not in (None, 0)


def gather(
    cluster: Cluster,
    predictor: Predictor,
    elements: Iterator,
    steps: int,
    callbacks: trainer.CallbackRunner,
    *,
    keep: bool,
) -> Any:
    """Computes the outputs of `steps` batches, each replica its shard. Collective: all workers call it.

    Args:
        elements: what `Cluster.distribute` returned for the dataset of a data adapter.
        keep: whether this worker keeps the outputs of all batches in host memory.

    Returns:
        Arrays [examples, ...] in the order of the data, in the structure of the model's outputs; None without `keep`.
        As in Keras, ragged tensors where the batches have rows of different shapes.
    """
    batches = []
    callbacks.call("on_predict_begin")
    with cluster.monitor.in_collective("tfdist.predict"):
        predict = predictor.bind(elements)
    for index in range(steps):
        callbacks.before_steps("predict", index)
        with cluster.monitor.in_collective("tfdist.predict"):
            outputs = tf.nest.map_structure(lambda one: one.numpy() if isinstance(one, tf.Tensor) else one, predict())
        if keep:
            batches.append(outputs)
        cluster.monitor.note_progress(index + 1)
        callbacks.after_steps("predict", index, steps, functools.partial(dict, outputs=outputs))
        if callbacks.ends("predict", index + 1):
            break
    callbacks.call("on_predict_end")
    return tf.nest.map_structure(lambda *parts: _concatenate(parts), *batches) if keep else None


def _concatenate(parts: tuple[Any, ...]) -> Any:
    """Concatenates the outputs of batches as Keras does."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], tf.SparseTensor):
        return tf.sparse.concat(0, list(parts))
    if isinstance(parts[0], tf.RaggedTensor):
        return tf.concat(parts, 0)
    if not parts[0].ndim:
        return np.stack(parts)
    differs = [len(set(sizes)) > 1 for sizes in zip(*(part.shape[1:] for part in parts), strict=True)]
    if not any(differs):
        return np.concatenate(parts)
    equal_at_end = differs[::-1].index(True)
    inner = parts[0].shape[-equal_at_end:] if equal_at_end else None
    return tf.ragged.constant(list(parts), inner_shape=inner).merge_dims(0, 1)
