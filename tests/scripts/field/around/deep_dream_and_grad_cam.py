import keras
import numpy as np
import tensorflow as tf
from recording import record

keras.utils.set_random_seed(4)
x = np.random.rand(32, 8, 8, 3).astype("float32")
y = np.arange(32) % 3
inputs = keras.Input((8, 8, 3))
features = keras.layers.Conv2D(6, 3, activation="relu", name="last_conv")(inputs)
outputs = keras.layers.Dense(3)(keras.layers.GlobalAveragePooling2D()(features))
model = keras.Model(inputs, outputs)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = model.fit(x, y, epochs=2, batch_size=8, shuffle=False, verbose=0)

# Grad-CAM of one image.
grad_model = keras.Model(model.inputs, [model.get_layer("last_conv").output, model.output])
with tf.GradientTape() as tape:
    maps, predictions = grad_model(x[:1])
    channel = predictions[:, 1]
weights = tf.reduce_mean(tape.gradient(channel, maps), axis=(0, 1, 2))
heatmap = tf.squeeze(maps[0] @ weights[:, None])

# Gradient ascent on the image.
extractor = keras.Model(inputs, features)
image = tf.Variable(x[:1])
for _ in range(3):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(extractor(image)[..., 2])
    gradient = tf.math.l2_normalize(tape.gradient(loss, image))
    image.assign_add(0.5 * gradient)
record(history=history.history, heatmap=heatmap.numpy(), image=image.numpy(), loss=float(loss))
