import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(1)
real = np.random.normal(2.0, 0.5, (64, 2)).astype("float32")
generator = keras.Sequential([keras.Input((3,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)])
judge = keras.Sequential([keras.Input((2,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1, "sigmoid")])
judge.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
both = keras.Sequential([keras.Input((3,)), generator, judge])
both.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
losses = []
for step in range(6):
    noise = np.random.normal(size=(16, 3)).astype("float32")
    fake = generator.predict(noise, verbose=0)
    x = np.concatenate([real[:16], fake])
    y = np.concatenate([np.ones((16, 1)), np.zeros((16, 1))]).astype("float32")
    judged = judge.train_on_batch(x, y)
    judge.trainable = False
    made = both.train_on_batch(noise, np.ones((16, 1), "float32"))
    judge.trainable = True
    losses.append([judged, made])
record(losses=losses, generator=generator.get_weights())
