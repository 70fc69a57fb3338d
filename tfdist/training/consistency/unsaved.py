"""Refuses a training step that writes variables that no checkpoint holds."""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster.devices import replicas
from tfdist.data import stateful_ops
from tfdist.training.run import Run


def refuse_unsaved(run: Run, run_steps: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `run_steps`, a `tf.function`, whose graph is checked after its first call.

    A resumed run would not have the values of variables that no checkpoint holds. Those that the graph only reads are
    watched: a callback may change them.

    Raises:
        ValueError: in the first call; names the variables that the graph writes and no checkpoint of `run` holds.
    """
    unchecked = [True]

    @functools.wraps(run_steps, updated=())
    def call(*args: Any) -> Any:
        result = run_steps(*args)
        if unchecked:
            unchecked.clear()
            if not tf.config.functions_run_eagerly():
                _check(run, run_steps.get_concrete_function(*args).graph)
        return result

    return call


def _check(run: Run, graph: Any) -> None:
    written = stateful_ops.written_inputs(graph)
    known = {id(handle) for handle in _known_handles(run)}
    captured = {id(external): inside.op.name for external, inside in graph.captures if id(external) not in known}
    handles = [one for one, name in captured.items() if name in written]
    if handles:
        names = {id(one.handle): one.name.partition("/replica_")[0].partition(":")[0] for one in graph.variables}
        found = ", ".join(sorted({names.get(one, "one without a name") for one in handles}))
        raise ValueError(
            f"The training step writes variables that belong neither to the model nor to its optimizer: {found}. "
            "No checkpoint holds them and replicas do not share them: a resumed run would be another run. Make each in "
            "a layer: add_weight(..., trainable=False), or a keras.Variable or SeedGenerator in an attribute."
        )
    held = {id(handle) for handle in _handles(run, run.callbacks.held)}
    run.callbacks.watch([one for one in graph.variables if id(one.handle) in captured.keys() - held])


def _known_handles(run: Run) -> Iterator[tf.Tensor]:
    """Yields the handles of this worker's copies of all variables that a step may write."""
    context = run.context
    known = [
        *run.variables.values(),
        context.totals,
        context.reduction.seconds,
        *context.model.metrics_variables,
        *(ring.count for ring in replicas.rings),
    ]
    state = getattr(context.objective, "metric_state", None)
    known += [] if state is None else state.variables()
    yield from _handles(run, known)


def _handles(run: Run, variables: Iterable[Any]) -> Iterator[tf.Tensor]:
    for variable in map(checkpoint_format.tf_variable, variables):
        yield from (local.handle for local in run.cluster.local_values(variable))
