import asyncio

import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(2)
x = np.random.rand(40, 3).astype("float32")


async def prepare(part):
    await asyncio.sleep(0.01)
    return x[part::2]


async def main():
    even, odd = await asyncio.gather(prepare(0), prepare(1))
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.05), "mae")
    history = model.fit(even, odd[:, :1], epochs=3, batch_size=5, shuffle=False, verbose=0)
    with open("losses.txt", "w") as file:
        file.write("\n".join(f"{one:.5f}" for one in history.history["loss"]))
    await asyncio.sleep(0.01)
    record(losses=[float(line) for line in open("losses.txt")], weights=model.get_weights())


asyncio.run(main())
