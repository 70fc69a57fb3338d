"""`config.data.finish`: the last part of preprocessing, on the device, so that batches are copied to it as bytes."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.data.stream import Batch, Prepare

# finish(batch, *, training) -> batch
Finish = Callable[..., Batch]


def before(finish: Finish | None, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an objective that gets finished batches: function(model, finish(batch), *, training)."""
    if finish is None:
        return function

    def finished(model: Any, batch: Batch, *, training: bool) -> Any:
        return function(model, finish(batch, training=training), training=training)

    return finished


def after(prepare: Prepare, finish: Finish | None) -> Prepare:
    """Returns a `prepare` that also finishes its batches, on the host."""
    if finish is None:
        return prepare

    def finished(batch: Batch, seeds: tf.Tensor, *, training: bool) -> Batch:
        return finish(prepare(batch, seeds, training=training), training=training)

    return finished
