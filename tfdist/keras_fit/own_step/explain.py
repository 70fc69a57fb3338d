"""Errors and notes about a user's step, with the line of the script."""

import contextlib
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfdist.cluster.devices import replicas as replicas_lib

# Directories whose frames are not the user's: tfdist, Keras, TensorFlow, Python.
_LIBRARIES = tuple(
    f"{Path(file).parent}/" for file in (Path(__file__).parents[1], keras.__file__, tf.__file__, contextlib.__file__)
)
# Variables that a message names.
_MOST_NAMED = 10


def user_line(frames: Sequence[Any] | None = None) -> str:
    """Returns the innermost line of the user's code: "FILE:NUMBER: text".

    Args:
        frames: with `filename`, `lineno` and `line`, outermost first, such as `tf.Operation.traceback`; None: those
            of this call.
    """
    for frame in reversed(traceback.extract_stack() if frames is None else frames):
        if not frame.filename.startswith(_LIBRARIES):
            return f"{frame.filename}:{frame.lineno}: {frame.line}"
    return "a library"


def undistributable(step_name: str, differing: Sequence[str], assigned: Mapping[str, set[str]]) -> str:
    """Returns the error for a step after which the replicas differ.

    Args:
        step_name: such as "GAN.train_step".
        differing: the names of the variables that differ between replicas.
        assigned: the lines that assign a variable other than by an optimizer, by the variable's path.
    """
    lines = []
    for name in differing[:_MOST_NAMED]:
        places = sorted(assigned.get(name.partition("/")[2].partition("#")[0], ()))
        lines.append("\n  ".join([name, *(f"  assigned in {place}" for place in places)]))
    if len(differing) > _MOST_NAMED:
        lines.append(f"and {len(differing) - _MOST_NAMED} more")
    return "\n  ".join(
        [f"{step_name} cannot be distributed. After its first step the replicas have different values of:", *lines]
    ) + (
        "\nGradients of variables, which a tape returns, are equal on all replicas, and losses are not: assign "
        "variables only from equal values, such as those gradients, weights or tfdist.all_gather(tensor)."
    )


# Operations that make one number of many, and sources that do not depend on the examples.
_REDUCTIONS = {"Mean", "Sum", "Max", "Min", "Prod"}
_CONSTANT = {"Const", "ReadVariableOp", "VarHandleOp"}
_told: set[str] = set()


def tell_reductions(targets: list[tf.Tensor], losses: list[Any]) -> None:
    """Says once where a step reduces examples to a number by itself, not by one of the loss objects.

    Args:
        targets: of a gradient of variables.
        losses: what loss objects returned.
    """
    if tf.executing_eagerly() or tf.get_static_value(replicas_lib.replica_id()) != 0:
        return
    waiting, seen = [one.op for one in targets], {one.op for one in losses if isinstance(one, tf.Tensor)}
    while waiting:
        op = waiting.pop()
        if op in seen:
            continue
        seen.add(op)
        if op.type in _REDUCTIONS and op.outputs[0].shape.rank == 0 and _depends_on_data(op):
            line = user_line(op.traceback)
            if line not in _told:
                _told.add(line)
                print(
                    f"tfdist: {line}: a loss is reduced to a number without a loss object. Each replica reduces its "
                    "own examples, which is right for a mean over examples. If it is another one, compute it in a "
                    "keras.losses.Loss, which sees the whole batch (docs/own_step.md).",
                    file=sys.stderr,
                    flush=True,
                )
            return
        waiting += [one.op for one in op.inputs]


def _depends_on_data(op: tf.Operation) -> bool:
    waiting, seen = [op], set()
    while waiting:
        one = waiting.pop()
        if one in seen or one.type in _CONSTANT:
            continue
        seen.add(one)
        values = [each for each in one.inputs if each.dtype != tf.resource]
        if not values and one.outputs and one.outputs[0].dtype not in (tf.resource, tf.variant):
            return True  # An input of the step, or an element of an iterator.
        waiting += [each.op for each in one.inputs]
    return False
