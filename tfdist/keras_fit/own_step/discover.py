"""Finds the optimizers that a step applies, the values that it returns and the tensors that it reads.

This is done before the run is made, by traces without effect.
"""

import contextlib
import dataclasses
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.cluster.cluster import Cluster
from tfdist.config import patching, text, user_code
from tfdist.config.patching import patch
from tfdist.data import autograph
from tfdist.keras_fit import compiled_model, messages
from tfdist.keras_fit.adapters import base
from tfdist.keras_fit.own_step import plain_values
from tfdist.keras_fit.whole_batch import global_view, own_rows, probe
from tfdist.keras_fit.whole_batch.global_view import GlobalView, Plan

# The trace without effect has this many times the rows of a batch: no other tensor has as many rows by chance.
_TRACED_BATCHES = 997
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
    # What the step does with the tensors of the batch.
    plan: Plan
    # The optimizers that the step applies, in order, each with the variables of its first apply.
    optimizers: tuple[tuple[keras.optimizers.Optimizer, list[Any]], ...]


def _function_of(model: keras.Model, name: str) -> StepFunction:
    """Returns `model.train_step` or `model.test_step`, without the decorator tf.function if it has one."""
    plain = getattr(getattr(type(model), name), "python_function", None)
    if plain is None:
        return getattr(model, name)
    # The decorator turns AutoGraph on.
    return autograph.convert(types.MethodType(plain, model), f"{type(model).__name__}.{name}")


def discover(
    cluster: Cluster, model: keras.Model, name: str, element_spec: Any, batch_size: int, rows: Sequence[int] = ()
) -> Discovered:
    """Traces `model.NAME` without effect; builds layers and optimizers that are not built yet.

    Args:
        name: "train_step" or "test_step".
        element_spec: nested tf.TensorSpec of the data that the step gets.
        batch_size: examples of the largest global batch.
        rows: the number of rows of each tensor of the batch, if they differ.

    Raises:
        ValueError: the step returns something other than a dict of scalars and results of metrics, `test_step` applies
            an optimizer, or an optimizer is applied in a loop, a nested condition or an inner function.
    """
    function = _function_of(model, name)
    applied: dict[int, tuple[keras.optimizers.Optimizer, list[Any]]] = {}

    def apply(_: Any, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any] | None = None) -> None:
        if name == "test_step":
            raise ValueError(f"test_step applies the optimizer {optimizer.name!r}: an evaluation must not train.")
        view = global_view.of_step()
        if view.in_inner_graph:
            if tf.compat.v1.get_default_graph() is not view.branch:
                raise ValueError(
                    f"The optimizer {optimizer.name!r} is applied inside a tf.while_loop, a nested tf.cond or an "
                    f"inner tf.function, in {user_code.current_line()}\nAll replicas must apply together: apply "
                    "in train_step itself or in a tf.cond directly in it; for several updates, use a Python loop."
                )
            view.branch_updates = True
        applied.setdefault(id(optimizer), (optimizer, list(variables or ())))

    def run(view: GlobalView, data: Any) -> tuple[dict[str, Any], dict[int, tuple[keras.Metric, str | None]]]:
        with contextlib.ExitStack() as stack, global_view.tracing_step(True, view):
            for kind in _subclasses(keras.optimizers.Optimizer):
                if "apply" in vars(kind):
                    stack.enter_context(patch(kind, "apply", apply))
            stack.enter_context(patch(keras.Variable, "assign", functools.partial(_assign, view)))
            with _note_results(model, view.plan) as noted:
                values = _flat(function(view.whole_batch(data)), f"{type(model).__name__}.{name}")
            view.mark(list(values.values()))
            view.finish()
        return values, noted

    flat = tf.nest.flatten(element_spec)
    divided = base.have_rows(element_spec)
    present = [one for one in flat if one is not None]
    with_a_row = [one for one, has in zip(present, divided, strict=True) if has and isinstance(one, tf.TensorSpec)]
    is_static = all(one.shape.rank and one.shape[0] for one in with_a_row)
    sizes = rows if len(rows) == len(flat) else [batch_size] * len(flat)
    whole_layers: list[keras.Layer] = []

    def dry_run(batch: int, *, repeats: bool = True) -> Discovered:
        """Traces the step for a batch of this size, and again if it made metrics or a layer must get whole tensors."""
        found: list[Any] = []

        def trace(data: Any) -> None:
            numbers = base.numbers_of_rows(data, divided)
            view = GlobalView.of_batch(batch, cluster.num_replicas, numbers, whole_layers)
            view.plan.is_static, view.plan.examples = is_static, batch_size
            found[:] = [view.plan, *run(view, data)]

        pairs = zip(flat, sizes, strict=True)
        specs = [_with_rows(spec, size * batch // batch_size or 1) for spec, size in pairs]
        num_metrics = len(all_metrics(model))
        plain_values.trace_without_effect(model, trace, tf.nest.pack_sequence_as(element_spec, specs))
        plan, values, noted = found
        whole_layers.extend(plan.updating)
        if repeats and (plan.updating or len(all_metrics(model)) > num_metrics):
            return dry_run(batch, repeats=False)
        for key, value in values.items():
            shape = tf.convert_to_tensor(value).shape
            if shape.rank != 0 and id(value) not in noted:
                raise ValueError(
                    f"{type(model).__name__}.{name} must return scalars: {key!r} has shape {shape}. Return its mean."
                )
        return Discovered(
            function=function,
            metrics={key: noted[id(value)] for key, value in values.items() if id(value) in noted},
            numbers=tuple(key for key, value in values.items() if id(value) not in noted),
            names=tuple(values),
            plan=plan,
            optimizers=tuple(applied.values()),
        )

    parts = [one for one in (model, compiled_model.losses(model), compiled_model.metrics(model)) if one is not None]
    batch = batch_size if is_static else _TRACED_BATCHES * batch_size
    with cluster.scope():
        # Layers are built for the shapes of the data, and error messages name these shapes.
        if not is_static and not all(getattr(one, "built", True) for one in parts):
            dry_run(batch_size, repeats=False)
        try:
            discovered = dry_run(batch)
        except Exception:  # The step may need the size of a batch.
            if is_static:
                raise
            batch = batch_size
            discovered = dry_run(batch)
        if cluster.num_replicas > 1 and probe.may_mix(model):
            with plain_values.restore_values(model):
                layers, names, untried = probe.mixing_layers(run, element_spec)
            known, of_keras = probe.layers_known_to_mix(model)
            _warn_of(names + of_keras, untried)
            if global_view.whole_calls and layers + known:
                whole_layers += layers + known
                discovered = dry_run(batch)
        for optimizer, variables in applied.values():
            if not optimizer.built:
                optimizer.build(variables)
    return discovered


def _assign(view: GlobalView, original: Callable, variable: keras.Variable, value: Any) -> Any:
    """Assigns nothing in a branch or loop: Keras would later read a tensor of the inner graph."""
    if not view.in_inner_graph:
        return original(variable, value)
    view.branch_updates = True
    return value


def _subclasses(kind: type) -> Iterator[type]:
    """Yields a class and all that inherit from it."""
    yield kind
    for one in kind.__subclasses__():
        yield from _subclasses(one)


def _warn_of(names: list[str], untried: list[str]) -> None:
    if untried:
        messages.log_once(
            "It is unknown whether these layers mix the examples of a batch, because they could not be tested: "
            f"{text.list_names(untried, 3)}. Each replica computes them for its own rows."
        )
    if names:
        own_rows_only = "its own rows. With --whole_calls=true, each uses the whole batch, as on one device"
        how = "the whole batch, because of --whole_calls" if global_view.whole_calls else own_rows_only
        messages.log_once(
            f"{text.list_names(names, 3)}: the result mixes the examples of a batch; each replica calls "
            f"the layer with {how}.",
            key=f"mixes {names}",
        )


def _with_rows(spec: Any, size: int) -> Any:
    """Returns `spec` with `size` rows if their number is unknown; that of ragged tensors stays unknown."""
    if isinstance(spec, tf.TensorSpec | tf.SparseTensorSpec) and spec.shape.rank:
        return type(spec)([spec.shape[0] or size, *spec.shape[1:]], spec.dtype)
    return spec


def scalars(values: Any, names: Sequence[str]) -> list[tf.Tensor]:
    """Returns the values of `names` in the result of a step as scalars: an array is replaced by its mean."""
    flat = _flat(values, "The step")
    found = [tf.convert_to_tensor(flat[name]) for name in names]
    return [tf.reduce_mean(one) if one.shape.rank else one for one in found]


def _flat(values: Any, step: str) -> dict[str, Any]:
    """Returns the result of a step as one flat dict, as Keras does."""
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ValueError(f"{step} must return a dict of scalars by name. Received: {type(values).__name__}")
    return compiled_model.flatten_results(_sort_names(values))


def _sort_names(values: dict[str, Any]) -> dict[str, Any]:
    """Sorts the names in each nested dict, as tf.function does for its results."""
    return {name: _sort_names(value) if isinstance(value, dict) else value for name, value in sorted(values.items())}


@contextlib.contextmanager
def _note_results(model: keras.Model, plan: Plan) -> Iterator[dict[int, tuple[keras.Metric, str | None]]]:
    """Notes which tensors are results of metrics: id(tensor) -> the metric, and the key if its result is a dict.

    Fills in `plan.read_metrics`: metrics that the step reads or resets. No other patches of metrics may be active.
    """
    noted: dict[int, tuple[keras.Metric, str | None]] = {}
    kept: list[tuple[keras.Metric, list[Any]]] = []  # The tensors must live as long as their ids are used.

    def note(metric: keras.Metric, original: Callable[[], Any]) -> Any:
        # A metric reads its own variables; these are not reads of the step's code.
        with patching.set_in_block(global_view.of_step(), in_layer=True):
            result = original()
        parts = compiled_model.flatten_results(result) if isinstance(result, dict) else {None: result}
        kept.append((metric, list(parts.values())))
        for key, value in parts.items():
            noted[id(value)] = (metric, key)
        return result

    def reset(metric: keras.Metric, original: Callable[[], None]) -> None:
        plan.read_metrics.add(id(metric))
        original()

    owners = {id(variable): id(metric) for metric in all_metrics(model) for variable in metric.variables}
    value = keras.Variable.value

    def read(variable: keras.Variable) -> Any:
        if id(variable) in owners and global_view.current() is not None:
            plan.read_metrics.add(owners[id(variable)])
        return value.fget(variable)

    with contextlib.ExitStack() as stack:
        stack.enter_context(patching.restore_after([keras.Variable], ["value"]))
        patching.replace_attribute(keras.Variable, "value", property(read))
        for metric in all_metrics(model):
            stack.enter_context(patch(metric, "result", functools.partial(note, metric)))
            stack.enter_context(patch(metric, "reset_state", functools.partial(reset, metric)))
            stack.enter_context(patch(metric, "update_state", functools.partial(own_rows.update_metric, metric)))
        yield noted
        plan.read_metrics |= {
            id(metric)
            for metric, tensors in kept
            if any(isinstance(one, tf.Tensor) and one.consumers() for one in tensors)
        }


def all_metrics(model: keras.Model) -> list[keras.Metric]:
    """Returns the metrics of a model, those in its attributes, and those in lists of metrics."""
    attributes = [value for value in vars(model).values() if isinstance(value, keras.Metric)]
    found = [*model.metrics, *attributes]
    found += [metric for one in found for metric in getattr(one, "metrics", None) or ()]
    return list({id(metric): metric for metric in found}.values())
