import keras
import numpy as np
import tensorflow as tf
from recording import record

x, y = np.random.RandomState(0).rand(44, 4).astype("float32"), np.random.RandomState(1).rand(44, 1)


class Own(keras.Sequential):
    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=data[1], y_pred=self(data[0]))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def optimizer():
    """Without momentum: a gradient that is added twice shows in the weights."""
    heads = {"head/.*": keras.optimizers.SGD(0.01, clipnorm=0.1)}
    return keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.1), heads))


found = {}
for kind in (keras.Sequential, Own):
    keras.utils.set_random_seed(1)
    model = kind([keras.Input((4,)), keras.layers.Dense(3, "relu"), keras.layers.Dense(1, name="head")])
    model.compile(optimizer(), "mse")
    history = model.fit(x, y, epochs=2, batch_size=8, shuffle=False, verbose=0)
    found[kind.__name__] = [history.history["loss"], model.get_weights()]
record(**found)
