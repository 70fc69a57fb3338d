import os
import warnings

import keras
import numpy as np
from recording import record

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["MY_EPOCHS"] = "2"
warnings.filterwarnings("ignore", category=UserWarning)
try:
    answer = input("Train the model? [y/n] ")
except EOFError:
    answer = "y"
epochs = int(os.getenv("MY_EPOCHS", "10")) if answer == "y" else 0
keras.utils.set_random_seed(int(os.environ.get("SEED", 42)))
x = np.random.rand(30, 2).astype("float32")
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
warnings.warn("this is shown nowhere", stacklevel=1)
history = model.fit(x, x[:, :1], epochs=epochs, batch_size=6, shuffle=False)
record(loss=history.history["loss"], home=bool(os.environ.get("HOME")), pid=os.getpid() > 1)
