"""`tfdist.step` and `tfdist.batches`: a training loop of one's own, distributed; docs/scripts.md has an example.

The function is the `train_step` of a model that holds what it refers to, so all that holds for such a step holds here.
"""

import contextlib
import dataclasses
import functools
import inspect
import os
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster import interruption
from tfdist.cluster.cluster import Cluster
from tfdist.config import user_code
from tfdist.data import autograph
from tfdist.keras_fit import connect, make_run, messages, patches
from tfdist.keras_fit.adapters import base, make_adapter, same_data
from tfdist.keras_fit.adapters.stream import Stream
from tfdist.keras_fit.own_step import own_setup, saved_passes
from tfdist.keras_fit.run_parts import config as run_config
from tfdist.keras_fit.script import script_state
from tfdist.training import api as trainer

_TRACKED = (keras.Layer, keras.Optimizer, keras.Metric, keras.Loss, keras.Variable, keras.random.SeedGenerator)


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """A global batch, of which each replica has its rows; for the functions that `tfdist.step` makes."""

    element: Any
    # Of `element`, and as a text, which is a key.
    spec: Any
    kind: str
    data: base.DataAdapter


class _Loop(keras.Model):
    """Holds what a step refers to; its `train_step` is the step."""

    def __init__(self, function: Callable[[Any], Any], parts: list[Any]):
        super().__init__()
        self.function, self.parts = function, parts
        self.built = True

    def train_step(self, data: Any) -> Any:
        return self.function(data)


class OneStep:
    """A step of a model on one batch, on all replicas: its `train_step`, or its `test_step` with `kind="test"`."""

    def __init__(self, model: keras.Model, kind: str = "train"):
        self._model, self._kind = model, kind
        # That of the last batch; and by the kind of the batch, with the function that is traced for it.
        self._own: own_setup.OwnStep | None = None
        self._made: dict[str, tuple[own_setup.OwnStep, Callable[[Any], None]]] = {}
        self._compared = kind != "train"

    def __call__(self, batch: Batch) -> dict[str, Any]:
        """Makes one step. Collective: every worker calls it with its part of the batch; returns numbers by name."""
        cluster = _cluster()
        with script_state.running():
            if batch.kind not in self._made:
                self.make(cluster, batch)
            self._own, run = self._made[batch.kind]
            with cluster.monitor.in_collective("a step"):
                run(batch.element)
            if not self._compared:
                self._compared = True
                own_setup.compare_replicas(cluster, self._name, self._own.context, self.variables)
            return self._own.context.objective.results({"trained": float(self._kind == "train")})

    @property
    def _name(self) -> str:
        return f"{type(self._model).__name__}.train_step"

    @property
    def variables(self) -> dict[str, Any]:
        """What a checkpoint holds, by name; empty before the first step."""
        if self._own is None:
            return {}
        context = self._own.context
        return checkpoint_format.named_variables(context.model, context.optimizer, self._own.variables)

    @property
    def objective(self) -> Any:
        """Has the state of the metrics; None before the first step."""
        return None if self._own is None else self._own.context.objective

    def make(self, cluster: Cluster, batch: Batch) -> None:
        """Makes the variables of the step, and its function for batches of the kind of `batch`; reads no element."""
        with script_state.without_counting_draws(), patches.patch_for_run(self._model) as stack:
            config = run_config.of_evaluation(self._model, batch.data.batch_size)
            adapters = {self._kind: batch.data}
            self._own = own_setup.prepare(cluster, self._model, config, adapters, as_given=True, stack=stack)
            traced = own_setup.trace(cluster, self._own.context, self._kind, batch.spec)
            self._made[batch.kind] = self._own, traced


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
        # The structure of the batch for which its variables were made; "": not yet.
        self.made_for = ""
        super().__init__(None)

    def __call__(self, batch: Batch) -> Any:
        """Makes one step. Collective: every worker calls it with its part of the batch.

        Args:
            batch: of `batches`.

        Returns:
            What the function returns, as numbers: means over the examples of the global batch, and results of metrics.

        Raises:
            ValueError: the function cannot be distributed, or `batch` is not one of `batches`.
        """
        if not isinstance(batch, Batch):
            raise ValueError(
                "A function of tfdist.step takes a batch of tfdist.batches: `for batch in tfdist.batches(dataset): "
                f"values = step(batch)`. Received: {type(batch).__name__}"
            )
        values = super().__call__(batch)
        if set(values) == {"value"}:
            return values["value"]
        if all(name.isdecimal() for name in values):
            return tuple(values[name] for name in sorted(values, key=int))
        return {name: values[name] for name in self._names if name in values} | values

    @property
    def _name(self) -> str:
        return getattr(self, "__name__", "The step")

    def make(self, cluster: Cluster, batch: Batch) -> None:
        if self._model is None:
            with cluster.scope():
                optimizers = [one for one in self._parts if isinstance(one, keras.Optimizer)]
                others = [one for one in self._parts if not isinstance(one, keras.Optimizer)]
                self._model = _Loop(self._call_by_name, others)
                self._model.compile(optimizer=optimizers[0] if optimizers else "sgd")
        super().make(cluster, batch)
        self.made_for = self.made_for or _structure(batch.data)
        for place in _places.values():
            place.restore_rest(cluster, self)

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
    """Makes a function that trains on one batch run on all replicas, each with its rows of the batch.

    The function holds gradient tapes, losses and `optimizer.apply`, as a `train_step` (docs/own_step.md). It takes a
    batch, or the parts of a batch that is a tuple, and returns scalars: a dict, a tuple or one. Models, optimizers and
    metrics that it refers to, by closures or globals, are found; make them after `tfdist.connect()`, in its scope.

    Args:
        function: called once to be traced, not once a step.

    Returns:
        A function of a batch of `tfdist.batches`.
    """
    made = Step(function)
    _steps.append(made)
    return made


def batches(
    dataset: Any, *, batch_size: int | None = None, workdir: os.PathLike | str | None = None
) -> Iterator[Batch]:
    """Yields the global batches of one pass over `dataset`, which every worker passes alike. Collective.

    Args:
        dataset: a batched `tf.data.Dataset`, a `keras.utils.PyDataset`, or arrays.
        batch_size: examples of a step over all replicas, for arrays.
        workdir: shared directory of the loop. After each pass, and after a stop signal, all that the steps use is saved
            there; the same script then skips the passes and batches that were finished, and has after each pass the
            values that were saved then. So the script must let each pass end. None: nothing is saved.

    Raises:
        ValueError: the data is not supported, or workers have other data.
        WorkdirInUseError: another run writes to the workdir.
        SystemExit: code 75: stopped by a signal and saved in the workdir. Run the script again to resume.
    """
    cluster = _cluster()
    options = base.DataOptions(as_given=True, batch_size=batch_size)
    with script_state.running():
        data = make_adapter.make_data_adapter(dataset, None, None, options)
        same_data.check_same_data(cluster, data)

        def read(first: int, *, nothing: bool = False) -> tuple[Iterator[Any], Batch]:
            # Of no steps, it takes no pass of a shuffle.
            dataset = data.dataset(trainer.replica_shard(cluster), first, first if nothing else data.steps)
            elements = cluster.distribute(dataset)
            return elements, Batch(None, elements.element_spec, str(elements.element_spec), data)

        place = None if workdir is None else _place(cluster, make_run.to_path(workdir))
        first = 0 if place is None else place.begin_pass(cluster, _structure(data), lambda: read(0, nothing=True)[1])
        if first >= data.steps:
            data.skip_pass()
            return
        elements, batch = read(first)
    with interruption.handlers_if(place is not None) as stop:
        for index in range(first, data.steps):
            with script_state.running():
                element = next(elements)
            try:
                yield dataclasses.replace(batch, element=element)
            except GeneratorExit:  # The script leaves the pass.
                cluster.monitor.stop_timer()
                raise
            cluster.monitor.note_progress(index + 1)
            if place is not None and index + 1 < data.steps and cluster.any_worker(stop.requested()):
                place.save(cluster, index + 1)
                raise _report_stop(cluster, stop, place)
        cluster.monitor.stop_timer()
        if place is not None:
            place.save(cluster, 0, finished=True)
            if cluster.any_worker(stop.requested()):
                raise _report_stop(cluster, stop, place)


def _report_stop(cluster: Cluster, stop: interruption.StopRequest, place: saved_passes.Place) -> SystemExit:
    """Prints that the loop was stopped and saved; returns the exception that ends the script."""
    if cluster.is_chief:
        by = stop.reason or "another worker"
        messages.say(f"stopped by {by} and saved in {place.directory.parent}: run the same command to resume")
    return SystemExit(interruption.EXIT_STOPPED)


def on_batch(
    cluster: Cluster, model: keras.Model, kind: str, data: tuple, class_weight: dict[int, float] | None = None
) -> dict[str, Any]:
    """Makes a step of `model` on a global batch, as Keras' train_on_batch and test_on_batch. Collective.

    Args:
        kind: "train" or "test".
        data: (x, y, sample_weight), the same on every worker; None for parts that are not given.

    Returns:
        The model's metrics by name, since they were reset.
    """
    given = tuple(part for part in data if part is not None)
    dataset = tf.data.Dataset.from_tensors(keras.tree.lists_to_tuples(given))
    with script_state.running():
        options = base.DataOptions(as_given=True, class_weight=class_weight)
        adapter = _with_all_parts(make_adapter.make_data_adapter(dataset, None, None, options))
        elements = cluster.distribute(adapter.dataset(trainer.replica_shard(cluster), 0, 1))
        spec = elements.element_spec
        make_step = make_run.made_on_model(cluster, model, f"{kind}_on_batch", lambda: OneStep(model, kind))
        return make_step(Batch(next(elements), spec, str(spec), adapter))


def _with_all_parts(adapter: Stream) -> Stream:
    """Returns an adapter whose batches are (x, y, sample_weight), with None as in Keras for what is not given."""

    def complete(given: tuple) -> tuple:
        return ((*given[0], *(None,) * (3 - len(given[0]))),)

    unpack = adapter.unpack
    complete_spec = complete(adapter.element_spec)
    return dataclasses.replace(adapter, unpack=lambda rows: complete(unpack(rows)), element_spec=complete_spec)


_steps: list[Step] = []
_places: dict[Path, saved_passes.Place] = {}


def _place(cluster: Cluster, workdir: Path) -> saved_passes.Place:
    """Returns the place of a workdir, which is this loop's until the process ends.

    Raises:
        WorkdirInUseError: another run writes to the workdir.
    """
    if workdir not in _places:
        own_setup.lock(cluster, workdir)
        _places[workdir] = saved_passes.Place.open(cluster, workdir, _steps)
    return _places[workdir]


def _structure(data: base.DataAdapter) -> str:
    """Returns a text that is equal for batches that a step takes alike, on any number of replicas."""
    return str(data.element_spec)


def _cluster() -> Cluster:
    cluster = connect.current_cluster()
    if cluster is None:
        raise ValueError(
            "tfdist.step and tfdist.batches need the workers: call tfdist.connect() at the start of the script, and "
            "make models in its scope, or start the script by `python -m tfdist.run`."
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
            with contextlib.suppress(ValueError):  # A name of a closure that has no value yet.
                used = inspect.getclosurevars(value)
                waiting += [*used.nonlocals.values(), *used.globals.values()]
        elif isinstance(value, list | tuple | set):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
        elif user_code.defines(type(value)) and hasattr(value, "__dict__"):
            waiting += vars(value).values()
    return found
