import keras
import numpy as np
from recording import record

names = ["CategoricalCrossentropy", "CategoricalFocalCrossentropy", "CategoricalHinge", "KLDivergence"]
names += ["BinaryCrossentropy", "BinaryFocalCrossentropy", "Hinge", "SquaredHinge"]
names += ["CategoricalGeneralizedCrossEntropy"] * hasattr(keras.losses, "CategoricalGeneralizedCrossEntropy")
rng = np.random.default_rng(0)
x, classes = rng.random((22, 4)).astype("float32"), rng.integers(0, 3, 22)
found = {}
for name in names:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax")])
    model.compile("adam", getattr(keras.losses, name)(), metrics=["accuracy"])
    y = classes if name.endswith("GeneralizedCrossEntropy") else keras.utils.to_categorical(classes, 3)
    history = model.fit(x, y, epochs=2, batch_size=8, shuffle=False, verbose=0)
    found[name] = [history.history["loss"], model.get_weights()]
record(**found)
