import keras
import numpy as np
from recording import record

keras.config.set_floatx("float64")  # The bias of keys has no gradient but roundings.
keras.utils.set_random_seed(0)
x, y = np.random.randint(0, 20, (36, 6)), np.random.randint(0, 2, 36)
inputs = keras.Input((6,), dtype="int32")
tokens = keras.layers.Embedding(20, 8)(inputs)
positions = keras.layers.Embedding(6, 8)(keras.ops.arange(6))
h = tokens + positions
h = keras.layers.LayerNormalization()(h + keras.layers.MultiHeadAttention(2, 4)(h, h, use_causal_mask=True))
h = keras.layers.LayerNormalization()(h + keras.layers.Dense(8)(keras.layers.Dense(16, "gelu")(h)))
outputs = keras.layers.Dense(2, "softmax")(keras.layers.GlobalAveragePooling1D()(h))
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(x, y, validation_split=0.25, epochs=3, batch_size=8, shuffle=False)
record(history=history.history, weights=model.get_weights())
