import keras
import numpy as np
import tensorflow as tf
from recording import record

# A loop in a tf.function, without a strategy, whose optimizer makes its variables in the first step.
keras.utils.set_random_seed(0)
x = np.random.rand(26, 6).astype("float32")
y = np.arange(26) % 3
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(3)])
optimizer = keras.optimizers.Adam(0.01)
compute_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
accuracy = keras.metrics.SparseCategoricalAccuracy()


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        outputs = model(x, training=True)
        loss = compute_loss(y, outputs)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_weights), model.trainable_weights, strict=True))
    accuracy.update_state(y, outputs)
    return loss


losses, accuracies = [], []
for _ in range(2):
    losses += [float(step(*batch)) for batch in tf.data.Dataset.from_tensor_slices((x, y)).batch(8)]
    accuracies.append(float(accuracy.result()))
    accuracy.reset_state()
record(losses=losses, accuracies=accuracies, weights=model.get_weights())
