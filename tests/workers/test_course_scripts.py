"""The programs of docs/courses: `fit` and a loop of one's own have the losses of the config of the same course."""

import argparse
import csv
import runpy
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import topologies
from launching import REPOSITORY, run_all

FOLDER = REPOSITORY / "docs" / "courses"
FLAGS = ["--batch=16", "--images=40", "--epochs=3", "--steps=1"]

# Runs a module with Keras' own layers: from the second step on, the losses of this network depend on rounding. On one
# device, weights that differed by 1e-7 gave 3.27 and 4.26.
WITH_KERAS_LAYERS = """
import runpy, sys
from tfdist.training.step.layers import convolutions, fused
fused.fuse = convolutions.use_products = lambda *args, **keywords: None
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
def test_fit_and_the_loop_of_idris_have_the_losses_of_tfdist_main(tmp_path):
    keras.utils.set_random_seed(1234)
    data = runpy.run_path(str(FOLDER / "jean_zay_data.py"))
    train, test = data["datasets"](argparse.Namespace(data=None, images=40), 16)
    tf.random.set_seed(None)
    # The batches of the programs, one behind the other.
    batches = {"train": list(train.take(3).as_numpy_iterator()), "test": list(test.as_numpy_iterator())}
    arrays = {
        f"{kind}_{name}": np.concatenate([batch[place] for batch in batches[name]])
        for name in batches
        for place, kind in enumerate("xy")
    }
    np.savez(tmp_path / "images.npz", **arrays)
    config = [
        f"--config.data.source={{'target': 'tfdist.zoo.sources:npz', 'path': '{tmp_path}/images.npz'}}",
        *("--config.data.prepare={'target': 'tfdist.zoo.prepare:identity'}", "--config.data.shuffle=false"),
        *("--config.data.batch_size=16", "--config.learning_rate.reference_batch_size=16", "--config.train.steps=3"),
        *("--config.report.every.steps=1", "--config.evaluation.every.steps=1", "--config.checkpoint.every.steps=3"),
    ]
    commands = [
        [sys.executable, str(FOLDER / "jean_zay_loop.py"), *FLAGS, f"--out={tmp_path}/loop.csv"],
        [sys.executable, "-m", "tfdist.run", f"--workdir={tmp_path}/fit", str(FOLDER / "jean_zay_fit.py"), *FLAGS],
        topologies.command(tmp_path / "main", *config, config="configs/courses/idris_resnet50.py"),
    ]
    for command in commands:
        if command[1] == "-m":
            command[1:2] = ["-c", WITH_KERAS_LAYERS]
        run_all([command], topologies.environments(1))
    with (tmp_path / "loop.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = {"loop": [(float(row["loss"]), float(row["test_accuracy"])) for row in rows]}
    for name, folder in (("fit", tmp_path / "fit" / "fit1"), ("main", tmp_path / "main")):
        reports = (topologies.records(folder, kind) for kind in ("train", "evaluation"))
        found[name] = [(train["loss"], test["accuracy"]) for train, test in zip(*reports, strict=True)]
    assert len(found["loop"]) == 3 and found["loop"][0][0] > found["loop"][2][0]
    for name in ("fit", "main"):
        np.testing.assert_allclose(found[name], found["loop"], rtol=1e-5, err_msg=name)
