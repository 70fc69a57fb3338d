"""Finds what a user's step applies and returns, by tracing it once without effect, before the run is made."""

import contextlib
import dataclasses
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.cluster.cluster import Cluster
from tfdist.config.patching import patch
from tfdist.data import autograph
from tfdist.keras_fit import compiled_model
from tfdist.keras_fit.own_step import eager_steps, replica_step
from tfdist.keras_fit.own_step.replica_step import ReplicaStep
from tfdist.keras_fit.whole_batch.rows import Rows

# train_step(data) -> the values that it reports.
StepFunction = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Discovered:
    """The results and updates of a user's step."""

    function: StepFunction
    # Reported name -> the metric whose result it is, and the key if the result is a dict.
    metrics: dict[str, tuple[keras.Metric, str | None]]
    # Reported names of other values, such as a loss that the step computes.
    numbers: tuple[str, ...]
    # All reported names, in the order of Keras' logs.
    names: tuple[str, ...]
    # The metrics with whose results the step computes, such as a ratio of two.
    used: tuple[keras.Metric, ...]
    # The optimizers that the step applies, in order, each with the variables of its first apply.
    optimizers: tuple[tuple[keras.optimizers.Optimizer, list[Any]], ...]


def function_of(model: keras.Model, name: str) -> StepFunction:
    """Returns `model.train_step` or `model.test_step`; one that is decorated with tf.function without the decorator."""
    plain = getattr(getattr(type(model), name), "python_function", None)
    if plain is None:
        return getattr(model, name)
    # The decorator turns AutoGraph on.
    return autograph.convert(types.MethodType(plain, model), f"{type(model).__name__}.{name}")


def discover(cluster: Cluster, model: keras.Model, name: str, element_spec: Any) -> Discovered:
    """Traces `model.NAME` without effect; builds layers and optimizers that are not built yet.

    Args:
        name: "train_step" or "test_step".
        element_spec: nested tf.TensorSpec of the data that the step gets.

    Raises:
        ValueError: the step returns something else than a dict of scalars and results of metrics, or an optimizer
            was made outside of the scope.
    """
    function = function_of(model, name)
    applied: dict[int, tuple[keras.optimizers.Optimizer, list[Any]]] = {}
    found: list[Any] = []
    used: list[keras.Metric] = []

    def apply(optimizer: Any, original: Any, gradients: Sequence[Any], variables: Sequence[Any] | None) -> None:
        applied.setdefault(id(optimizer), (optimizer, list(variables or ())))

    def trace(data: Any) -> None:
        zero = tf.zeros([], tf.int64)
        rows = Rows(low=zero, count=zero + 1, total=zero + 1, most=1, replicas=cluster.num_replicas)
        step = ReplicaStep(rows=rows, apply=apply, without_effect=True)
        with replica_step.tracing(step), _note_results(model) as (noted, results):
            values = _flat(function(data), f"{type(model).__name__}.{name}")
        found.extend((values, noted))
        # Where operations are not known, the step may use any result.
        used.extend(
            metric
            for metric, tensors in results
            if any(tf.executing_eagerly() or (isinstance(one, tf.Tensor) and one.consumers()) for one in tensors)
        )

    with cluster.scope():
        eager_steps.call_without_effect(model, trace, element_spec)
    values, noted = found
    for key, value in values.items():
        shape = tf.convert_to_tensor(value).shape
        if shape.rank != 0 and id(value) not in noted:
            raise ValueError(
                f"{type(model).__name__}.{name} must return scalars: {key!r} has shape {shape}. Return its mean."
            )
    for optimizer, variables in applied.values():
        with cluster.scope():
            if not optimizer.built:
                optimizer.build(variables)
    return Discovered(
        function=function,
        metrics={key: noted[id(value)] for key, value in values.items() if id(value) in noted},
        numbers=tuple(key for key, value in values.items() if id(value) not in noted),
        names=tuple(values),
        used=tuple({id(metric): metric for metric in used}.values()),
        optimizers=tuple(applied.values()),
    )


def scalars(values: Any, names: Sequence[str]) -> list[tf.Tensor]:
    """Returns the values of `names` ([] each) of what a step returned; of several, the mean."""
    flat = _flat(values, "The step")
    found = [tf.convert_to_tensor(flat[name]) for name in names]
    return [tf.reduce_mean(one) if one.shape.rank else one for one in found]


def _flat(values: Any, step: str) -> dict[str, Any]:
    """Returns what a step returned as one dict, as Keras does for dicts within it."""
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ValueError(f"{step} must return a dict of scalars by name. Received: {type(values).__name__}")
    return compiled_model.flat(_sort_names(values))


def _sort_names(values: dict[str, Any]) -> dict[str, Any]:
    """Sorts the names as tf.function does in what it returns: those of each dict."""
    return {name: _sort_names(value) if isinstance(value, dict) else value for name, value in sorted(values.items())}


@contextlib.contextmanager
def _note_results(model: keras.Model) -> Iterator[tuple[dict, list]]:
    """Notes which tensors are results of metrics.

    Returns:
        id(tensor) -> the metric, and the key if its result is a dict; and each metric with its results.
    """
    noted: dict[int, tuple[keras.Metric, str | None]] = {}
    # The tensors must live as long as their ids are used.
    kept: list[tuple[keras.Metric, list[Any]]] = []

    def note(metric: keras.Metric, original: Callable[[], Any]) -> Any:
        result = original()
        parts = compiled_model.flat(result) if isinstance(result, dict) else {None: result}
        kept.append((metric, list(parts.values())))
        for key, value in parts.items():
            noted[id(value)] = (metric, key)
        return result

    attributes = [value for value in vars(model).values() if isinstance(value, keras.Metric)]
    metrics = list({id(metric): metric for metric in (*model.metrics, *attributes)}.values())
    with contextlib.ExitStack() as stack:
        for metric in metrics:
            stack.enter_context(patch(metric, "result", functools.partial(note, metric)))
        yield noted, kept
