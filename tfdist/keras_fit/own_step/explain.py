"""Errors and notes about a user's step, with the line of the script."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfdist.keras_fit import messages

# Variables that a message names.
_MOST_NAMED = 10


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


def tell_if_never_updated(values: Mapping[str, Any]) -> None:
    """Says once that an epoch's value is 0 because the step does not update the metric of its name.

    Args:
        values: of the last step, by the names of metrics that are 0.
    """
    for name, value in values.items():
        if np.any(value != 0):
            messages.say_once(
                f"the step returns {name!r}, and does not update the model's metric of that name. As in Keras, the "
                "value of the epoch is the metric's, which is 0. Update it, or return another name.",
                key=f"explain {name}",
            )
