import keras
import matplotlib
import numpy as np
from recording import record

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

keras.utils.set_random_seed(0)
x = np.random.rand(40, 4).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", metrics=["mae"])
history = model.fit(x, x[:, 0], validation_split=0.2, epochs=3, batch_size=8, shuffle=False)
plt.plot(history.history["loss"])
plt.plot(history.history["val_loss"])
plt.legend(["train", "test"])
plt.savefig("curve.png")
picture = plt.imread("curve.png")
model.summary()
print(model.to_json()[:40])
record(history=history.history, shape=picture.shape)
