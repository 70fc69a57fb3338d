"""Makes what a run of a script needs to call the steps of its model: Keras' own, or those of the user."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster.cluster import Cluster
from tfdist.config import text
from tfdist.config.patching import patch, replace_attribute
from tfdist.keras_fit import compiled_model
from tfdist.keras_fit.adapters.base import DataAdapter
from tfdist.keras_fit.own_step import discover, own_objective
from tfdist.keras_fit.own_step.own_objective import OwnStepObjective
from tfdist.keras_fit.whole_batch import global_view, own_rows
from tfdist.keras_fit.whole_batch.per_example import is_per_example
from tfdist.training import api as trainer

# Maximum number of variables that a message names.
_MAX_NAMED = 10


# The context of a model's steps; and by name the variables that a checkpoint holds in addition to those of the model
# and of the context's optimizer.
OwnStep = tuple[trainer.StepContext, dict[str, Any]]


def overrides(model: keras.Model) -> bool:
    """Returns whether the model overrides one of the methods that decide the results of a step."""
    methods = ("train_step", "test_step", "compute_metrics")
    return any(compiled_model.overrides(model, name) for name in methods)


def check_graph(model: keras.Model) -> None:
    """Raises ValueError if steps run eagerly, by an argument of `compile` or a setting of TensorFlow."""
    if model.run_eagerly or tf.config.functions_run_eagerly():
        raise ValueError(
            "run_eagerly=True runs steps in Python, and tfdist runs them as graphs: remove it, or "
            "tf.config.run_functions_eagerly(True), or start the script without tfdist to debug it."
        )


def auto_jit_compile(cluster: Cluster, model: keras.Model) -> bool:
    """Returns the value of `jit_compile="auto"`: for Keras' steps on one replica as in Keras, otherwise False."""
    alone = cluster.num_replicas == 1 and not overrides(model)
    return alone and trainer.compiles_with_xla(config_lib.Train(), cluster.device_type, model)


def prepare(
    cluster: Cluster,
    model: keras.Model,
    config: config_lib.Config,
    adapters: dict[str, DataAdapter],
    *,
    stack: contextlib.ExitStack,
) -> OwnStep:
    """Finds out what the steps do, and makes the variables of the steps and their optimizers.

    Args:
        adapters: "train", "test" or both -> its data.
        stack: restores the optimizers and metrics.

    Raises:
        ValueError: a step cannot be distributed.
    """
    check_graph(model)
    found = {}
    for kind, data in adapters.items():
        (spec,) = data.element_spec
        found[kind] = discover.discover(cluster, model, f"{kind}_step", spec, data.batch_size, data.rows)
    if "train" in adapters and not compiled_model.overrides(model, "train_step"):
        trainer.check_trainable(model)
    optimizers = _optimizers_in_scope(cluster, model, found.values())
    for optimizer in optimizers:  # They get summed gradients, and use fused kernels.
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        stack.enter_context(trainer.restore_methods(inner))
        trainer.prepare_optimizer(inner, cluster)
    metrics = discover.all_metrics(model)
    variables = {id(one): one for metric in metrics for one in metric.variables}
    for variable in variables.values():
        # Each replica holds the value for the global batch, and not its part of a sum.
        if hasattr(variable.value, "aggregation"):
            replace_attribute(variable.value, "_aggregation", tf.VariableAggregation.ONLY_FIRST_REPLICA)
    for metric in metrics:
        stack.enter_context(patch(metric, "update_state", functools.partial(own_rows.update_metric, metric)))
    with cluster.scope():
        numbers = {kind: len(step.numbers) for kind, step in found.items()}
        last_numbers = {kind: own_rows.per_replica(size, "only_first_replica") for kind, size in numbers.items()}
        # Keras' own step applies the optimizer once, so the optimizer counts the steps.
        counts = type(model.optimizer) is not keras.optimizers.LossScaleOptimizer and model.trainable_variables
        by_optimizer = counts and not compiled_model.overrides(model, "train_step")
        steps = None if by_optimizer else keras.Variable(0, dtype="int64", trainable=False, name="steps")
        sums = {id(one) for metric in metrics if is_per_example(metric) for one in metric.variables}
        pending = own_rows.Pending(cluster, [one for one in variables.values() if id(one) in sums])
    step_objective = OwnStepObjective(
        model=model,
        steps=found,
        last_numbers=last_numbers,
        cluster=cluster,
        metric_variables=tuple(variables.values()),
        pending=pending,
    )
    main = model.optimizer if not optimizers or any(one is model.optimizer for one in optimizers) else optimizers[0]
    main = getattr(main, "inner_optimizer", main)
    of_layers = {id(variable) for layer in model.layers for variable in layer.variables}
    statistics = [v for v in trainer.find_statistics(model, frozen=True) if id(v) in of_layers]
    context = trainer.build_context(
        cluster, config, step_objective, main, slots="train" in adapters, moving=statistics, step_count=steps
    )
    if "train" in adapters:
        applied = {id(getattr(one, "inner_optimizer", one)): trained for one, trained in found["train"].optimizers}
        trainer.start_averages(main, applied.get(id(main)) or model.trainable_variables)
    return context, _more_variables(cluster, model, optimizers, context, steps)


def trace(cluster: Cluster, context: trainer.StepContext, kind: str, element_spec: Any) -> Callable[[Any], None]:
    """Traces one step of `kind`, "train" or "test", without a loop; called within `patches.patch_for_run`."""
    step = functools.partial(own_objective.train_step, context) if kind == "train" else context.objective.evaluate
    trainer.make_stateless(context.model, context.step_count, global_view.replica_of_draws, context.config.seed)

    @tf.function(autograph=False)
    def run(element: Any) -> None:
        with trainer.stateless_draws():
            cluster.strategy.run(step, args=(element,))

    return run.get_concrete_function(element_spec)


def _optimizers_in_scope(cluster: Cluster, model: keras.Model, steps: Iterable[Any]) -> list[Any]:
    """Returns the optimizers of `discover.Discovered` steps; raises ValueError if one was made outside of the scope."""
    optimizers = list({id(one): one for step in steps for one, _ in step.optimizers}.values())
    for optimizer in optimizers:
        if not cluster.created_here(trainer.step_count(optimizer).value):
            raise ValueError(
                f"The optimizer {optimizer.name!r} of {type(model).__name__} was made outside of cluster.scope(): make "
                "it within `with cluster.scope():`."
            )
    return optimizers


def _more_variables(
    cluster: Cluster,
    model: keras.Model,
    optimizers: list[Any],
    context: trainer.StepContext,
    steps: keras.Variable | None,
) -> dict[str, Any]:
    """Returns further variables of a checkpoint by name: of other optimizers, the step count, those in attributes."""
    saved = {id(variable) for variable in (*model.variables, *context.optimizer.variables)}
    more: dict[str, Any] = {} if steps is None else {"own_step/steps": steps}
    for index, optimizer in enumerate(optimizers):
        named = checkpoint_format.unique_names(f"own_step/optimizer{index}", optimizer.variables)
        more |= {name: variable for name, variable in named.items() if id(variable) not in saved}
    for name, variable in _plain_variables(model) if overrides(model) else ():
        if not cluster.created_here(variable):
            raise ValueError(
                f"The variable {type(model).__name__}.{name} was made outside of cluster.scope(): build the model "
                "within `with cluster.scope():`."
            )
        key = f"own_step/{name}"
        while key in more:  # Layers with the same name, or an attribute called `steps` or `optimizer0/...`.
            key += "#2"
        more[key] = variable
    return more


def _plain_variables(model: keras.Model) -> Iterator[tuple[str, tf.Variable]]:
    """Yields the tf.Variables in attributes of the model and its layers, which Keras does not track."""
    seen: set[int] = set()
    for layer in trainer.layers_of_all_depths(model):
        # Other attributes with an underscore are Keras' own.
        held = {
            name: value
            for name, value in vars(layer).items()
            if not name.startswith("_") or isinstance(value, tf.Variable | list | tuple)
        }
        for path, value in keras.tree.flatten_with_path(held):
            if isinstance(value, tf.Variable) and id(value) not in seen:
                seen.add(id(value))
                yield "/".join(map(str, path if layer is model else (layer.name, *path))), value


@contextlib.contextmanager
def explain_mismatch(name: str) -> Iterator[None]:
    """Turns a mismatch of the replicas after the first step of a run into a ValueError about the user's step `name`."""
    try:
        yield
    except trainer.ReplicaMismatchError as error:
        first = error.equal_at is not None and error.step == error.equal_at + 1
        if not first:
            raise
        raise ValueError(
            f"{name} cannot be distributed: after its first step the replicas have different values of "
            f"{text.list_names(error.variables, _MAX_NAMED)}. Assign variables only from tensors of the batch, from "
            "gradients of a tape and from random numbers of TensorFlow or Keras, which are equal on all replicas."
        ) from None


def compare_replicas(cluster: Cluster, name: str, own: OwnStep) -> None:
    """Compares the replicas' variables after the first call of the step `name`. Collective.

    Raises ValueError if they differ.
    """
    context, more = own
    variables = checkpoint_format.named_variables(context.model, context.optimizer, more)
    with explain_mismatch(name):
        trainer.Comparison(cluster=cluster, variables=variables, equal_at=0).check(1)
