import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(0)
series = np.sin(np.arange(80) / 5).astype("float32")[:, None]
make = keras.utils.timeseries_dataset_from_array
data = make(series[:-6], series[6:], sequence_length=6, batch_size=9)
model = keras.Sequential([keras.Input((6, 1)), keras.layers.GRU(5), keras.layers.Dense(1)])
model.compile("rmsprop", "mse")
history = model.fit(data, epochs=2)
record(history=history.history, predicted=model.predict(data))
