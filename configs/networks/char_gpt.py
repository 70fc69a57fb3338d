"""A decoder-only transformer on characters, with a source of text, an optimizer, and a callback that prints samples.

After nanoGPT (github.com/karpathy/nanoGPT): blocks with normalisation first, no biases, AdamW that decays matrices
only. The output layer has its own weights; in nanoGPT it shares those of the embedding.
"""

import functools
import os
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tfdist.config import paths
from tfdist.zoo.sources.arrays import Arrays, arrays


def network(
    num_classes: int, length: int = 64, layer_count: int = 4, heads: int = 4, width: int = 128, dropout: float = 0.0
) -> keras.Model:
    """Returns a network that predicts, for each character of a piece, the next one.

    Args:
        num_classes: how many different characters there are.
        length: the maximum number of characters of context.
        layer_count: number of blocks.
        heads: number of attention heads; divides `width`.
        width: size of the vector of a character.
        dropout: rate, in the embedding and after each part of a block.

    Returns:
        int32 [n, up to length] -> logits, float32 [n, characters, num_classes].

    Raises:
        ValueError: `heads` does not divide `width`.
    """
    if width % heads:
        raise ValueError(f"width must be a multiple of heads={heads}. Received: {width}")
    last = 0.02 / (2 * layer_count) ** 0.5  # As in GPT-2: the residual sum keeps its scale.
    inputs = keras.Input((None,), dtype="int32", name="inputs")
    positions = ops.cumsum(ops.ones_like(inputs), axis=1) - 1
    x = layers.Embedding(num_classes, width, _normal(), name="embedding")(inputs)
    x += layers.Embedding(length, width, _normal(), name="positions")(positions)
    x = layers.Dropout(dropout, name="embedding_dropout")(x)
    for number in range(1, layer_count + 1):
        y = _normalize(f"norm{number}a", x)
        parts = ops.split(_dense(f"attention{number}", 3 * width)(y), 3, axis=-1)
        queries, keys, values = (layers.Reshape((-1, heads, width // heads))(one) for one in parts)
        y = ops.dot_product_attention(queries, keys, values, is_causal=True)
        y = _dense(f"projection{number}", width, last)(layers.Reshape((-1, width))(y))
        x += layers.Dropout(dropout, name=f"dropout{number}a")(y)
        y = _dense(f"expand{number}", 4 * width)(_normalize(f"norm{number}b", x))
        y = _dense(f"contract{number}", width, last)(layers.Activation("gelu", name=f"gelu{number}")(y))
        x += layers.Dropout(dropout, name=f"dropout{number}b")(y)
    logits = _dense("logits", num_classes, dtype="float32")(_normalize("norm", x))
    return keras.Model(inputs, logits, name="char_gpt")


def adamw(schedule: Any, *, weight_decay: float = 0.1, **arguments: Any) -> keras.optimizers.AdamW:
    """Returns Keras' AdamW, which decays all weights except the scales of normalisation layers.

    Args:
        schedule: learning rate.
        weight_decay: as in `keras.optimizers.AdamW`.
        **arguments: others of `keras.optimizers.AdamW`.
    """
    optimizer = keras.optimizers.AdamW(schedule, weight_decay=weight_decay, **arguments)
    optimizer.exclude_from_weight_decay(var_names=["gamma"])
    return optimizer


class Sample(keras.callbacks.Callback):
    """Writes a text with the model after each evaluation, prints it, and adds it to a file.

    The seed of the draws is the number of the evaluation in the process.

    Args:
        characters: those of the text, in the order of their numbers.
        start: what the text begins with; None: a new line, or the first of `characters` if they lack it.
        count: how many characters are added to it.
        length: how many of the last ones the model sees.
        temperature: above 0; below 1, likely characters become more likely.
        file: path of the file; None: only print.
    """

    # The chief alone prints and writes.
    on_all_workers = False

    def __init__(
        self,
        characters: str,
        start: str | None = None,
        count: int = 200,
        length: int = 64,
        temperature: float = 0.8,
        file: str | None = None,
    ):
        super().__init__()
        self._characters, self._count, self._file = characters, count, file
        self._start = start or ("\n" if "\n" in characters else characters[0])
        self._length, self._temperature, self._done = length, temperature, 0

    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Writes and prints a text."""
        text = write(
            self.model, self._characters, self._start, self._count, self._length, self._temperature, self._done
        )
        self._done += 1
        print(f"the model writes: {text!r}")
        if self._file:
            with open(os.path.expanduser(self._file), "a", encoding="utf-8") as file:
                file.write(f"{text}\n{'-' * 80}\n")


def write(
    model: keras.Model,
    characters: str,
    start: str,
    count: int = 200,
    length: int = 64,
    temperature: float = 0.8,
    seed: int = 0,
) -> str:
    """Returns `start` and `count` characters that are drawn one by one from the model's predictions.

    Args:
        model: int32 [1, up to length] -> logits [1, characters, number of characters].
        characters: see `Sample`, also for the other arguments.
        seed: of the draws.

    Raises:
        ValueError: a character of `start` is not in `characters`, or `temperature` is not above 0.
    """
    if unknown := sorted(set(start) - set(characters)):
        raise ValueError(f"start={start!r} has characters that the text lacks: {''.join(unknown)!r}")
    if not start or temperature <= 0:
        raise ValueError(f"start must not be empty, and temperature be above 0. Received: {start!r}, {temperature}")
    known, draws = {one: number for number, one in enumerate(characters)}, np.random.default_rng(seed)
    numbers = [known[one] for one in start]
    predict = tf.function(functools.partial(model, training=False), autograph=False)
    for _ in range(count):
        # One shape for all calls: what follows a character does not change its logits.
        seen = numbers[-length:]
        padded = np.zeros([1, length], np.int32)
        padded[0, : len(seen)] = seen
        logits = predict(padded).numpy()[0, len(seen) - 1].astype(np.float64) / temperature
        odds = np.exp(logits - logits.max())
        numbers.append(int(draws.choice(len(odds), p=odds / odds.sum())))
    return "".join(characters[number] for number in numbers)


def _dense(name: str, width: int, deviation: float = 0.02, dtype: str | None = None) -> layers.Dense:
    return layers.Dense(width, use_bias=False, kernel_initializer=_normal(deviation), name=name, dtype=dtype)


def _normalize(name: str, x: Any) -> Any:
    return layers.LayerNormalization(epsilon=1e-5, center=False, name=name)(x)


def _normal(deviation: float = 0.02) -> keras.initializers.Initializer:
    return keras.initializers.RandomNormal(stddev=deviation)


def text(split: str, *, path: str, length: int = 64, test_fraction: float = 0.1) -> Arrays:
    """The characters of a text file in UTF-8, in pieces of `length`, each with the characters that follow.

    Characters are numbered in the order of their code points; `classes` of the source, which data.json in the workdir
    holds, lists them.

    Args:
        split: "train", "test" or "all", with or without a slice; "test" is the end of the text.
        path: the file; variables are expanded.
        test_fraction: the part of the pieces in "test".

    Returns:
        A source of {"inputs": int32 [n, length], "targets": int32 [n, length], the next character of each}.

    Raises FileNotFoundError if there is no such file, and ValueError if it is not UTF-8, or too short.
    """
    path = str(paths.local(path, "path"))
    name = f"text {path!r}"
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{name}: there is no file {os.path.abspath(path)!r}.")
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            content = file.read()
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not encoded in UTF-8: {error}. Convert it, for example with iconv.") from None
    if length < 1:
        raise ValueError(f"{name}: length must be at least 1. Received: {length!r}")
    pieces = (len(content) - 1) // length
    if pieces < 2:
        raise ValueError(
            f"{name} has {len(content):,} characters, and length={length} needs at least {2 * length + 1}."
        )
    codes = np.frombuffer(content.encode("utf-32-le"), np.uint32)
    known, numbers = np.unique(codes, return_inverse=True)
    numbers = numbers.astype(np.int32)
    tests = min(max(1, round(test_fraction * pieces)), pieces - 1)
    inputs, targets = (numbers[first:][: pieces * length].reshape(pieces, length) for first in (0, 1))
    rows = {"train": slice(pieces - tests), "test": slice(pieces - tests, None), "all": slice(None)}
    features = {part: {"inputs": inputs[chosen], "targets": targets[chosen]} for part, chosen in rows.items()}
    classes = [chr(code) for code in known]
    return arrays(split, splits=features, num_classes=len(classes), classes=classes, name=name)
