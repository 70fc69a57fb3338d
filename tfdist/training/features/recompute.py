"""`config.train.recompute`: names of layers whose activations are recomputed in the backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tfdist.config.schema import Config

if TYPE_CHECKING:
    import keras

    from tfdist.cluster.cluster import Cluster


def find_errors(config: Config) -> Iterator[str]:
    """Yields an error if XLA is set, which would undo the recomputation."""
    if config.train.recompute and config.train.xla:
        reason = "XLA merges the recomputation with the first computation."
        yield f"train.recompute needs train.xla=False: {reason} Received: {config.train.recompute}"


def compiles(config: Config, cluster: Cluster, model: keras.Model) -> bool:
    """Returns whether nothing is recomputed: XLA would merge the recomputation with the first computation."""
    return not config.train.recompute


def change_model(config: Config, cluster: Cluster, model: keras.Model) -> Iterator[str]:
    """Makes the layers recompute; yields a line for the log. ValueError: a name matches no layer."""
    from tfdist.training.step.layers import remat_scopes

    remat_scopes.adopt()
    if config.train.recompute:
        number = remat_scopes.put_into_scope(model, config)
        yield f"recompute  the layers {', '.join(config.train.recompute)}: {number} in all"
