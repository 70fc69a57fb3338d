import keras
import numpy as np
from recording import record

m = keras.metrics
binary = [m.AUC(), m.Precision(), m.Recall(), m.TruePositives(), m.TrueNegatives(), m.FalsePositives()]
binary += [m.FalseNegatives(), m.BinaryAccuracy(), m.BinaryCrossentropy(), m.Hinge(), m.SquaredHinge()]
binary += [m.SensitivityAtSpecificity(0.5), m.SpecificityAtSensitivity(0.5), m.PrecisionAtRecall(0.5)]
binary += [
    m.RecallAtPrecision(0.5),
    m.AUC(curve="PR", name="pr"),
    m.F1Score(threshold=0.5),
    m.FBetaScore(threshold=0.5),
]
keras.utils.set_random_seed(0)
x, y = np.random.rand(37, 3).astype("float32"), np.random.randint(0, 2, (37, 1)).astype("float32")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, "sigmoid")])
model.compile("adam", "binary_crossentropy", metrics=binary)
history = model.fit(x, y, epochs=2, batch_size=8, shuffle=False)
many = [m.CategoricalAccuracy(), m.TopKCategoricalAccuracy(2), m.CategoricalCrossentropy(), m.CategoricalHinge()]
many += [m.F1Score(), m.OneHotIoU(3, [0, 2]), m.OneHotMeanIoU(3)]
labels = keras.utils.to_categorical(np.arange(37) % 3)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, "softmax")])
model.compile("adam", "categorical_crossentropy", metrics=many)
other = model.fit(x, labels, epochs=2, batch_size=8, shuffle=False)
sparse = [m.SparseCategoricalAccuracy(), m.SparseTopKCategoricalAccuracy(2), m.SparseCategoricalCrossentropy()]
model.compile("adam", "sparse_categorical_crossentropy", metrics=sparse)
third = model.fit(x, np.arange(37) % 3, epochs=1, batch_size=8, shuffle=False)
record(binary=history.history, many=other.history, sparse=third.history)
