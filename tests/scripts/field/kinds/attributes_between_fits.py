import keras
import numpy as np
from recording import record

# told: no effect until the next model.compile
x = np.random.RandomState(0).rand(40, 4).astype("float32")
y = x.sum(1, keepdims=True)
optimizer, dropout = keras.optimizers.SGD(0.1, momentum=0.9), keras.layers.Dropout(0.0)
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), dropout, keras.layers.Dense(1)])
model.layers[0].trainable = False
model.compile(optimizer, "mse")
fit = {"batch_size": 8, "shuffle": False, "verbose": 0}
histories = [model.fit(x, y, **fit).history]
optimizer.momentum, dropout.rate, model.layers[0].trainable = 0.0, 0.5, True
histories.append(model.fit(x, y, **fit).history)
trained = model.get_weights()
dropout.rate = 0.0
model.compile(keras.optimizers.SGD(0.1, momentum=optimizer.momentum), "mse")
histories.append(model.fit(x, y, **fit).history)
record(histories=histories, weights=[trained, model.get_weights()], settings=[optimizer.momentum, dropout.rate])
