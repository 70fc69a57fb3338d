import keras
import numpy as np
from recording import record

# told: use_multiprocessing=True
keras.utils.set_random_seed(0)
x = np.random.rand(40, 4).astype("float32")


class Data(keras.utils.PyDataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        rows = slice(8 * index, 8 * index + 8)
        return x[rows], x[rows].sum(1, keepdims=True)


if __name__ == "__main__":
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    history = model.fit(Data(workers=4, use_multiprocessing=True), epochs=2, shuffle=False, verbose=0)
    record(history=history.history, weights=model.get_weights())
