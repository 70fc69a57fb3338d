"""Batch normalisation over all replicas, or over groups of examples: `synchronized` and `group_size` of the layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tfdist.config.schema import Config

if TYPE_CHECKING:
    import keras

    from tfdist.cluster.cluster import Cluster
    from tfdist.training.run import Run


def change_model(config: Config, cluster: Cluster, model: keras.Model) -> Iterator[str]:
    """Makes layers communicate if their groups span replicas; ValueError: XLA is set, or groups do not fit."""
    from tfdist.training.step.layers import normalization

    normalization.install_groups(model, config, cluster.num_replicas)
    if config.train.xla and not compiles(config, cluster, model):
        raise ValueError(
            "config.train.xla=True cannot compile communication, but the model normalises over the batches of several "
            "replicas: set xla to False, or take statistics over groups that divide a replica's batch (docs/guide.md)."
        )
    return iter(())


def compiles(config: Config, cluster: Cluster, model: keras.Model) -> bool:
    """Returns whether no layer communicates: XLA cannot compile communication."""
    from tfdist.training.step.layers import normalization

    spanning = normalization.spanning_layers(model, config, cluster.num_replicas)
    return not spanning and not normalization.is_synchronized(model)


def apply(run: Run) -> Run:
    """Returns `run` with micro-batches that keep groups together, and are unrolled if the model communicates."""
    from tfdist.training.step import per_example
    from tfdist.training.step.layers import normalization

    model, objective = run.context.model, run.objective
    objective = dataclasses.replace(objective, group_size=normalization.group_size(model))
    if normalization.is_synchronized(model):
        objective = dataclasses.replace(objective, accumulate=per_example.unroll)
    return dataclasses.replace(run, context=dataclasses.replace(run.context, objective=objective))
