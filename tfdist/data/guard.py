"""Checks users' Python for effects that a graph does not show, and that a resumed run would not repeat.

A function is traced once: what it draws from global random numbers is then a constant, and what a callback changes in
Python later has no effect. A graph may call Python functions, draw from states, and write variables that no checkpoint
holds. `around` looks for all of these when a function is traced, `around_hook` after a hook of a callback.

A finding is an error if replicas or a resumed run would differ, and in a config's run also if there are several
workers; otherwise it is a warning.
"""

import contextlib
import dataclasses
import functools
import inspect
import itertools
import random
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.random import seed_generator
from tensorflow.python.framework import auto_control_deps_utils

from tfdist.config import text, user_code

# Types of ops that draw random numbers from a state.
RANDOM = {
    *("RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal", "ParameterizedTruncatedNormal"),
    *("Multinomial", "RandomShuffle", "RandomCrop", "RandomGamma", "RandomPoisson", "RandomPoissonV2"),
    *("StatefulStandardNormal", "StatefulStandardNormalV2", "StatefulTruncatedNormal", "StatefulUniform"),
    *("StatefulUniformInt", "StatefulUniformFullInt", "StatefulRandomBinomial", "NonDeterministicInts"),
    *("RngSkip", "RngReadAndSkip", "SampleDistortedBoundingBox", "SampleDistortedBoundingBoxV2"),
    *("UniformCandidateSampler", "LogUniformCandidateSampler", "LearnedUnigramCandidateSampler"),
    *("ThreadUnsafeUnigramCandidateSampler", "FixedUnigramCandidateSampler", "AllCandidateSampler"),
}
# Types of ops that call Python functions. Those that are declared stateless have another type.
_PYTHON = {"PyFunc", "EagerPyFunc"}
# Part of the names of tfdist's own ops of these types.
_OWN = "tfdist_time"
_MAX_NAMED = 5
_IN_INPUT = "TensorFlow's stateless functions, such as tf.image.stateless_random_brightness, with the seeds that "
_IN_INPUT += "config.data.prepare gets for each example"
_IN_STEP = "keras.random with a keras.random.SeedGenerator of the layer, or tf.random outside of loops, branches and "
_IN_STEP += "tf.functions"
# The methods of a user's model or layer in which a step may draw.
_METHODS = ("call", "train_step", "test_step", "compute_loss")
# Types of attributes that a trace may read as numbers and texts.
_PLAIN = (bool, int, float, str, type(None), list, tuple)


@dataclasses.dataclass(slots=True, kw_only=True)
class Guarded:
    """The run whose functions are traced."""

    several_workers: bool = False
    saved: bool = True
    # A script runs as it does under Keras, unless its workers or a resumed run would differ.
    is_script: bool = False
    warned: set[str] = dataclasses.field(default_factory=set)
    # What reads a variable, in words -> the variable, and its value at the trace.
    watched: dict[str, tuple[tf.Variable, bytes]] = dataclasses.field(default_factory=dict)


_run = Guarded()


def begin(run: Guarded) -> Guarded:
    """Begins or continues a run: functions traced from now on belong to it. Returns the previous run."""
    global _run
    before, _run = _run, run
    return before


def _report(message: str, *, refuse: bool = False, doubtful: bool = False) -> None:
    """Raises ValueError if a resumed run or a config's workers would differ, or if `refuse`; otherwise warns once.

    Args:
        doubtful: whether a resumed run may also be the same, so that saving the run alone is no reason for an error.
    """
    if refuse or (_run.saved and not doubtful) or (_run.several_workers and not _run.is_script):
        raise ValueError(message)
    if message not in _run.warned:
        _run.warned.add(message)
        print(f"tfdist: WARNING: {message}", file=sys.stderr, flush=True)


def around(
    function: Callable[..., Any],
    name: str,
    known: Callable[[], Mapping[int, bool]] | None = None,
    *,
    in_input: bool = False,
    draws: bool = True,
) -> Callable[..., Any]:
    """Returns `function`, which is checked when it is traced; messages name the file and the line.

    Args:
        name: for messages, such as "config.data.prepare".
        known: called after the trace; returns id of a variable's handle -> True if the function may write the variable,
            False if only callbacks may. None: another guard, around the calling function, checks the graph.
        in_input: whether a `tf.data.Dataset` calls it, which reads batches ahead.
        draws: whether to check for random numbers that it draws in Python.
    """
    advice, checked = _IN_INPUT if in_input else _IN_STEP, weakref.WeakSet()

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        if tf.executing_eagerly():
            return function(*args, **keywords)
        before = _random_states()
        result = function(*args, **keywords)
        graph = tf.compat.v1.get_default_graph()
        if known is not None and graph not in checked:  # Once for all replicas.
            checked.add(graph)
            _check_graph(graph, name, known(), _places(function, args), advice)
        drawn = [kind for kind, state in _random_states().items() if state != before[kind]]
        if drawn and draws:
            _report(
                f"{name} draws from the global random numbers of {' and '.join(drawn)} at "
                f"{_places(function, args) or 'a library'}, or in a function called there: it draws once, when it "
                f"is traced, and not for each batch. Use {advice}."
            )
        return result

    return call


@contextlib.contextmanager
def around_hook(callback: Any, hook: str, objects: Mapping[str, Any], alone: bool, compares: bool) -> Iterator[None]:
    """Checks whether the hook that the block calls changes values that a trace has read; messages name file and line.

    Args:
        objects: layers and optimizer by name.
        alone: other workers do not call it.
        compares: whether to check variables, too, which takes longer.
    """
    name = f"{type(callback).__name__}.{hook} ({_places(getattr(callback, hook)) or 'of a library'})"
    before = _plain_attributes(objects)
    yield
    now = _plain_attributes(objects)
    changed = [one for one, value in before.items() if repr(now.get(one, "none")) != repr(value)]
    if changed:
        _report(
            f"{name} changed {text.list_names(changed, _MAX_NAMED)}: the compiled step does not see it, but a resumed "
            "run would. Set it before the training begins, train in two stages, or keep the value in a keras.Variable "
            "of the layer.",
            refuse=alone,
        )
    for reader, (variable, value) in [*_run.watched.items()] if compares else ():
        if variable.numpy().tobytes() != value:
            del _run.watched[reader]
            _report(
                f"{name} changed {reader}: a resumed run reads other values, as do other workers. Make it an attribute "
                "of the callback or of the model; in config.data.prepare, compute it from the epoch in the seeds.",
                refuse=alone,
            )


def _random_states() -> dict[str, Any]:
    generator = seed_generator.global_state.get_global_attribute("global_seed_generator")
    with tf.init_scope():
        of_keras = None if generator is None else keras.ops.convert_to_numpy(generator.state).tolist()
    kind, keys, *rest = np.random.get_state()
    return {"Python": random.getstate(), "NumPy": (kind, keys.tobytes(), *rest), "Keras": of_keras}


def _places(function: Callable[..., Any], args: Iterable[Any] = ()) -> str:
    """Returns where `function` and users' functions of the models in `args` are defined: "FILE:LINE, FILE:LINE"."""
    models = [getattr(one, "model", one) for one in args]
    layers = [layer for one in models if isinstance(one, keras.Model) for layer in one._flatten_layers()]
    losses = keras.tree.flatten([getattr(one, "loss", None) for one in models])
    objectives = [getattr(getattr(one, "objective", None), "function", None) for one in args]
    methods = [getattr(one, name, None) for one in layers for name in _METHODS]
    codes = map(_code, [function, *objectives, *losses, *methods])
    found = [f"{one.co_filename}:{one.co_firstlineno}" for one in codes if one and user_code.is_users(one.co_filename)]
    return text.list_names(dict.fromkeys(found), _MAX_NAMED)


def _code(function: Any) -> Any:
    while isinstance(function, functools.partial) or hasattr(function, "__wrapped__"):
        function = function.func if isinstance(function, functools.partial) else function.__wrapped__
    return getattr(function, "__code__", None)


def _check_graph(graph: Any, name: str, known: Mapping[int, bool], places: str, advice: str) -> None:
    def line(op: tf.Operation) -> str:
        """Returns the line of an operation; in a loop of tfdist, the places of the functions that may have made it."""
        found = user_code.current_line(op.traceback)
        return found if found != "a library" else places or found

    def lines(found: Iterable[tf.Operation]) -> str:
        return text.list_names([f"{op.name} ({op.type}) at {line(op)}" for op in found], _MAX_NAMED)

    definition = graph.as_graph_def()
    if drawn := _find(graph, definition, RANDOM):
        _report(
            f"{name} draws random numbers from a state that is not saved: {lines(drawn)}. Replicas may draw the same "
            f"numbers, and a resumed run draws others. Use {advice}.",
            refuse=_run.several_workers,
        )
    if python := _find(graph, definition, _PYTHON):
        _report(
            f"{name} calls Python functions: {lines(python)}. Unless they return the same for the same arguments, "
            "workers and resumed runs differ. If they return the same, say so: tf.numpy_function(..., stateful=False).",
            doubtful=True,
        )
    # TensorFlow notes the variables that a function uses. It also captures other resources, such as tables.
    variables, unsaved = {id(one.handle): one for one in graph._watched_variables}, set()
    for handle, inside in graph.captures:
        if id(handle) not in variables or known.get(id(handle)):
            continue
        variable, writing = variables[id(handle)], next(_writing(inside), None)
        label = variable.name.partition("/replica_")[0].partition(":")[0]
        if writing is not None:
            unsaved.add(f"{label} ({line(writing)})")
        elif id(handle) not in known:
            reader = f"{label}, which {name} reads ({line(inside.consumers()[0])}) and no checkpoint holds"
            with tf.init_scope():
                _run.watched[reader] = variable, variable.numpy().tobytes()
    if unsaved:
        _report(
            f"{name} writes variables that belong neither to the model nor to its optimizer: "
            f"{text.list_names(sorted(unsaved), _MAX_NAMED)}. No checkpoint holds them and replicas do not share "
            f"them: a resumed run would be another run. Make each variable, or the metric or layer that holds it, an "
            f"attribute of the model or of one of its layers; or use {advice}.",
            refuse=True,
        )


def nodes(definition: tf.compat.v1.GraphDef) -> Iterator[tf.compat.v1.NodeDef]:
    """Yields the nodes of a graph, and of the functions in its library."""
    for found in (definition.node, *(function.node_def for function in definition.library.function)):
        yield from found


def _find(graph: tf.Graph, definition: tf.compat.v1.GraphDef, types: set[str]) -> list[tf.Operation]:
    """Returns the operations of `graph` that are of `types`, and those that call a function with such ops."""
    found: set[str] = set()  # Names of functions with such ops.

    def reaches(node: tf.compat.v1.NodeDef) -> bool:
        called = (one.name for value in node.attr.values() for one in (value.func, *value.list.func))
        return (node.op in types and _OWN not in node.name) or any(name in found for name in called)

    if types.isdisjoint(node.op for node in nodes(definition)):
        return []
    for _ in definition.library.function:  # As deep as calls may be nested.
        found = {one.signature.name for one in definition.library.function if any(map(reaches, one.node_def))}
    return [graph.get_operation_by_name(node.name) for node in definition.node if reaches(node)]


def _writing(tensor: tf.Tensor) -> Iterator[tf.Operation]:
    """Yields the operations that write the variable whose handle is `tensor`, or call a function that does."""
    for op in tensor.consumers():
        if op.type == "Identity":
            yield from _writing(op.outputs[0])
        elif tensor in auto_control_deps_utils.get_read_write_resource_inputs(op)[1]:
            yield op


def _plain_attributes(objects: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for owner, one in objects.items():
        own, is_model = _names_in_code(type(one)), isinstance(one, keras.Model)
        for name, value in vars(one).items():
            if type(value) in _PLAIN and (name in own or not (is_model or name.startswith("_") or name == "built")):
                found[f"{owner}.{name}"] = repr(value[:100]) if type(value) in (list, tuple) else value
        if isinstance(one, keras.Layer):
            found[f"{owner}.trainable"] = one.trainable
    return found


@functools.cache
def _names_in_code(kind: type) -> frozenset[str]:
    """Returns the names in the methods of a user's class, except __init__."""
    functions = itertools.chain(*(vars(one).values() for one in kind.__mro__ if user_code.defines(one)))
    codes = [one.__code__ for one in functions if inspect.isfunction(one) and one.__name__ != "__init__"]
    return frozenset(name for code in codes for name in code.co_names)
