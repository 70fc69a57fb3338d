"""A small vision transformer (arXiv 2010.11929) with Keras' operations, for the benchmark."""

from collections.abc import Sequence

import keras
from keras import layers, ops

PATCH, LAYERS, HEADS, WIDTH = 4, 4, 4, 256


def network(num_classes: int, input_shape: Sequence[int]) -> keras.Model:
    """Returns a network of 3.2 million parameters: float32 [n, height, width, channels] -> logits [n, num_classes]."""
    inputs = keras.Input(tuple(input_shape))
    height, width, channels = input_shape
    rows, columns = height // PATCH, width // PATCH
    x = layers.Permute((1, 3, 2, 4, 5))(layers.Reshape((rows, PATCH, columns, PATCH, channels))(inputs))
    x = layers.Reshape((rows * columns, PATCH * PATCH * channels))(x)
    # The bias of each position is its embedding.
    x = layers.EinsumDense("npc,cd->npd", (rows * columns, WIDTH), bias_axes="pd")(x)
    for _ in range(LAYERS):
        parts = ops.split(layers.Dense(3 * WIDTH, use_bias=False)(_normalised(x)), 3, axis=-1)
        queries, keys, values = (layers.Reshape((-1, HEADS, WIDTH // HEADS))(one) for one in parts)
        y = layers.Reshape((-1, WIDTH))(ops.dot_product_attention(queries, keys, values))
        x += layers.Dense(WIDTH, use_bias=False)(y)
        y = layers.Dense(4 * WIDTH, activation="gelu")(_normalised(x))
        x += layers.Dense(WIDTH)(y)
    return keras.Model(inputs, layers.Dense(num_classes)(ops.mean(_normalised(x), axis=1)))


def _normalised(x: keras.KerasTensor) -> keras.KerasTensor:
    return layers.LayerNormalization(epsilon=1e-5)(x)
