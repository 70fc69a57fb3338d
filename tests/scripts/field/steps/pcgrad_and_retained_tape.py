# After Yu et al.'s PCGrad: gradients of tasks that conflict are projected, all by one persistent tape.
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


def projected(tasks):
    flat = [tf.concat([tf.reshape(g, [-1]) for g in task], axis=0) for task in tasks]
    mixed = []
    for i, one in enumerate(flat):
        for j, other in enumerate(flat):
            if i != j:
                inner = tf.tensordot(one, other, 1)
                one = tf.cond(inner < 0, lambda: one - inner * other / tf.reduce_sum(other**2), lambda: one)
        mixed.append(one)
    sizes = [int(np.prod(g.shape)) for g in tasks[0]]
    return [tf.reshape(part, g.shape) for part, g in zip(tf.split(tf.add_n(mixed), sizes), tasks[0])]


class PCGrad(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
            tape.watch([v.value for v in self.trainable_variables])
            out = self(x, training=True)
            losses = [self.loss[name](y[name], out[name]) for name in ("a", "b", "c")]
        shared = self.get_layer("shared").trainable_variables
        tasks = [tape.gradient(loss, shared) for loss in losses]
        heads = [v for v in self.trainable_variables if all(v is not one for one in shared)]
        own = tape.gradient(tf.add_n(losses), heads)
        self.optimizer.apply_gradients(zip([*projected(tasks), *own], [*shared, *heads]))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(tf.add_n(losses))
        return {"loss": self.metrics[0].result(), "c": losses[2]}


keras.utils.set_random_seed(0)
x = np.random.rand(33, 5).astype("float32")
y = {"a": np.random.rand(33, 1), "b": 1 - np.random.rand(33, 1), "c": np.random.randint(0, 3, 33)}
inputs = keras.Input((5,))
h = layers.Dense(8, "tanh", name="shared")(inputs)
model = PCGrad(
    inputs,
    {
        "a": layers.Dense(1, name="a")(h),
        "b": layers.Dense(1, name="b")(h),
        "c": layers.Dense(3, "softmax", name="c")(h),
    },
)
losses = {
    "a": keras.losses.MeanSquaredError(),
    "b": keras.losses.Huber(0.1),
    "c": keras.losses.SparseCategoricalCrossentropy(),
}
model.compile(keras.optimizers.SGD(0.2), losses)
history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False)
record(history=history.history, weights=model.get_weights())
