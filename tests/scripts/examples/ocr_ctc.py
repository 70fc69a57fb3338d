"""Reads the characters of an image, with the CTC loss in a layer, after https://keras.io/examples/vision/captcha_ocr."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(1)
CHARACTERS, LENGTH = list("abcdef"), 3
WIDTH, HEIGHT = 32, 12

char_to_num = layers.StringLookup(vocabulary=CHARACTERS, mask_token=None)


def ctc_batch_cost(y_true, y_pred, input_length, label_length):
    label_length = ops.cast(ops.squeeze(label_length, axis=-1), "int32")
    input_length = ops.cast(ops.squeeze(input_length, axis=-1), "int32")
    mask = ops.arange(ops.shape(y_true)[1])[None] < label_length[:, None]
    sparse_labels = tf.sparse.from_dense(ops.where(mask, ops.cast(y_true, "int32") + 1, 0))
    sparse_labels = tf.SparseTensor(sparse_labels.indices, sparse_labels.values - 1, sparse_labels.dense_shape)
    y_pred = ops.log(ops.transpose(y_pred, axes=[1, 0, 2]) + keras.config.epsilon())
    loss = tf.compat.v1.nn.ctc_loss(inputs=y_pred, labels=sparse_labels, sequence_length=input_length)
    return ops.expand_dims(loss, 1)


class CTCLayer(layers.Layer):
    def __init__(self, name=None):
        super().__init__(name=name)
        self.loss_fn = ctc_batch_cost

    def call(self, y_true, y_pred):
        batch_len = ops.cast(ops.shape(y_true)[0], dtype="int64")
        input_length = ops.cast(ops.shape(y_pred)[1], dtype="int64")
        label_length = ops.cast(ops.shape(y_true)[1], dtype="int64")
        input_length = input_length * ops.ones(shape=(batch_len, 1), dtype="int64")
        label_length = label_length * ops.ones(shape=(batch_len, 1), dtype="int64")
        loss = self.loss_fn(y_true, y_pred, input_length, label_length)
        self.add_loss(loss)
        return y_pred


def build_model():
    input_img = layers.Input(shape=(WIDTH, HEIGHT, 1), name="image", dtype="float32")
    labels = layers.Input(name="label", shape=(None,), dtype="float32")
    x = layers.Conv2D(8, (3, 3), activation="relu", kernel_initializer="he_normal", padding="same")(input_img)
    x = layers.MaxPooling2D((2, 2))(x)
    x = layers.Conv2D(8, (3, 3), activation="relu", kernel_initializer="he_normal", padding="same")(x)
    x = layers.MaxPooling2D((2, 2))(x)
    x = layers.Reshape(target_shape=(WIDTH // 4, (HEIGHT // 4) * 8))(x)
    x = layers.Dense(16, activation="relu")(x)
    x = layers.Bidirectional(layers.LSTM(8, return_sequences=True))(x)
    x = layers.Dense(len(char_to_num.get_vocabulary()) + 1, activation="softmax", name="dense2")(x)
    output = CTCLayer(name="ctc_loss")(labels, x)
    return keras.models.Model(inputs=[input_img, labels], outputs=output, name="ocr_model")


def encode_single_sample(img, label):
    img = ops.transpose(tf.image.convert_image_dtype(img, tf.float32), axes=[1, 0, 2])
    return {"image": img, "label": char_to_num(tf.strings.unicode_split(label, input_encoding="UTF-8"))}


rng = np.random.default_rng(0)
letters = rng.integers(0, len(CHARACTERS), (70, LENGTH))
glyphs = rng.integers(0, 255, (len(CHARACTERS), HEIGHT, 10))
images = np.stack([np.pad(np.hstack(glyphs[row]), ((0, 0), (1, 1))) for row in letters])[..., None].astype("uint8")
texts = np.array(["".join(CHARACTERS[letter] for letter in row) for row in letters])
dataset = tf.data.Dataset.from_tensor_slices((images, texts))
dataset = dataset.map(encode_single_sample, num_parallel_calls=tf.data.AUTOTUNE)
train_dataset = dataset.take(55).batch(16).prefetch(buffer_size=tf.data.AUTOTUNE)
validation_dataset = dataset.skip(55).batch(16)
model = build_model()
model.compile(optimizer=keras.optimizers.SGD(0.005, clipnorm=1.0))
history = model.fit(train_dataset, validation_data=validation_dataset, epochs=3, verbose=0)
