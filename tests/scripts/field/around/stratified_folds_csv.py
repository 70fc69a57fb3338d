import csv
import os

import keras
import numpy as np
from recording import record

SEED = 13


def folds(labels, k):
    rng = np.random.RandomState(SEED)
    parts = [[] for _ in range(k)]
    for label in np.unique(labels):
        where = np.flatnonzero(labels == label)
        rng.shuffle(where)
        for number, index in enumerate(where):
            parts[number % k].append(index)
    for number in range(k):
        test = np.sort(parts[number])
        yield np.setdiff1d(np.arange(len(labels)), test), test


if not os.path.exists("data.csv"):
    rng = np.random.default_rng(SEED)
    with open("data.csv", "w", newline="") as f:
        writer = csv.DictWriter(f, ["a", "b", "c", "species"])
        writer.writeheader()
        for _ in range(45):
            label = rng.integers(3)
            values = rng.normal(label, 1, 3)
            writer.writerow(
                dict(zip("abc", values, strict=True)) | {"species": ["setosa", "versicolor", "virginica"][label]}
            )
with open("data.csv") as f:
    rows = list(csv.DictReader(f))
names = sorted({row["species"] for row in rows})
x = np.array([[float(row[key]) for key in "abc"] for row in rows], "float32")
y = np.array([names.index(row["species"]) for row in rows])
out_of_fold = np.zeros((len(rows), 3))
results = []
for number, (train, test) in enumerate(folds(y, 3)):
    keras.backend.clear_session()
    keras.utils.set_random_seed(SEED + number)
    mean, std = x[train].mean(0), x[train].std(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3, "softmax")])
    model.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
    stop = keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True)
    history = model.fit(
        (x[train] - mean) / std,
        keras.utils.to_categorical(y[train], 3),
        validation_data=((x[test] - mean) / std, keras.utils.to_categorical(y[test], 3)),
        epochs=4,
        batch_size=8,
        shuffle=False,
        verbose=0,
        callbacks=[stop],
    )
    out_of_fold[test] = model.predict((x[test] - mean) / std, verbose=0)
    results.append(min(history.history["val_loss"]))
with open("submission.csv", "w", newline="") as f:
    csv.writer(f).writerows([["id", *names], *([i, *row] for i, row in enumerate(out_of_fold.round(5)))])
record(results=results, out_of_fold=out_of_fold, lines=len(open("submission.csv").readlines()))
