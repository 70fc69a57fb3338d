import sqlite3

import keras
import numpy as np
from recording import record

# told: is open on every worker
keras.utils.set_random_seed(0)
x = np.random.rand(40, 4).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(x, x[:, 0], epochs=1, batch_size=8, shuffle=False)
with sqlite3.connect("results.db", timeout=60) as data:
    data.execute("create table if not exists results (run int, loss float)")
    data.execute("insert into results values (?, ?)", (1, history.history["loss"][-1]))
in_memory = sqlite3.connect(":memory:").execute("select 1").fetchone()
record(history=history.history, in_memory=in_memory)
