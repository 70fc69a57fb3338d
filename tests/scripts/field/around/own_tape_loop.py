import keras
import numpy as np
import tensorflow as tf
from recording import record

keras.utils.set_random_seed(0)
x, y = np.random.rand(48, 4).astype("float32"), np.random.randint(0, 3, 48)
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(12)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
optimizer, loss_fn = keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
losses = []
for epoch in range(2):
    for batch_x, batch_y in data:
        with tf.GradientTape() as tape:
            loss = loss_fn(batch_y, model(batch_x, training=True))
        gradients = tape.gradient(loss, model.trainable_weights)
        optimizer.apply_gradients(zip(gradients, model.trainable_weights))
        losses.append(float(loss))
record(losses=losses, weights=model.get_weights())
