import os

import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(7)
x, y = np.random.rand(60, 4).astype("float32"), np.random.randint(0, 2, 60)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "relu"), keras.layers.Dense(1, "sigmoid")])
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
os.makedirs("checkpoints", exist_ok=True)
best = keras.callbacks.ModelCheckpoint("checkpoints/best.keras", monitor="val_loss", save_best_only=True)
every = keras.callbacks.ModelCheckpoint("checkpoints/{epoch:02d}-{val_loss:.2f}.weights.h5", save_weights_only=True)
history = model.fit(x, y, validation_split=0.2, epochs=3, batch_size=16, shuffle=False, callbacks=[best, every])
loaded = keras.models.load_model("checkpoints/best.keras")
record(best=best.best, files=len(os.listdir("checkpoints")), predicted=loaded.predict(x), history=history.history)
