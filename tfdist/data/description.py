"""Checks batches, and describes the output of `config.data.prepare` for the log and the workdir."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfdist import config
from tfdist.config import specs


def check_batch(batch: Any, name: str, rows: int | None) -> None:
    """Raises ValueError if what a user's function returned while it was traced is not a batch.

    Args:
        batch: the returned value; must be a dict of tensors [rows, ...].
        name: the function, such as "config.data.prepare".
        rows: the number of examples; None: not known.
    """
    if not isinstance(batch, dict) or not batch:
        raise ValueError(
            f'{name} must return a dict of tensors with one row per example, such as {{"image": ..., "label": ...}}. '
            f"Received: {type(batch).__name__}"
        )
    for key, value in batch.items():
        if not tf.is_tensor(value):
            raise ValueError(
                f"{name} returns {key!r} as {type(value).__name__}, which is the same in every batch: the function "
                "runs once, in graph mode. Return a tensor, from TensorFlow's functions such as tf.gather; Python "
                "code needs tf.numpy_function(..., stateful=False)."
            )
        if None not in (rows, value.shape.rank) and value.shape[:1] not in ([rows], [None]):
            raise ValueError(
                f"{name} returns {key!r} of shape {value.shape} for {rows} examples: row i must belong to example i."
            )


def element_spec(dataset: tf.data.Dataset) -> dict[str, tf.TensorSpec]:
    """Returns the shapes and dtypes of a batch of `dataset`.

    Raises:
        ValueError: `config.data.prepare` returned a tensor whose shape is not known except for the first dimension.
    """
    spec = dataset.element_spec
    for name, tensor in spec.items():
        if tensor.shape.rank in (None, 0) or None in tensor.shape[1:].as_list():
            raise ValueError(
                f"config.data.prepare returns {name!r} of shape {tensor.shape}: every dimension but the first must be "
                "known, so that examples can be batched. Resize or crop the images, for instance."
            )
    return spec


def describe(prepare: Mapping[str, Any], spec: Mapping[str, tf.TensorSpec]) -> str:
    """Returns the prepare function of a config with its arguments, and the batches that it returns on one replica."""
    columns = ", ".join(f"{name} {one.dtype.name} {one.shape.as_list()}" for name, one in spec.items())
    return f"config.data.prepare: {specs.describe(prepare)}  returns per replica {columns}"


def to_save(options: config.Data, source: Any, spec: Mapping[str, tf.TensorSpec]) -> dict[str, Any]:
    """Returns what data.json in the workdir says about the examples, for people and for tools.

    Args:
        options: names the functions that prepare examples: model.keras expects them prepared.
        source: of the training split. It may have `classes`, the name of each class in the order of the labels, and
            `columns`, a dict that says what each number of an example is.
        spec: shapes and dtypes of a batch on one replica, as `prepare` returns it.

    Returns:
        "examples", the source in words; "classes", a list of names or None; "columns", a dict or None; "model.keras",
        how its input is prepared; "prepared", {key: {"dtype", "shape"}} of an example as `prepare` returns it.
    """
    classes, columns = getattr(source, "classes", None), getattr(source, "columns", None)
    return {
        "examples": repr(source),
        "classes": None if classes is None else [str(name) for name in classes],
        "columns": None if columns is None else dict(columns),
        "model.keras": f"expects examples prepared by {specs.describe(options.prepare)}"
        + (f", then {specs.describe(options.finish)}" if options.finish else "")
        + ", with training=False",
        "prepared": {key: {"dtype": one.dtype.name, "shape": one.shape.as_list()[1:]} for key, one in spec.items()},
    }
