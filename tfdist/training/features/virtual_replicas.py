"""`config.train.virtual_replicas`: the same bits on any number of replicas that divides it (docs/same-bits.md)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tfdist.config.schema import Config

if TYPE_CHECKING:
    import keras

    from tfdist.cluster.cluster import Cluster
    from tfdist.data.pipelines import Inputs
    from tfdist.training.run import Run

_MAX_VIRTUAL_REPLICAS = 1024


def find_errors(config: Config) -> Iterator[str]:
    """Yields an error if the number is out of range, and for each option that it cannot be combined with."""
    total = config.train.virtual_replicas
    if total is None:
        return
    if not 1 <= total <= _MAX_VIRTUAL_REPLICAS:
        yield f"train.virtual_replicas must be from 1 to {_MAX_VIRTUAL_REPLICAS}. Received: {total}"
    reasons = (
        (config.data.pipeline != "stream", "data.pipeline", "TensorFlow divides batches by the number of replicas"),
        (config.data.shards != "batch", "data.shards", "the examples of a batch depend on the number of workers"),
        (config.communication.dtype != "float32", "communication.dtype", "integers are sent"),
    )
    for wrong, field, reason in reasons:
        if wrong:
            yield f"train.virtual_replicas={total} cannot be used: config.{field} is set, and {reason}"


def change_inputs(config: Config, inputs: Inputs, num_replicas: int) -> Inputs:
    """Returns `inputs` whose batches are cut into shards, and sets the number of threads of this process.

    Raises:
        ValueError: the number does not fit the replicas or the batch.
    """
    if config.train.virtual_replicas is None:
        return inputs
    from tfdist.training.step.variants import virtual_replicas

    virtual = virtual_replicas.open_virtual_replicas(config, num_replicas)
    return dataclasses.replace(inputs, make_feed=virtual.cut(inputs.make_feed))


def compiles(config: Config, cluster: Cluster, model: keras.Model) -> bool:
    """Returns whether there are no virtual replicas: XLA would fuse what different shards compute."""
    return config.train.virtual_replicas is None


def apply(run: Run) -> Run:
    """Returns `run` with virtual replicas; ValueError if the model computes something over more than one shard."""
    total = run.config.train.virtual_replicas
    if total is None:
        return run
    from tfdist.training.step.variants.virtual_replicas import VirtualReplicas

    return VirtualReplicas(config=run.config, total=total, count=total // run.cluster.num_replicas).compose(run)
