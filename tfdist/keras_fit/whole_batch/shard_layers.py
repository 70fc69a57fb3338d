"""Logs which layers see the examples of one replica only, and refuses layers that would then be wrong."""

from typing import Any

import keras

from tfdist.cluster.cluster import Cluster
from tfdist.config import text
from tfdist.keras_fit import messages
from tfdist.training import api as trainer


def check(cluster: Cluster, layers: list[keras.Layer], statistics: list[keras.Variable]) -> dict[str, Any]:
    """Logs once, on the chief, which layers compute something from the examples of each replica alone.

    Args:
        layers: of all depths.
        statistics: variables that layers may update in each step.

    Returns:
        The states of stateful recurrent layers by name, which Keras does not count as the layers' variables.

    Raises:
        ValueError: a layer is stateful, or quantized to float8, and there are several replicas.
    """
    if cluster.num_replicas > 1:
        _log_layers(layers, statistics)
        _refuse(cluster, layers)
    stateful = [one for one in layers if _is_stateful(one)]
    variables = [(one.name, *each) for one in stateful for each in enumerate(keras.tree.flatten(one.states))]
    return {f"states/{name}/{index}": one for name, index, one in variables if isinstance(one, keras.Variable)}


def _is_stateful(layer: keras.Layer) -> bool:
    return bool(getattr(layer, "stateful", False) and getattr(layer, "states", None))


def _log_layers(layers: list[keras.Layer], statistics: list[keras.Variable]) -> None:
    normalizing, others = [], []
    updated = {id(variable) for variable in statistics}
    for layer in layers:
        # Other layers of Keras, such as Normalization, do not change such variables in a step.
        if isinstance(layer, keras.layers.BatchNormalization):
            if layer.trainable and not layer.synchronized:
                normalizing.append(layer.name)
        elif not type(layer).__module__.startswith("keras."):
            # A layer also has the variables of its layers.
            inner = {id(one) for part in trainer.layers_of_all_depths(layer)[1:] for one in part.variables}
            if updated.intersection(map(id, layer.non_trainable_variables)) - inner:
                others.append(f"{type(layer).__name__} ({layer.name})")
    if normalizing:
        messages.log_once(
            f"BatchNormalization ({text.list_names(normalizing, 3)}) takes the statistics of each replica's examples; "
            "synchronized=True takes those of the whole batch, as on one device."
        )
    if others:
        messages.log_once(
            f"{text.list_names(others, 3)}: variables that such a layer updates from its batch are updated from each "
            "replica's examples, and averaged over the replicas after each step."
        )


def _refuse(cluster: Cluster, layers: list[keras.Layer]) -> None:
    for layer in layers:
        why = ""
        if any(getattr(one, "overwrite_with_gradient", False) for one in layer.trainable_variables):
            why = "quantized to float8: its scales are computed from the largest values of the whole batch"
        elif _is_stateful(layer):
            why = "stateful: each row of a batch continues the same row of the last batch"
        if why:
            raise ValueError(
                f"The layer {layer.name!r} is {why}, which cannot be divided among {cluster.num_replicas} replicas. "
                "Start one worker with one device, or set stateful=False or another dtype, such as mixed_bfloat16."
            )
