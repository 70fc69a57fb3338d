import keras
import numpy as np
from recording import record

m = keras.metrics
keras.utils.set_random_seed(0)
x, labels = np.random.rand(37, 3).astype("float32"), np.arange(37) % 3


def history(units, activation, loss, y, metrics):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(units, activation)])
    model.compile("adam", loss, metrics=metrics)
    more = {"epochs": 2, "batch_size": 8, "shuffle": False, "verbose": 0}
    return model.fit(x, y, validation_data=(x[:9], y[:9]), **more).history


binary = [m.AUC(), m.Precision(), m.Recall(), m.TruePositives(), m.TrueNegatives(), m.FalsePositives()]
binary += [m.FalseNegatives(), m.BinaryAccuracy(), m.BinaryCrossentropy(), m.Hinge(), m.SquaredHinge(), m.BinaryIoU()]
binary += [m.SensitivityAtSpecificity(0.5), m.SpecificityAtSensitivity(0.5), m.PrecisionAtRecall(0.5)]
binary += [m.RecallAtPrecision(0.5), m.AUC(curve="PR", name="pr"), m.FBetaScore(threshold=0.5)]
many = [m.CategoricalAccuracy(), m.TopKCategoricalAccuracy(2), m.CategoricalCrossentropy(), m.CategoricalHinge()]
many += [m.F1Score(average="macro"), m.OneHotIoU(3, [0, 2]), m.OneHotMeanIoU(3), m.Recall(top_k=2, name="top")]
many += [m.AUC(multi_label=True, num_labels=3, name="each"), m.Precision([0.2, 0.5], class_id=1, name="of_one")]
sparse = [m.SparseCategoricalAccuracy(), m.SparseTopKCategoricalAccuracy(2), m.SparseCategoricalCrossentropy()]
names = ["MeanSquaredError", "RootMeanSquaredError", "MeanAbsoluteError", "MeanAbsolutePercentageError", "R2Score"]
names += ["MeanSquaredLogarithmicError", "CosineSimilarity", "LogCoshError", "Poisson", "KLDivergence"]
regression = [getattr(m, name)() for name in (*names, "ConcordanceCorrelation", "PearsonCorrelation")]
record(
    binary=history(1, "sigmoid", "binary_crossentropy", (labels == 1).astype("float32")[:, None], binary),
    many=history(3, "softmax", "categorical_crossentropy", keras.utils.to_categorical(labels), many),
    sparse=history(3, "softmax", "sparse_categorical_crossentropy", labels, sparse),
    regression=history(2, "softplus", "mse", np.random.rand(37, 2).astype("float32"), regression),
)
