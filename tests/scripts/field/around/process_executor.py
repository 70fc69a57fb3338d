from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import keras
import numpy as np
from recording import record


def features(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=6).astype("float32")


def main():
    with ProcessPoolExecutor(2) as pool:
        rows = list(pool.map(features, range(36)))
    with ThreadPoolExecutor(4) as pool:
        labels = list(pool.map(lambda row: float(row.sum() > 0), rows))
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, "sigmoid")])
    model.compile("adam", "binary_crossentropy", metrics=["AUC"])
    history = model.fit(np.stack(rows), np.array(labels), epochs=3, batch_size=9, shuffle=False, verbose=0)
    record(history=history.history)


if __name__ == "__main__":
    main()
