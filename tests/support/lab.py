"""What a user would write, for tests: models, objectives and prepare functions, named in configs by dotted path."""

import json
import os
import time
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from tfdist.cluster.devices import replicas
from tfdist.zoo import models, objectives, prepare, sources

# AutoGraph converts all that functions of a user call: of these two, it takes half the time of a short training.
_classification = tf.autograph.experimental.do_not_convert(objectives.classification)
_image = tf.autograph.experimental.do_not_convert(prepare.image)

# Of each time that `darkened` was traced, whether for training.
TRACED: list[bool] = []


class Dropouts(keras.Model):
    """A perceptron with dropout whose layers stand in a Python list, where TensorFlow's own checkpoints miss them."""

    def __init__(self, num_classes: int = 10, width: int = 32, rate: float = 0.3, depth: int = 2):
        super().__init__(name="dropouts")
        self.flatten = keras.layers.Flatten(name="flatten")
        self.blocks = []
        for i in range(depth):
            self.blocks.append(keras.layers.Dense(width, activation="relu", name=f"hidden{i}"))
            self.blocks.append(keras.layers.Dropout(rate, name=f"dropout{i}"))
        self.logits = keras.layers.Dense(num_classes, name="logits")

    def call(self, images, training=False):
        hidden = self.flatten(images)
        for layer in self.blocks:
            hidden = layer(hidden, training=training)
        return self.logits(hidden)


def linear(num_classes: int = 10, input_shape=(8, 8, 1), l2: float = 0.0, kernel: str = "he_normal") -> keras.Model:
    """Returns one dense layer, with an L2 penalty if `l2` is not 0."""
    inputs = keras.Input(tuple(input_shape), name="image")
    outputs = keras.layers.Flatten(name="flatten")(inputs)
    penalty = keras.regularizers.L2(l2) if l2 else None
    layer = keras.layers.Dense(num_classes, kernel_initializer=kernel, kernel_regularizer=penalty, name="logits")
    return keras.Model(inputs, layer(outputs), name="linear")


def nested(**options) -> keras.Model:
    """Returns `small_cnn` as a layer of another model."""
    inner = models.small_cnn(**options)
    inputs = keras.Input(inner.input_shape[1:], name="image")
    return keras.Model(inputs, inner(inputs), name="nested")


def fill(model: keras.Model, read, value: float) -> None:
    """Sets all weights of a model to `value`; for `config.adapt`."""
    for variable in model.trainable_variables:
        variable.assign(keras.ops.full(variable.shape, value, variable.dtype))


@keras.saving.register_keras_serializable("lab")
class Causal(keras.layers.Layer):
    """Attention of each row [n, 8, 8] to the rows before it; the mask is a weight that is not trained."""

    def build(self, shape):
        mask = np.where(np.tri(8), 0.0, -np.inf)
        self.mask = self.add_weight(shape=(8, 8), initializer=lambda *_, **__: mask, trainable=False, name="mask")

    def call(self, x):
        return keras.ops.softmax(x @ keras.ops.transpose(x, (0, 2, 1)) + self.mask) @ x


def causal(num_classes: int = 10) -> keras.Model:
    """Returns attention with a mask of -inf, then one dense layer."""
    inputs = keras.Input((8, 8, 1), name="image")
    outputs = Causal(name="attention")(keras.layers.Reshape((8, 8))(inputs))
    return keras.Model(inputs, keras.layers.Dense(num_classes, name="logits")(keras.layers.Flatten()(outputs)))


def normalised(num_classes: int = 10, input_shape=(8, 8, 1), momentum: float = 0.9) -> keras.Model:
    """Returns unsynchronised batch normalisation of the images themselves, then one dense layer."""
    inputs = keras.Input(tuple(input_shape), name="image")
    outputs = keras.layers.Flatten(name="flatten")(inputs)
    outputs = keras.layers.BatchNormalization(momentum=momentum, name="norm")(outputs)
    return keras.Model(inputs, keras.layers.Dense(num_classes, name="logits")(outputs), name="normalised")


def mixed(num_classes: int = 10) -> keras.Model:
    """Returns a convolution, batch normalisation, dropout, and a dense layer with an L2 penalty."""
    inputs = keras.Input((8, 8, 1), name="image")
    outputs = keras.layers.Conv2D(4, 3, padding="same", name="conv")(inputs)
    outputs = keras.layers.BatchNormalization(momentum=0.9, name="norm")(outputs)
    outputs = keras.layers.Flatten(name="flatten")(keras.layers.ReLU(name="relu")(outputs))
    outputs = keras.layers.Dropout(0.3, name="dropout")(outputs)
    penalty = keras.regularizers.L2(1e-3)
    return keras.Model(inputs, keras.layers.Dense(num_classes, kernel_regularizer=penalty, name="logits")(outputs))


def synchronised(num_classes: int = 10, input_shape=(8, 8, 1)) -> keras.Model:
    """Returns synchronised batch normalisation of the rows of the images, and a dense layer.

    All layers are of type float64: in float32 a weight differs by 3e-6 between topologies, by rounding.
    """
    inputs = keras.Input(tuple(input_shape), name="image")
    outputs = keras.layers.Reshape((8, 8), dtype="float64", name="rows")(inputs)
    norm = keras.layers.BatchNormalization(synchronized=True, momentum=0.9, dtype="float64", name="norm")
    outputs = keras.layers.Flatten(dtype="float64", name="flatten")(norm(outputs))
    logits = keras.layers.Dense(num_classes, dtype="float64", name="logits")(outputs)
    return keras.Model(inputs, logits, name="synchronised")


@keras.saving.register_keras_serializable("lab")
class Block(keras.layers.Layer):
    """A residual block of four times the width inside, with batch normalisation and dropout."""

    def __init__(self, width, **keywords):
        super().__init__(**keywords)
        self.width = width
        self.norm = keras.layers.BatchNormalization(momentum=0.9, name="norm")
        self.up = keras.layers.Dense(4 * width, activation="gelu", name="up")
        self.dropout = keras.layers.Dropout(0.3, name="dropout")
        self.down = keras.layers.Dense(width, name="down")

    def build(self, shape):
        self.norm.build(shape)
        self.up.build(shape)
        self.down.build((*shape[:-1], 4 * self.width))

    def call(self, x, training=False):
        # Dropout is told by Keras that this is training.
        return x + self.down(self.dropout(self.up(self.norm(x, training=training))))

    def get_config(self):
        return super().get_config() | {"width": self.width}


def blocks(num_classes: int = 10, width: int = 16, depth: int = 2) -> keras.Model:
    """Returns a dense layer, residual blocks block_0, block_1, ..., and a dense layer."""
    inputs = keras.Input((8, 8, 1), name="image")
    outputs = keras.layers.Dense(width, name="first")(keras.layers.Flatten()(inputs))
    for number in range(depth):
        outputs = Block(width, name=f"block_{number}")(outputs)
    return keras.Model(inputs, keras.layers.Dense(num_classes, name="logits")(outputs), name="blocks")


def only_dropout(rate: float = 0.5, features: int = 64) -> keras.Model:
    """Returns two dropout layers beside each other and one weight for each of their outputs: [logits, both outputs]."""
    inputs = keras.Input((features,), name="image")
    both = [keras.layers.Dropout(rate, name=name)(inputs) for name in ("first", "second")]
    both = keras.layers.Concatenate(name="both")(both)
    return keras.Model(inputs, [keras.layers.Dense(1, name="logits")(both), both], name="only_dropout")


def darkened(batch, seeds, *, training):
    """Scales images with a Python `if`, which AutoGraph converts."""
    TRACED.append(training)
    images = _image(batch, seeds, training=training, scale=1 / 16)["image"]
    if tf.reduce_max(images) > 0.5:
        images = images / 2
    return batch | {"image": images}


def bounded(model, batch, *, training):
    """Classification that halves a very large loss, with a Python `for` and `if`, which AutoGraph converts."""
    values = _classification(model, batch, training=training)
    loss = values["loss"]
    for _ in tf.range(2):
        if tf.reduce_max(loss) > 1e6:
            loss = loss / 2
    return values | {"loss": loss}


class Table(keras.Model):
    """An embedding, and a layer that is not used."""

    def __init__(self, rows: int, columns: int):
        super().__init__(name="table")
        self.table = keras.layers.Embedding(rows, columns, name="rows")
        self.unused = keras.layers.Dense(2, name="unused")
        self.unused.build((None, 3))

    def call(self, ids, training=False):
        return self.table(ids)


def not_a_model() -> str:
    """Returns an object that is not a Keras model."""
    return "a model"


def with_epoch(batch, seeds, *, training, scale: float = 1 / 16):
    """Prepares images, and adds the epoch to the batch."""
    epoch = tf.bitwise.bitwise_and(seeds[:, 0], 2**32 - 1)
    return _image(batch, seeds, training=training, scale=scale) | {"epoch": epoch}


def growing(model, batch, *, training) -> Mapping[str, tf.Tensor]:
    """Classification whose gradients are 0 in epoch 0, usual in 1, 2^12 times as large in 2, usual from 3 on."""
    factor = tf.gather(tf.constant([0.0, 1.0, 4096.0, 1.0]), tf.minimum(batch["epoch"], 3))
    values = _classification(model, batch, training=training)
    return values | {"loss": values["loss"] * tf.cast(factor, values["loss"].dtype)}


def nan_from_epoch(model, batch, *, training, epoch: int) -> Mapping[str, tf.Tensor]:
    """Classification whose loss is NaN in training from an epoch on; see `with_epoch`."""
    values = _classification(model, batch, training=training)
    if training:
        values["loss"] = tf.where(batch["epoch"] >= epoch, float("nan"), values["loss"])
    return values


def slow_classification(model, batch, *, training, seconds: float) -> Mapping[str, tf.Tensor]:
    """Classification whose training steps last at least `seconds`."""
    values = _classification(model, batch, training=training)
    if training and seconds:

        def wait(loss):
            time.sleep(seconds)
            return loss

        values["loss"] += _nothing_after(wait, values["loss"])
    return values


def hanging(model, batch, *, training) -> Mapping[str, tf.Tensor]:
    """Classification whose first training step prints a line and does not end."""
    values = _classification(model, batch, training=training)
    if training:

        def wait(loss):
            print("hangs", flush=True)
            time.sleep(3600)
            return loss

        values["loss"] += _nothing_after(wait, values["loss"])
    return values


def _nothing_after(function, loss: tf.Tensor) -> tf.Tensor:
    """Zeros in the shape of the loss, which are there when a Python function has returned the loss."""
    returned = tf.stop_gradient(tf.numpy_function(function, [loss], tf.float32, stateful=False))
    return 0.0 * tf.ensure_shape(returned, loss.shape)


def sum_of_outputs(model, batch, *, training, inputs: str) -> Mapping[str, tf.Tensor]:
    """The sum of an example's outputs: every output has gradient 1."""
    outputs = model(batch[inputs], training=training)
    return {"loss": tf.reduce_sum(outputs, axis=list(range(1, outputs.shape.rank)))}


def wrong_key(model, batch, *, training) -> Mapping[str, tf.Tensor]:
    """An objective that reads a feature that the batch does not have."""
    return {"loss": model(batch["images"], training=training)[:, 0]}


def wrong_type(batch, seeds, *, training) -> Mapping[str, tf.Tensor]:
    """A prepare that divides numbers by text."""
    return {"image": tf.cast(batch["image"], tf.float32) / "16", "label": batch["label"]}


def averaged(model, batch, *, training) -> Mapping[str, tf.Tensor]:
    """Breaks the contract: one mean instead of one value per example."""
    values = _classification(model, batch, training=training)
    return {"loss": tf.reduce_mean(values["loss"]), "accuracy": values["accuracy"]}


def column(model, batch, *, training) -> Mapping[str, tf.Tensor]:
    """Breaks the contract: [n, 1] instead of [n]."""
    values = _classification(model, batch, training=training)
    return values | {"error": 1.0 - values["accuracy"][:, tf.newaxis]}


def bare_loss(model, batch, *, training) -> tf.Tensor:
    """Breaks the contract: no dict."""
    return _classification(model, batch, training=training)["loss"]


def renamed(model, batch, *, training, name: str) -> Mapping[str, tf.Tensor]:
    """Classification with its accuracy under another name."""
    values = _classification(model, batch, training=training)
    return {"loss": values["loss"], name: values["accuracy"]}


def changing(model, batch, *, training) -> Mapping[str, tf.Tensor]:
    """Breaks the contract: other values in training than in evaluation."""
    values = _classification(model, batch, training=training)
    return {"loss": values["loss"]} if training else values


def bad_gradient_from_epoch(model, batch, *, training, epoch: int) -> Mapping[str, tf.Tensor]:
    """Classification whose gradient, and not its loss, is NaN in training from an epoch on; see `with_epoch`."""
    values = _classification(model, batch, training=training)
    if training:
        # The derivative of the square root at 0 is infinite.
        nothing = values["loss"] - tf.stop_gradient(values["loss"])
        values["loss"] += tf.where(batch["epoch"] >= epoch, tf.sqrt(nothing), 0.0)
    return values


def steep(model, batch, *, training) -> Mapping[str, tf.Tensor]:
    """Classification by a model of float64 whose gradients float32 cannot hold."""
    logits = model(batch["image"], training=training)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["label"], logits)
    return {"loss": loss + 1e40 * (loss - tf.stop_gradient(loss))}


def flips_a_bit(model, batch, *, training, epoch: int, replica: int, nan: bool = False) -> Mapping[str, tf.Tensor]:
    """Classification that flips a bit of a weight, or makes it NaN, on one replica in an epoch; see `with_epoch`."""
    values = _classification(model, batch, training=training)
    if training:
        kernel = model.trainable_variables[0].value
        bits = tf.bitcast(tf.convert_to_tensor(kernel), tf.int32)
        now = tf.logical_and(batch["epoch"][0] == epoch, replicas.replica_id() == replica)
        flipped = tf.tensor_scatter_nd_update(
            bits, [[5, 3]], [0x7FC00000 if nan else tf.bitwise.bitwise_xor(bits[5, 3], 1 << 10)]
        )
        kernel.assign(tf.where(now, tf.bitcast(flipped, tf.float32), kernel))
    return values


class Noise(keras.layers.Layer):
    """Adds noise in training and evaluation, drawn without a seed."""

    def call(self, inputs):
        return inputs + 0.1 * keras.random.normal(keras.ops.shape(inputs))


def noise(num_classes: int = 10) -> keras.Model:
    """Returns a layer of noise and a dense layer."""
    inputs = keras.Input((8, 8, 1), name="image")
    outputs = keras.layers.Flatten(name="flatten")(Noise(name="noise")(inputs))
    return keras.Model(inputs, keras.layers.Dense(num_classes, name="logits")(outputs), name="noisy")


def noisy(model, batch, *, training, looped: bool = False) -> Mapping[str, tf.Tensor]:
    """Classification of images with noise from tf.random in training: of the batch, or of one example after another."""
    images = batch["image"]
    if training and looped:
        images = tf.map_fn(lambda image: image + tf.random.normal(image.shape, name="of_one"), images)
    elif training:
        images = tf.random.shuffle(images + tf.random.normal(tf.shape(images)))
        images = images[:, ::-1] if tf.random.uniform([]) > 0.5 else images
    return _classification(model, batch | {"image": images}, training=training)


class Slow:
    """The digits. Reading a batch of the evaluation split takes `seconds`."""

    def __init__(self, split: str, seconds: float):
        self._digits, self._seconds = sources.digits(split), seconds if split == "test" else 0.0

    def __len__(self) -> int:
        return 96

    def read(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the examples `ids`."""

        def wait(ids):
            time.sleep(self._seconds)
            return ids

        return self._digits.read(tf.ensure_shape(tf.numpy_function(wait, [ids], tf.int64, stateful=False), [None]))


def differing(model, batch, *, training) -> Mapping[str, tf.Tensor]:
    """`classification`, with one more value on all workers but the first."""
    values = _classification(model, batch, training=training)
    return values if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0 else values | {"more": values["loss"]}


class Drifting:
    """The digits, brighter by the rank of the worker; with `own_fingerprint`, the rendezvous detects it."""

    def __init__(self, split: str, own_fingerprint: bool):
        self._digits = sources.digits(split)
        self._rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        if own_fingerprint:
            self.fingerprint = lambda: f"digits brighter by {self._rank}"

    def __len__(self) -> int:
        return len(self._digits)

    def read(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the examples `ids`."""
        batch = self._digits.read(ids)
        return batch | {"image": batch["image"] + tf.constant(self._rank, tf.uint8)}


class Unreadable:
    """Images. One cannot be read, or has a label out of range in the split `labels_of`; `verify` sleeps."""

    def __init__(self, split: str, label: int | None = None, labels_of: str = "train", seconds: float = 0.0):
        self.label, self.seconds = label if label is None or split == labels_of else 7, seconds

    def __len__(self) -> int:
        return 96

    def read(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        if self.label is None:
            tf.debugging.assert_none_equal(ids, tf.constant(17, tf.int64), message="a damaged file")
        labels = tf.where(ids == 17, tf.constant(self.label or 0, tf.int64), ids % 10)
        return {"image": tf.zeros([tf.size(ids), 8, 8, 1], tf.uint8), "label": labels}

    def verify(self) -> None:
        print("verifying")
        time.sleep(self.seconds)


def with_nan(batch, seeds, *, training, examples, **image) -> Mapping[str, tf.Tensor]:
    """Prepares images; some are NaN in the first epoch of training."""
    prepared = _image(batch, seeds, training=training, **image)
    epoch = tf.bitwise.bitwise_and(seeds[:, 0], 2**32 - 1)
    listed = tf.reduce_any(seeds[:, 1:] == tf.constant([examples], tf.int64), axis=1)
    bad = tf.reshape(listed & (epoch == 0) & training, [-1, 1, 1, 1])
    return prepared | {"image": tf.where(bad, tf.constant(float("nan"), prepared["image"].dtype), prepared["image"])}


def shaken(model, batch, *, training):
    """Classification of images with noise of NumPy."""
    images = batch["image"]
    noise = tf.numpy_function(lambda shape: np.random.normal(size=shape).astype("f4"), [tf.shape(images)], tf.float32)
    images += tf.ensure_shape(noise, images.shape) * float(training)
    return _classification(model, batch | {"image": images}, training=training)
