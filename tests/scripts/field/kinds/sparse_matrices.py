import keras
import numpy as np
import scipy.sparse
from recording import record

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = scipy.sparse.random(44, 6, density=0.4, format="csr", dtype="float32", rng=rng)
y = np.asarray(x.sum(1))
model = keras.Sequential([keras.Input((6,), sparse=True), keras.layers.Dense(1)])
model.compile("sgd", "mse")
options = {"batch_size": 8, "shuffle": False, "verbose": 0}
history = model.fit(x, y, epochs=2, validation_data=(x, y), **options)
scores, predicted = model.evaluate(x, y, batch_size=8, verbose=0), model.predict(x, batch_size=8, verbose=0)
record(history=history.history, scores=scores, predicted=predicted, weights=model.get_weights())
