import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(0)
x = np.random.rand(40, 4).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), "mse")
model.fit(x, x[:, 0], epochs=1, batch_size=8, shuffle=False)
model.save("half.keras")
model = keras.models.load_model("half.keras")
history = model.fit(x, x[:, 0], initial_epoch=1, epochs=3, batch_size=8, shuffle=False)
record(loss=history.history["loss"], steps=int(model.optimizer.iterations), weights=model.get_weights())
