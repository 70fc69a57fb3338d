import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(0)
x = np.random.rand(53, 4).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "relu"), keras.layers.Dense(2)])
model.compile("sgd", "mse")
model.fit(x, x[:, :2], epochs=1, batch_size=10, shuffle=False, verbose=0)
parts = [model.predict(x[start : start + 17], batch_size=5, verbose=0) for start in range(0, 53, 17)]
direct = model(x[:3])
features = keras.Model(model.inputs, model.layers[0].output).predict(x[:5])
record(parts=np.concatenate(parts), direct=direct, features=features, labels=np.argmax(model.predict(x), axis=1))
