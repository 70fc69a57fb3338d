import keras
import numpy as np
from recording import record

L = keras.layers
keras.utils.set_random_seed(0)
x = np.random.rand(12, 16, 16, 1).astype("float32")
y = (x > 0.6).astype("float32")
inputs = keras.Input((16, 16, 1))
down = L.Conv2D(4, 3, padding="same", activation="relu")(inputs)
middle = L.Conv2D(8, 3, padding="same", activation="relu")(L.MaxPooling2D()(down))
up = L.Concatenate()([L.UpSampling2D()(middle), down])
model = keras.Model(inputs, L.Conv2D(1, 1, activation="sigmoid")(L.Conv2D(4, 3, padding="same", activation="relu")(up)))
model.compile("adam", keras.losses.Dice(), metrics=[keras.metrics.BinaryIoU(target_class_ids=[1])])
history = model.fit(x, y, epochs=2, batch_size=5, shuffle=False)
record(history=history.history, weights=model.get_weights())
