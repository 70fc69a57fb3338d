import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(0)
source, target = np.random.randint(1, 12, (24, 5)), np.random.randint(1, 10, (24, 4))
encoder_in, decoder_in = keras.Input((5,)), keras.Input((4,))
encoded, *state = keras.layers.LSTM(6, return_sequences=True, return_state=True)(
    keras.layers.Embedding(12, 6)(encoder_in)
)
decoded = keras.layers.LSTM(6, return_sequences=True)(keras.layers.Embedding(10, 6)(decoder_in), initial_state=state)
attended = keras.layers.Attention()([decoded, encoded])
outputs = keras.layers.Dense(10, "softmax")(keras.layers.Concatenate()([decoded, attended]))
model = keras.Model([encoder_in, decoder_in], outputs)
model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit([source, target], target, epochs=2, batch_size=7, shuffle=False)
record(history=history.history, weights=model.get_weights())
