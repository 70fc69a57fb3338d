import keras
import numpy as np
from recording import record

rng, losses = np.random.default_rng(0), keras.losses
x, classes = rng.random((22, 4)).astype("float32"), rng.integers(0, 3, 22)
one_hot, numbers = keras.utils.to_categorical(classes, 3), rng.random((22, 3)).astype("float32") + 0.1
kinds = {
    "mean": (
        one_hot,
        [losses.CategoricalCrossentropy(label_smoothing=0.1), losses.BinaryFocalCrossentropy(), losses.Huber()],
    ),
    "others": (one_hot, [losses.Dice(), losses.Tversky(), losses.KLDivergence(), "crossentropy"]),
    "numbers": (numbers, [losses.CosineSimilarity(), losses.Poisson(), losses.LogCosh()]),
    "classes": (classes, [losses.Circle(), losses.SparseCategoricalCrossentropy(ignore_class=0)]),
}
found = {}
for kind, (y, made) in kinds.items():
    for loss in made:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax")])
        model.compile(keras.optimizers.SGD(0.01), loss)
        history = model.fit(x, y, epochs=2, batch_size=8, shuffle=False, verbose=0)
        found[f"{kind} {getattr(loss, 'name', loss)}"] = [history.history["loss"], model.get_weights()]
model = keras.Sequential([keras.Input((8, 3)), keras.layers.Dense(5)])
model.compile("adam", losses.CTC())
history = model.fit(rng.random((12, 8, 3)), rng.integers(1, 4, (12, 3)), epochs=2, batch_size=5, shuffle=False)
record(**found, ctc=[history.history["loss"], model.get_weights()])
