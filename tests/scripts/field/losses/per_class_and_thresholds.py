import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(18)
x = np.random.rand(45, 6).astype("float32")
y = np.eye(4, dtype="float32")[np.random.randint(0, 4, 45)]
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(4, "softmax")])
names = ["accuracy", "top_k_categorical_accuracy", "AUC", "precision", "recall", "kl_divergence"]
metrics = [
    *names,
    keras.metrics.AUC(multi_label=True, num_labels=4, name="per_label"),
    keras.metrics.Precision(class_id=1, thresholds=[0.2, 0.5], name="precision_1"),
    keras.metrics.Recall(top_k=2, name="recall_2"),
    keras.metrics.SensitivityAtSpecificity(0.6, name="sensitivity"),
    keras.metrics.PrecisionAtRecall(0.5, name="at_recall"),
    keras.metrics.F1Score(average="macro"),
    keras.metrics.FBetaScore(average=None, beta=0.5, name="fbeta"),
    keras.metrics.OneHotMeanIoU(num_classes=4, name="iou"),
    keras.metrics.R2Score(name="r2"),
    keras.metrics.PearsonCorrelation(name="pearson"),
    keras.metrics.ConcordanceCorrelation(name="concordance"),
]
model.compile(
    keras.optimizers.Lion(0.01),
    keras.losses.CategoricalFocalCrossentropy(alpha=[0.1, 0.2, 0.3, 0.4], label_smoothing=0.05),
    metrics=metrics,
)
history = model.fit(x, y, epochs=2, batch_size=10, shuffle=False, validation_data=(x[:13], y[:13]), verbose=0)
record(history=history.history, evaluated=model.evaluate(x, y, batch_size=7, verbose=0, return_dict=True))
