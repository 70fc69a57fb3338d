import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


def ssim_loss(y_true, y_pred):
    return 1 - tf.reduce_mean(tf.image.ssim(y_true, y_pred, 1.0, filter_size=5))


def combined(y_true, y_pred):
    edges = tf.reduce_mean(tf.abs(tf.image.sobel_edges(y_true) - tf.image.sobel_edges(y_pred)))
    return 0.8 * ssim_loss(y_true, y_pred) + 0.2 * tf.reduce_mean(tf.abs(y_true - y_pred)) + 0.1 * edges


def psnr(y_true, y_pred):
    return tf.image.psnr(y_true, y_pred, max_val=1.0)


def worst_pixel(y_true, y_pred):
    return tf.reduce_max(tf.abs(y_true - y_pred))


keras.utils.set_random_seed(0)
high = np.random.rand(22, 8, 8, 1).astype("float32")
low = high.reshape(22, 4, 2, 4, 2, 1).mean(axis=(2, 4))
inputs = keras.Input((4, 4, 1))
h = layers.Conv2D(4, 3, padding="same", activation="relu")(inputs)
h = layers.Conv2D(4, 3, padding="same")(h)
outputs = layers.Lambda(lambda t: tf.nn.depth_to_space(t, 2), output_shape=(8, 8, 1))(h)
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.Adam(0.01), combined, metrics=[psnr, worst_pixel, "mae"])
history = model.fit(low, high, epochs=2, batch_size=8, shuffle=False)
scores = model.evaluate(low, high, batch_size=9)
record(history=history.history, scores=scores, weights=model.get_weights())
