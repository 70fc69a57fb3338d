import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(1)
x, y = np.random.rand(40, 4).astype("float32"), np.random.rand(40, 1).astype("float32")
inputs = keras.Input((4,))
model = keras.Model(
    inputs, [keras.layers.Dense(1, name="p")(inputs), keras.layers.Dense(2, "softmax", name="q")(inputs)]
)
losses = ["mse", "sparse_categorical_crossentropy"]
model.compile("sgd", losses, loss_weights=[1.0, 0.3], metrics=[["mae"], ["accuracy"]])
targets, weights = [y, np.arange(40) % 2], [np.ones(40), np.linspace(0, 1, 40)]
history = model.fit(x, targets, sample_weight=weights, epochs=2, batch_size=9, shuffle=False, verbose=0)
record(history=history.history, weights=model.get_weights())
