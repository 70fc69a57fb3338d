import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(0)
x = np.random.randint(1, 9, (30, 6))
x[:, 4:] *= np.random.randint(0, 2, (30, 2))
y = np.random.randint(0, 4, (30, 6))
model = keras.Sequential(
    [
        keras.Input((6,)),
        keras.layers.Embedding(9, 5, mask_zero=True),
        keras.layers.LSTM(6, return_sequences=True),
        keras.layers.Dense(4, "softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(x, y, epochs=2, batch_size=8, shuffle=False)
weights = (x > 0).astype("float32")
again = model.fit(x, y, sample_weight=weights, epochs=1, batch_size=8, shuffle=False)
record(history=history.history, again=again.history, weights=model.get_weights())
