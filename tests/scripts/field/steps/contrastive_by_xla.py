# After CLIP's public code: a symmetric loss with a clipped temperature, with jit_compile, and helpers of tf.function.
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


@tf.function(jit_compile=True)
def similarities(a, b, scale):
    return tf.exp(scale) * tf.matmul(tf.math.l2_normalize(a, axis=1), tf.math.l2_normalize(b, axis=1), transpose_b=True)


class CLIP(keras.Model):
    def __init__(self):
        super().__init__()
        self.one = keras.Sequential([keras.Input((6,)), layers.Dense(8, "gelu"), layers.Dense(4)])
        self.two = keras.Sequential([keras.Input((3,)), layers.Dense(8, "gelu"), layers.Dense(4)])
        self.scale = self.add_weight(shape=(), initializer=keras.initializers.Constant(1.0), name="scale")

    @tf.function(reduce_retracing=True)
    def objective(self, data):
        logits = similarities(self.one(data[0]), self.two(data[1]), self.scale.value)
        labels = tf.range(tf.shape(logits)[0])
        both = (tf.nn.sparse_softmax_cross_entropy_with_logits(labels, s) for s in (logits, tf.transpose(logits)))
        return tf.reduce_mean(tf.concat(list(both), axis=0)), logits

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss, logits = self.objective(data)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.scale.assign(tf.clip_by_value(self.scale.value, 0.0, 1.02))
        return {"loss": loss, "right": tf.reduce_mean(tf.linalg.diag_part(logits))}

    def test_step(self, data):
        loss, logits = self.objective(data)
        return {"loss": loss, "rows": tf.cast(tf.shape(logits)[1], tf.float32)}


keras.utils.set_random_seed(0)
x, y = np.random.rand(33, 6).astype("float32"), np.random.rand(33, 3).astype("float32")
found = {}
for compiled in (False, True):
    model = CLIP()
    model.compile(keras.optimizers.AdamW(0.01), jit_compile=compiled)
    history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, validation_data=(x[:9], y[:9]))
    found[str(compiled)] = [
        history.history,
        model.evaluate(x, y, batch_size=16, return_dict=True),
        [w.numpy() for w in model.weights],
    ]
record(**found)
