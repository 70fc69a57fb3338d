import keras
import numpy as np
from recording import record

names = ["MeanSquaredError", "RootMeanSquaredError", "MeanAbsoluteError", "MeanAbsolutePercentageError"]
names += ["MeanSquaredLogarithmicError", "CosineSimilarity", "LogCoshError", "R2Score", "Poisson", "KLDivergence"]
names += ["ConcordanceCorrelation", "PearsonCorrelation"]
keras.utils.set_random_seed(0)
x, y = np.random.rand(27, 3).astype("float32"), np.random.rand(27, 2).astype("float32")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, "softplus")])
model.compile("sgd", "mse", metrics=[getattr(keras.metrics, name)() for name in names])
history = model.fit(x, y, validation_data=(x[:9], y[:9]), epochs=2, batch_size=8, shuffle=False)
record(history=history.history)
