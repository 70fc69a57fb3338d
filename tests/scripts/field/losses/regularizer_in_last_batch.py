import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(0)
x, y = np.random.rand(25, 6).astype("float32"), np.random.randint(0, 3, 25)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, kernel_regularizer="l2")])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
history = model.fit(x, y, epochs=2, batch_size=8, shuffle=False, verbose=0)
record(history=history.history, evaluated=model.evaluate(x, y, batch_size=8, verbose=0))
