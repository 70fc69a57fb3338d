import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(0)
x, y = np.random.rand(40, 4).astype("float32"), np.random.rand(40, 1).astype("float32")
dense = keras.layers.Dense(6, "relu", kernel_regularizer="L1L2", kernel_constraint=keras.constraints.MaxNorm(0.5))
layers = [dense, keras.layers.Dense(1, activity_regularizer=keras.regularizers.L2(0.01), use_bias=False)]
model = keras.Sequential([keras.Input((4,)), *layers])
model.compile(keras.optimizers.Adam(0.05), "mse")
history = model.fit(x, y, epochs=3, batch_size=9, shuffle=False)
record(history=history.history, weights=model.get_weights())
