import os

os.environ["KERAS_MAX_EPOCHS"], os.environ["KERAS_MAX_STEPS_PER_EPOCH"] = "2", "3"

import keras
import numpy as np
from recording import record

# own process
keras.utils.set_random_seed(0)
x = np.random.rand(48, 4).astype("float32")
y = x.sum(1, keepdims=True)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
options = {"batch_size": 8, "shuffle": False, "verbose": 0}
history = model.fit(x, y, epochs=5, validation_data=(x, y), **options)
steps, predicted = int(model.optimizer.iterations.numpy()), model.predict(x, batch_size=8, verbose=0)
scores = model.evaluate(x, y, batch_size=8, verbose=0)
keras.config.set_max_epochs(1)
keras.config.set_max_steps_per_epoch(2)
again = model.fit(x, y, epochs=5, **options)
record(history=history.history, steps=steps, predicted=predicted, scores=scores, again=again.history)
record(weights=model.get_weights())
