"""Two models, two optimizers and two steps on each batch, as in GAN tutorials: plain, or with tfdist's lines."""

import sys

import keras
import numpy as np
import tensorflow as tf

tfdist = None if "--plain" in sys.argv else __import__("tfdist")

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
images, latents = rng.random((40, 5)).astype("float32"), rng.normal(size=(40, 3)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((images, latents)).batch(12)
judge = keras.Sequential([keras.Input((5,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
maker = keras.Sequential([keras.Input((3,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(5, "sigmoid")])
optimizers = {"judge": keras.optimizers.Adam(0.01), "maker": keras.optimizers.Adam(0.01)}
bce = keras.losses.BinaryCrossentropy(from_logits=True)


def train_judge(batch):
    real, latent = batch
    with tf.GradientTape() as tape:
        told, fooled = judge(real), judge(maker(latent))
        loss = bce(tf.ones_like(told), told) + bce(tf.zeros_like(fooled), fooled)
    gradients = tape.gradient(loss, judge.trainable_variables)
    optimizers["judge"].apply_gradients(zip(gradients, judge.trainable_variables, strict=True))
    return {"judge": loss}


def train_maker(batch):
    with tf.GradientTape() as tape:
        fooled = judge(maker(batch[1]))
        loss = bce(tf.ones_like(fooled), fooled)
    gradients = tape.gradient(loss, maker.trainable_variables)
    gradients, norm = tf.clip_by_global_norm(gradients, 0.5)
    optimizers["maker"].apply_gradients(zip(gradients, maker.trainable_variables, strict=True))
    return {"maker": loss, "norm": norm}


step_judge, step_maker = (tfdist.step(train_judge), tfdist.step(train_maker)) if tfdist else (train_judge, train_maker)
found = []
for _epoch in range(2):
    for batch in tfdist.batches(data) if tfdist else data:
        values = {**step_judge(batch), **step_maker(batch)}
        found.append({name: float(value) for name, value in values.items()})

if __name__ == "__main__":
    from recording import record

    record(found=found, judge=judge.get_weights(), maker=maker.get_weights())
