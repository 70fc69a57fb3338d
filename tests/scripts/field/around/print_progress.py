import keras
import numpy as np
from absl import app, flags
from recording import record

FLAGS = flags.FLAGS
flags.DEFINE_integer("steps", 2, "epochs")


def main(argv):
    del argv
    keras.utils.set_random_seed(0)
    x = np.random.rand(40, 4).astype("float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    history = model.fit(x, x[:, 0], epochs=FLAGS.steps, batch_size=8, shuffle=False, verbose=2)
    record(loss=history.history["loss"])


if __name__ == "__main__":
    app.run(main)
