import keras
import numpy as np
import tensorflow as tf
from recording import record

keras.utils.set_random_seed(6)
x = np.random.rand(32, 4).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "relu"), keras.layers.Dense(3)])
model.compile("adam", keras.losses.Huber())
model.fit(x, x[:, :3], epochs=2, batch_size=8, shuffle=False, verbose=0)
model.export("exported", verbose=False)
artifact = tf.saved_model.load("exported")
served = artifact.serve(x[:4]).numpy()
layer = keras.layers.TFSMLayer("exported", call_endpoint="serve")
again = keras.Sequential([keras.Input((4,)), layer]).predict(x[:4], verbose=0)
model.save_weights("w.weights.h5")
other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "relu"), keras.layers.Dense(3)])
other.load_weights("w.weights.h5")
text = model.to_json()
rebuilt = keras.models.model_from_json(text)
rebuilt.set_weights(other.get_weights())
record(served=served, again=again, rebuilt=rebuilt.predict(x[:4], verbose=0))
