"""`tfdist.step` and `tfdist.batches` distribute a script's own training loop; docs/scripts.md has an example.

`tfdist.step` makes the script's function the `train_step` of a model that holds the objects it uses, so the rules of a
`train_step` apply.
"""

import contextlib
import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.cluster.cluster import Cluster
from tfdist.config import user_code
from tfdist.data import autograph
from tfdist.keras_fit import connect, make_run, patches
from tfdist.keras_fit.adapters import base, make_adapter, same_data
from tfdist.keras_fit.adapters.stream import Stream
from tfdist.keras_fit.own_step import own_setup
from tfdist.keras_fit.script import script_state
from tfdist.training import api as trainer

_TRACKED = (keras.Layer, keras.Optimizer, keras.Metric, keras.Loss, keras.Variable, keras.random.SeedGenerator)


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """A global batch, of which each replica has its rows; for the functions that `tfdist.step` makes."""

    element: Any
    # The spec of `element`.
    spec: Any
    data: base.DataAdapter


class _StepModel(keras.Model):
    """A model that holds the objects a step uses; its `train_step` is the step.

    Args:
        owner: the object whose method the step is; None: it is a function.
    """

    def __init__(self, function: Callable[[Any], Any], parts: list[Any], owner: Any):
        super().__init__()
        self.function, self.parts = function, parts
        vars(self)["owner"] = owner  # Keras does not track its variables a second time.
        self.built = True

    def train_step(self, data: Any) -> Any:
        return self.function(data)


class OneStep:
    """A step of a model on one batch, on all replicas: its `train_step`, or with the kind "test" its `test_step`."""

    def __init__(self, model: keras.Model | None, kind: str, name: str):
        self._model, self._kind, self._name = model, kind, name
        # Spec of a batch -> the step, and the function that is traced for this spec.
        self._made: dict[str, tuple[own_setup.OwnStep, Callable[[Any], None]]] = {}
        self._compared = kind != "train"

    def __call__(self, batch: Batch) -> dict[str, Any]:
        """Makes one step. Collective: every worker calls it with its part of the batch; returns numbers by name."""
        cluster = _cluster()
        with script_state.tfdist_code():
            kind = str(batch.spec)
            if kind not in self._made:
                self._made[kind] = self.make(cluster, batch)
            own, run = self._made[kind]
            with cluster.monitor.in_collective("a step"):
                run(batch.element)
            if not self._compared:
                self._compared = True
                own_setup.compare_replicas(cluster, self._name, own)
            return own[0].objective.results({"trained": float(self._kind == "train")})

    def make(self, cluster: Cluster, batch: Batch) -> tuple[own_setup.OwnStep, Callable[[Any], None]]:
        """Makes the variables of the step, and its function for batches with the spec of `batch`; reads no element."""
        with script_state.without_counting_draws(), patches.patch_for_run(self._model) as stack:
            config = make_run.config_of_evaluation(self._model, batch.data.batch_size)
            adapters = {self._kind: batch.data}
            own = own_setup.prepare(cluster, self._model, config, adapters, stack=stack)
            return own, own_setup.trace(cluster, own[0], self._kind, batch.spec)


class Step(OneStep):
    """A function that trains on one batch, on all replicas; made by `step`."""

    def __init__(self, function: Callable[..., Any]):
        if inspect.isfunction(function) and "self" in inspect.signature(function).parameters:
            name = function.__name__
            raise ValueError(
                f"tfdist.step decorates the method {name} in its class, where its object is not known. Remove the "
                f"decorator, and write self.{name} = tfdist.step(self.{name}) in __init__."
            )
        functools.update_wrapper(self, function, updated=())
        plain = getattr(function, "python_function", None)  # Decorated with tf.function.
        self._function = function if plain is None else autograph.convert(plain, plain.__name__)
        self._parts, self._names = _parts_of(plain or function), ()
        super().__init__(None, "train", getattr(self, "__name__", "The step"))

    def __call__(self, batch: Batch) -> Any:
        """Makes one step. Collective: every worker calls it with its part of the batch.

        Args:
            batch: from `batches`.

        Returns:
            What the function returns, as numbers: means over the examples of the global batch, and results of metrics.

        Raises:
            ValueError: the function cannot be distributed, or `batch` is not from `batches`.
        """
        if not isinstance(batch, Batch):
            raise ValueError(
                "A function made by tfdist.step takes a batch from tfdist.batches: `for batch in "
                f"tfdist.batches(dataset): values = step(batch)`. Received: {type(batch).__name__}"
            )
        values = super().__call__(batch)
        if set(values) == {"value"}:
            return values["value"]
        if all(name.isdecimal() for name in values):
            return tuple(values[name] for name in sorted(values, key=int))
        return {name: values[name] for name in self._names if name in values} | values

    def make(self, cluster: Cluster, batch: Batch) -> tuple[own_setup.OwnStep, Callable[[Any], None]]:
        if self._model is None:
            with cluster.scope():
                optimizers = [one for one in self._parts if isinstance(one, keras.Optimizer)]
                others = [one for one in self._parts if not isinstance(one, keras.Optimizer)]
                self._model = _StepModel(self._call_by_name, others, getattr(self._function, "__self__", None))
                self._model.compile(optimizer=optimizers[0] if optimizers else "sgd")
        return super().make(cluster, batch)

    def _call_by_name(self, data: Any) -> dict[str, Any]:
        several = len(inspect.signature(self._function).parameters) > 1
        values = self._function(*data) if several and isinstance(data, tuple) else self._function(data)
        if values is None or isinstance(values, dict):
            self._names = tuple(values or ())  # Keras sorts them.
            return values or {}
        if isinstance(values, list | tuple):
            return {str(index): value for index, value in enumerate(values)}
        return {"value": values}


def step(function: Callable[..., Any]) -> Step:
    """Distributes a function that trains on one batch: each replica runs it with its rows of the batch.

    The function uses gradient tapes, losses and `optimizer.apply`, like a `train_step` (docs/own_step.md). It takes a
    batch, or, if a batch is a tuple, one argument for each part. It returns a scalar, or a tuple or dict of scalars. It
    may use models, optimizers and metrics from closures or globals; make them after `tfdist.connect()`, in the scope of
    the cluster.

    Args:
        function: called only to be traced, not in each step.

    Returns:
        A function that takes a batch from `tfdist.batches`.
    """
    return Step(function)


def batches(dataset: Any, *, batch_size: int | None = None) -> Iterator[Batch]:
    """Yields the global batches of one pass over `dataset`, which is the same on every worker. Collective.

    Args:
        dataset: a batched `tf.data.Dataset`, a `keras.utils.PyDataset`, or arrays.
        batch_size: examples of a step over all replicas, for arrays.

    Raises:
        ValueError: the data is not supported, or the workers have different data.
    """
    cluster = _cluster()
    with script_state.tfdist_code():
        options = base.DataOptions(batch_size=batch_size)
        data = make_adapter.make_data_adapter(dataset, None, None, options)
        same_data.check_same_data(cluster, data)
        elements = cluster.distribute(data.dataset(trainer.replica_shard(cluster), 0, data.steps))
        batch = Batch(None, elements.element_spec, data)
    try:
        for index in range(data.steps):
            with script_state.tfdist_code():
                element = next(elements)
            yield dataclasses.replace(batch, element=element)
            cluster.monitor.note_progress(index + 1)
    finally:  # Also if the script leaves the loop early.
        cluster.monitor.stop_timer()


def on_batch(
    cluster: Cluster, model: keras.Model, kind: str, data: tuple, class_weight: dict[int, float] | None = None
) -> dict[str, Any]:
    """Makes a step of `model` on a global batch, as Keras' train_on_batch and test_on_batch. Collective.

    Args:
        kind: "train" or "test".
        data: (x, y, sample_weight), the same on every worker; None for parts that are not given.

    Returns:
        The model's metrics by name, over the steps since their reset.
    """
    given = tuple(part for part in data if part is not None)
    dataset = tf.data.Dataset.from_tensors(keras.tree.lists_to_tuples(given))
    with script_state.tfdist_code():
        options = base.DataOptions(class_weight=class_weight)
        adapter = _with_all_parts(make_adapter.make_data_adapter(dataset, None, None, options))
        elements = cluster.distribute(adapter.dataset(trainer.replica_shard(cluster), 0, 1))
        name = f"{type(model).__name__}.{kind}_step"
        make_step = make_run.keep_on_model(cluster, model, f"{kind}_on_batch", lambda: OneStep(model, kind, name))
        return make_step(Batch(next(elements), elements.element_spec, adapter))


def _with_all_parts(adapter: Stream) -> Stream:
    """Returns an adapter whose batches are (x, y, sample_weight), with None as in Keras for what is not given."""

    def complete(given: tuple) -> tuple:
        return ((*given[0], *(None,) * (3 - len(given[0]))),)

    unpack = adapter.unpack
    complete_spec = complete(adapter.element_spec)
    return dataclasses.replace(adapter, unpack=lambda rows: complete(unpack(rows)), element_spec=complete_spec)


def _cluster() -> Cluster:
    cluster = connect.current_cluster()
    if cluster is None:
        raise ValueError(
            "tfdist.step and tfdist.batches need the workers: call tfdist.connect() at the start of the script, and "
            "make models in its scope, or start the script with `python -m tfdist.run`."
        )
    return cluster


def _parts_of(function: Callable[..., Any]) -> list[Any]:
    """Returns the models, layers, optimizers, metrics, losses and variables that a function refers to."""
    found, seen, waiting = [], set(), [function]
    while waiting:
        value = waiting.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, (*_TRACKED, tf.Variable)):
            found.append(value)
        elif isinstance(value, types.MethodType):
            waiting += [value.__func__, value.__self__]
        elif isinstance(value, types.FunctionType):
            with contextlib.suppress(ValueError):  # A closure variable has no value yet.
                used = inspect.getclosurevars(value)
                waiting += [*used.nonlocals.values(), *used.globals.values()]
        elif isinstance(value, list | tuple | set):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
        elif user_code.defines(type(value)) and hasattr(value, "__dict__"):
            waiting += vars(value).values()
    return found
