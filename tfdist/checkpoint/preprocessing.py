"""`config.checkpoint.export_preprocessing`: the exported model takes images as the source has them.

A prepare or finish function that Keras' own operations can express has an attribute `in_keras`, a function: it gets the
symbolic images [n, h, w, c] and the keyword arguments of the config, and returns them as the function prepares them in
an evaluation. The shipped functions `image`, `image_bytes`, `normalised` and `identity` have it.
"""

from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.checkpoint import export
from tfdist.config import specs

# Largest difference of a prepared value: float32 additions in another order.
_TOLERANCE = 1e-5
_USAGE = """model.keras prepares its input itself: it expects images as the source of the data returns them.

The source returned image {dtype} {shape}.

    import keras

    outputs = keras.models.load_model("model.keras")(batch["image"])
"""


def open_export(config: config_lib.Config) -> Callable[..., Callable[[Path], str]]:
    """Checks the config, and returns (model, first_examples, prepare) -> the function that exports to a path.

    `first_examples`: (prepare, count) -> the first examples of the training split.
    """
    check(config)

    def as_stored(batch: dict[str, tf.Tensor], seeds: tf.Tensor, *, training: bool) -> dict[str, tf.Tensor]:
        return batch

    def make_export(model: keras.Model, first_examples: Callable, prepare: Callable) -> Callable[[Path], str]:
        stored, prepared = (first_examples(one, 4)["image"].numpy() for one in (as_stored, prepare))
        shape = f"[{', '.join(map(str, ('n', *stored.shape[1:])))}]"
        preprocess, about = build(config.data, stored, prepared), _USAGE.format(dtype=stored.dtype.name, shape=shape)
        return lambda path: export.export(before(preprocess, model), path, about)

    return make_export


def check(config: config_lib.Config) -> None:
    """Raises ValueError, which names the function, if one that prepares the model's input cannot be expressed."""
    if not config.checkpoint.export:
        raise ValueError(
            "config.checkpoint.export_preprocessing=True needs an exported model, but config.checkpoint.export is "
            "False: set export to True, or export_preprocessing to False."
        )
    key = config.objective.get("inputs", "image")
    if key != "image":
        raise ValueError(
            "config.checkpoint.export_preprocessing=True exports a model of images, but config.objective.inputs is "
            f"{key!r}: set export_preprocessing to False."
        )
    for field, spec in _functions(config.data):
        target = spec["target"]
        if not hasattr(specs.resolve(spec, field=field), "in_keras"):
            raise ValueError(
                f"config.checkpoint.export_preprocessing=True: {field}={target!r} is not known in Keras' operations, "
                "so the exported model cannot contain it. Set export_preprocessing to False; model.txt then says how "
                "to prepare its input. Or give the function an attribute in_keras, which prepares symbolic images as "
                "the function prepares images in an evaluation (docs/guide.md)."
            )


def _functions(data: config_lib.Data) -> list[tuple[str, dict]]:
    finish = [] if data.finish is None else [("config.data.finish", data.finish)]
    return [("config.data.prepare", data.prepare), *finish]


def build(data: config_lib.Data, stored: np.ndarray, prepared: np.ndarray) -> keras.Model:
    """Returns the model that prepares images.

    Args:
        data: its prepare and finish functions have passed `check`.
        stored: a few images as the source has them, [n, h, w, c].
        prepared: the same images, prepared for an evaluation.

    Raises:
        ValueError: it prepares them in another way.
    """
    inputs = outputs = keras.Input(stored.shape[1:], dtype=stored.dtype.name, name="image")
    for field, spec in _functions(data):
        in_keras = specs.resolve(spec, field=field).in_keras
        outputs = in_keras(outputs, **{name: value for name, value in spec.items() if name != "target"})
    model = keras.Model(inputs, outputs, name="preprocessing")
    found = keras.ops.convert_to_numpy(model(stored))
    if found.shape != prepared.shape or not np.allclose(found, prepared, rtol=_TOLERANCE, atol=_TOLERANCE):
        names = " and ".join(f"{field}={spec['target']!r}" for field, spec in _functions(data))
        raise ValueError(
            f"config.checkpoint.export_preprocessing=True: in_keras of {names} prepares the first examples "
            f"differently: {found.dtype} {list(found.shape)} instead of {prepared.dtype} {list(prepared.shape)}, or "
            "other values. Correct it, or set export_preprocessing to False."
        )
    return model


def before(preprocessing: keras.Model, model: keras.Model) -> keras.Model:
    """Returns a model that prepares images with `preprocessing` and calls `model`, whose weights it shares."""
    inputs = keras.Input(preprocessing.input.shape[1:], dtype=preprocessing.input.dtype, name="image")
    return keras.Model(inputs, model(preprocessing(inputs), training=False), name=f"{model.name}_of_stored_images")
