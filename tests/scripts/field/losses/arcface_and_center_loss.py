import keras
import numpy as np
from keras import layers, ops
from recording import record


class ArcFace(layers.Layer):
    def __init__(self, classes, s=8.0, m=0.2, **kwargs):
        super().__init__(**kwargs)
        self.classes, self.s, self.m = classes, s, m

    def build(self, shapes):
        self.w = self.add_weight(shape=(shapes[0][-1], self.classes), initializer="glorot_uniform", trainable=True)

    def call(self, inputs):
        x, y = inputs
        cos = ops.matmul(ops.normalize(x, axis=1), ops.normalize(self.w, axis=0))
        theta = ops.arccos(ops.clip(cos, -1 + 1e-6, 1 - 1e-6))
        y = ops.one_hot(ops.squeeze(y, -1), self.classes)
        return self.s * (cos * (1 - y) + ops.cos(theta + self.m) * y)


class CenterLoss(layers.Layer):
    def __init__(self, classes, weight=0.1):
        super().__init__()
        self.classes, self.weight = classes, weight

    def build(self, shapes):
        self.centers = self.add_weight(shape=(self.classes, shapes[0][-1]), initializer="zeros", name="centers")

    def call(self, inputs):
        features, labels = inputs
        mine = ops.take(self.centers, ops.squeeze(labels, -1), axis=0)
        self.add_loss(self.weight * ops.mean(ops.sum(ops.square(features - mine), axis=1)))
        return features


keras.utils.set_random_seed(0)
x, y = np.random.rand(43, 6).astype("float32"), np.random.randint(0, 4, (43, 1))
image, label = keras.Input((6,)), keras.Input((1,), dtype="int32")
features = layers.Dense(5)(layers.Dense(12, "relu")(image))
features = CenterLoss(4)([features, label])
logits = ArcFace(4)([features, label])
model = keras.Model([image, label], logits)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])
history = model.fit([x, y], y, epochs=3, batch_size=15, shuffle=False)
record(history=history.history, weights=model.get_weights())
