"""The networks that `tfdist new` writes, as Python code for each kind of data."""

import math

from tfdist.tools.start.look import Data

_IMAGES = '''"""The network of {name}: edit it."""

import keras
from keras import layers


def network({arguments}):
    """Returns a convolutional network for images of {shape}; its outputs are {outputs}."""
    inputs = x = keras.Input({shape})
    for filters in {filters}:
        x = layers.MaxPooling2D(2)(layers.Conv2D(filters, 3, padding="same", use_bias=False)(x))
        # Of each image by itself: the same on any number of GPUs.
        x = layers.Activation("relu")(layers.GroupNormalization(8)(x))
    x = layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(x))
    {last}
'''
_DENSE = '''"""The network of {name}: edit it."""

import keras
from keras import layers


def network({arguments}width=64):
    """Returns a network with two hidden layers for inputs of {shape}; its outputs are {outputs}."""
    inputs = keras.Input({shape})
    x = layers.Normalization(name="inputs_normalized")({first})
    for _ in range(2):
        x = layers.Dense(width, activation="relu")(x)
    {last}


def adapt(model, read):
    """Sets mean and variance of the inputs, from training examples; they are saved with the model."""
    model.get_layer("inputs_normalized").adapt({values})
'''
_TEXT = '''"""The network of {name}: edit it."""

import keras
from keras import layers


def network(num_classes, width=128):
    """Returns a network that predicts, for each character of a piece, the next one; its outputs are logits."""
    inputs = keras.Input({shape}, dtype="int32")
    x = layers.Embedding(num_classes, width)(inputs)
    for dilation in (1, 2, 4, 8):
        y = layers.Conv1D(width, 3, padding="causal", dilation_rate=dilation, activation="relu")(x)
        x = layers.LayerNormalization()(x + y)
    return keras.Model(inputs, layers.Dense(num_classes)(x))
'''


def code(name: str, data: Data) -> str:
    """Returns the module of the network for `data`."""
    if data.kind == "text":
        return _TEXT.format(name=name, shape=data.shape)
    arguments, of_outputs = "num_classes" if data.classes else "", _of_outputs(data)
    if data.inputs == "image":
        stages = min(4, max(1, int(math.log2(min(data.shape[:2]))) - 2))
        filters = (16, 32, 64, 128)[:stages]
        return _IMAGES.format(name=name, shape=data.shape, filters=filters, arguments=arguments, **of_outputs)
    flat = len(data.shape) == 1
    values = f'read(10_000)["{data.inputs}"]'
    return _DENSE.format(
        name=name,
        shape=data.shape,
        arguments=arguments and f"{arguments}, ",
        first="inputs" if flat else "layers.Flatten()(inputs)",
        values=values if flat else f"keras.ops.reshape({values}, (-1, {math.prod(data.shape)}))",
        **of_outputs,
    )


def _of_outputs(data: Data) -> dict[str, str]:
    """Returns what the outputs are, in words, and the last lines of the network."""
    if data.classes:
        last = "return keras.Model(inputs, layers.Dense(num_classes)(x))"
        return {"outputs": "logits, one per class", "last": last}
    mean, deviation = data.scale
    last = (
        f"x = layers.Dense({data.targets})(x)\n    # Outputs in the units of the targets: their deviation and mean.\n"
        f"    return keras.Model(inputs, layers.Rescaling({deviation:.6g}, {mean:.6g})(x))"
    )
    return {"outputs": "numbers", "last": last}


def is_adapted(data: Data) -> bool:
    """Returns whether the module has a function `adapt`."""
    return data.kind != "text" and data.inputs != "image"
