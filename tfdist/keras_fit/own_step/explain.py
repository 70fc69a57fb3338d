"""Errors about a user's step, with the line of the script."""

import contextlib
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

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
