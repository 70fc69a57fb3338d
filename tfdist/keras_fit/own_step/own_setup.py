"""Makes what a run needs for a model with a `train_step` or `test_step` of its own."""

import atexit
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster.cluster import Cluster
from tfdist.config.patching import patch
from tfdist.data.stream import ReplicaShard
from tfdist.keras_fit import compiled_model, patches
from tfdist.keras_fit.adapters.base import DataAdapter
from tfdist.keras_fit.own_step import discover, own_objective, replica_step
from tfdist.keras_fit.own_step.own_objective import OwnStepObjective
from tfdist.keras_fit.whole_batch import metric_state
from tfdist.training import api as trainer

# Variables that a message names.
_MAX_NAMED = 10


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OwnStep:
    """The parts of a run that depend on the user's step."""

    context: trainer.StepContext
    # Variables that a checkpoint holds besides those of the model and the context's optimizer, by name.
    variables: dict[str, Any]


def overrides(model: keras.Model) -> tuple[str, ...]:
    """Returns which of its methods the model overrides whose results are those of a step."""
    methods = ("train_step", "test_step", "compute_metrics")
    return tuple(name for name in methods if compiled_model.overrides(model, name))


def lock(cluster: Cluster, workdir: Path) -> None:
    """Makes this loop the only run in its workdir until the process ends; raises WorkdirInUseError."""
    if cluster.is_chief:
        atexit.register(trainer.lock_workdir(workdir, config_lib.ClusterOptions(), cluster.num_workers).release)


def auto_jit_compile(cluster: Cluster, model: keras.Model) -> bool:
    """Returns what `jit_compile="auto"` means: on one GPU, as in Keras, XLA where it can; on several replicas False."""
    alone = cluster.num_replicas == 1 and not overrides(model)
    return alone and trainer.by_xla(config_lib.Train(), cluster.device_type, model)


def prepare(
    cluster: Cluster,
    model: keras.Model,
    config: config_lib.Config,
    adapters: dict[str, DataAdapter],
    *,
    may_be_empty: bool,
    stack: contextlib.ExitStack,
) -> OwnStep:
    """Finds out what the steps do, and makes their optimizers' and their own variables.

    Args:
        adapters: "train", "test" or both -> its data.
        may_be_empty: whether a shard may have no examples.
        stack: restores the optimizers.
    """
    # An eager step changes variables that Keras does not track.
    plain = [(one, tf.identity(one)) for _, one in _plain_variables(model)] if model.run_eagerly else []
    given = {kind: adapter.element_spec[0] for kind, adapter in adapters.items()}
    found = {kind: discover.discover(cluster, model, f"{kind}_step", spec) for kind, spec in given.items()}
    for variable, value in plain:
        variable.assign(value)
    optimizers = _optimizers_in_scope(cluster, model, found.values())
    stack.enter_context(patches.expect_sums(optimizers, cluster))
    reported = [metric for of in found.values() for metric, _ in of.metrics.values()]
    stack.enter_context(metric_state.compute_on_whole_batch(cluster, [*metric_state.metrics_of(model), *reported]))
    for metric in {id(one): one for of in found.values() for one in of.used}.values():
        result = functools.partial(replica_step.ReplicaStep.result_of, metric=metric)
        stack.enter_context(patch(metric, "result", functools.partial(replica_step.call_in_step, result)))
    with cluster.scope():
        last_numbers = {kind: _per_replica(len(of.numbers)) for kind, of in found.items()}
        steps = keras.Variable(0, dtype="int64", trainable=False, name="steps")
    step_objective = OwnStepObjective(
        model=model,
        train=found.get("train"),
        test=found.get("test"),
        last_numbers=last_numbers,
        metric_state=metric_state.make_metric_state(
            cluster,
            lambda: [
                *own_objective.metric_variables(model, *found.values()),
                *(variable for variable in last_numbers.values() if variable.shape[0]),
            ],
        ),
        batch_sizes={kind: adapter.batch_size for kind, adapter in adapters.items()},
        may_be_empty=may_be_empty,
    )
    main = model.optimizer if not optimizers or any(one is model.optimizer for one in optimizers) else optimizers[0]
    main = getattr(main, "inner_optimizer", main)
    of_layers = {id(variable) for layer in model.layers for variable in layer.variables}
    statistics = [v for v in trainer.find_statistics(model, frozen=True) if id(v) in of_layers]
    context = trainer.build_context(
        cluster, config, step_objective, main, slots="train" in adapters, moving=statistics, step_count=steps
    )
    return OwnStep(context=context, variables=_more_variables(cluster, model, optimizers, context, steps))


def trace(cluster: Cluster, context: trainer.StepContext, kind: str, element_spec: Any) -> Callable[[Any], None]:
    """Traces one step of `kind`, "train" or "test", without a loop; called within `patches.patch_for_run`."""
    step = functools.partial(own_objective.train_step, context) if kind == "train" else context.objective.evaluate
    trainer.make_stateless(context.model, context.step_count, replica_step.replica_of_draws, context.config.seed)

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


def replica_shard(cluster: Cluster) -> ReplicaShard:
    """See `trainer.replica_shard`."""
    return trainer.replica_shard(cluster)


def _per_replica(size: int) -> keras.Variable:
    return keras.Variable(
        tf.zeros([size], tf.float64), dtype="float64", trainable=False, synchronization="on_read", aggregation="sum"
    )


def _more_variables(
    cluster: Cluster, model: keras.Model, optimizers: list[Any], context: trainer.StepContext, steps: keras.Variable
) -> dict[str, Any]:
    """Returns what a checkpoint must hold besides: other optimizers, the count of steps, variables in attributes."""
    saved = {id(variable) for variable in (*model.variables, *context.optimizer.variables)}
    more: dict[str, Any] = {"own_step/steps": steps}
    for index, optimizer in enumerate(optimizers):
        named = checkpoint_format.unique_names(f"own_step/optimizer{index}", optimizer.variables)
        more |= {name: variable for name, variable in named.items() if id(variable) not in saved}
    for name, variable in _plain_variables(model):
        if not cluster.created_here(variable):
            raise ValueError(
                f"The variable {type(model).__name__}.{name} was made outside of cluster.scope(): build the model "
                "within `with cluster.scope():`."
            )
        key = f"own_step/{name}"
        while key in more:  # Layers of one name, or an attribute that is called `steps` or `optimizer0/...`.
            key += "#2"
        more[key] = variable
    return more


def _plain_variables(model: keras.Model) -> Iterator[tuple[str, tf.Variable]]:
    """Yields the tf.Variables in attributes of the model and its layers, which Keras does not count as variables."""
    layers = [one for one in trainer.layers_of_all_depths(model) if one is not model]
    waiting = list(vars(model).items())
    waiting += [(f"{layer.name}/{name}", value) for layer in layers for name, value in vars(layer).items()]
    seen: set[int] = set()
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, tf.Variable):
            if id(value) not in seen:
                yield name, value
            seen.add(id(value))
        elif name.rpartition("/")[2].startswith("_"):  # Keras' own.
            continue
        elif isinstance(value, dict):
            waiting += [(f"{name}/{key}", one) for key, one in value.items()]
        elif isinstance(value, list | tuple):
            waiting += [(f"{name}/{index}", one) for index, one in enumerate(value)]


@contextlib.contextmanager
def explain_mismatch(name: str, found: Any) -> Iterator[None]:
    """Turns a mismatch of the replicas after the first step of a user's, called `name`, into a ValueError about it."""
    try:
        yield
    except trainer.ReplicaMismatchError as error:
        mismatch = error.mismatch
        first = mismatch is not None and mismatch.last_equal is not None and mismatch.step == mismatch.last_equal + 1
        if not first or not isinstance(found, OwnStepObjective):
            raise
        text = _undistributable(name, mismatch.variables, found.assigned)
        raise ValueError(text) from None


def compare_replicas(cluster: Cluster, name: str, context: trainer.StepContext, variables: dict[str, Any]) -> None:
    """Compares `variables` after the first step, called `name`, as a run does. Collective; raises ValueError."""
    check = trainer.make_check(
        cluster, variables, context.config.consistency, lambda text, step: None, trainer.act_on_mismatch
    )
    check.step = 0
    with explain_mismatch(name, context.objective):
        check.check(trainer.TrainingState(step=1))


def _undistributable(step_name: str, differing: Sequence[str], assigned: Mapping[str, set[str]]) -> str:
    """Returns the error for a step after which the replicas differ.

    Args:
        step_name: such as "GAN.train_step".
        differing: the names of the variables that differ between replicas.
        assigned: the lines that assign a variable other than by an optimizer, by the variable's path.
    """
    lines = []
    for name in differing[:_MAX_NAMED]:
        places = sorted(assigned.get(name.partition("/")[2].partition("#")[0], ()))
        lines.append("\n  ".join([name, *(f"  assigned in {place}" for place in places)]))
    if len(differing) > _MAX_NAMED:
        lines.append(f"and {len(differing) - _MAX_NAMED} more")
    return "\n  ".join(
        [f"{step_name} cannot be distributed. After its first step the replicas have different values of:", *lines]
    ) + (
        "\nGradients of variables, which a tape returns, are equal on all replicas, and losses are not: assign "
        "variables only from equal values, such as those gradients, weights or tfdist.all_gather(tensor)."
    )
