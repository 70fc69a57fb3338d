import keras
import numpy as np
from recording import record


class TrialPruned(Exception):
    pass


class Prune(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            raise TrialPruned(f"loss {logs['loss'] > 0}")


keras.utils.set_random_seed(0)
x, y = np.random.rand(20, 3).astype("float32"), np.random.rand(20, 1).astype("float32")
results = []
for rate in (0.1, 0.01):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(rate), "mse")
    try:
        model.fit(x, y, epochs=4, batch_size=5, shuffle=False, verbose=0, callbacks=[Prune()])
    except TrialPruned as pruned:
        results.append([str(pruned), model.evaluate(x, y, verbose=0)])
record(results=results, weights=model.get_weights())
