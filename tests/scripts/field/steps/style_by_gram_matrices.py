# After keras.io's "Neural style transfer": Gram matrices of several layers, as a loss of a small network of filters.
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


def gram_of_batch(features):
    flat = tf.reshape(features, [-1, features.shape[-1]])
    return tf.matmul(flat, flat, transpose_a=True) / tf.cast(tf.shape(flat)[0], tf.float32)


class Stylist(keras.Model):
    def __init__(self, net):
        super().__init__()
        names = ("one", "two")
        self.extractor = keras.Model(net.inputs, {name: net.get_layer(name).output for name in names})
        self.extractor.trainable = False
        self.painter = keras.Sequential([keras.Input((6, 6, 2)), layers.Conv2D(2, 3, padding="same")])

    def train_step(self, data):
        content, style = data
        with tf.GradientTape() as tape:
            image = content + 0.1 * self.painter(content, training=True)
            together = tf.concat([style, content, image], axis=0)
            features, loss = self.extractor(together), 0.0
            for name in ("one", "two"):
                of_style, of_content, of_image = tf.split(features[name], 3, axis=0)
                loss += tf.reduce_sum(tf.square(gram_of_batch(of_style) - gram_of_batch(of_image)))
            loss += 0.025 * tf.reduce_sum(tf.square(of_content - of_image))
            loss += 1e-3 * tf.reduce_mean(tf.image.total_variation(image))
        gradients = tape.gradient(loss, self.painter.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.painter.trainable_variables))
        return {"loss": loss}


keras.utils.set_random_seed(0)
net = keras.Sequential(
    [keras.Input((6, 6, 2)), layers.Conv2D(3, 3, activation="relu", name="one"), layers.MaxPooling2D()]
)
net.add(layers.Conv2D(4, 2, activation="relu", name="two"))
x = np.random.rand(2, 18, 6, 6, 2).astype("float32")
model = Stylist(net)
model.compile(keras.optimizers.SGD(0.5))
history = model.fit(x[0], x[1], batch_size=8, epochs=2, shuffle=False)
record(history=history.history, weights=model.painter.get_weights())
