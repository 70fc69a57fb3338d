"""Makes steps with a shipped config on several numbers of replicas, in one process.

usage: python shipped.py OUT.json CONFIG   ->  {replicas: [loss, largest change of a weight, difference]}

The difference is the largest between a weight and that on one replica. What batch normalisation and dropout compute
depends on the number of replicas. A config with them is changed: statistics are those of the whole batch, nothing is
dropped, and layers compute in float64: in float32, new weights amplify the rounding of the statistics to 2e-4. Such a
config also makes steps on the largest number of replicas as it is: "unchanged".
"""

import importlib
import json
import pathlib
import sys
from typing import Any

import keras
import numpy as np
import probes
from processes import REPOSITORY

from tfdist import config as c
from tfdist.config import specs
from tfdist.training import evaluate, loop_tools, setup

REPLICAS = (1, 2, 4, 8)
STEPS = 2
# Config -> the images on which it is trained here: small ones, if its network allows that. None: its own data.
# Not here: the networks of keras.applications, whose steps are traced for minutes.
IMAGES: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(("digits", "line", "courses.cscs_line")),
    **dict.fromkeys(("mlp", "mnist", "courses.bsc_mnist", "courses.sctrain_mlp"), (28, 28, 1)),
    **dict.fromkeys(("cifar", "cifar_fast"), (32, 32, 3)),
    **dict.fromkeys(("alexnet", "courses.sctrain_alexnet"), (67, 67, 3)),
}
# Networks with unsynchronised batch normalisation or dropout.
PER_REPLICA = ("alexnet", "courses.sctrain_alexnet")


def smaller(name: str) -> c.Config:
    """Returns a shipped config in float32, with small images, and with small batches of them if it is large."""
    config = importlib.import_module(f"configs.{name}").get_config()
    config.report.tensorboard = False
    config.train.precision = "float32"
    shape = IMAGES[name]
    if shape is None:
        return config
    if "group_size" in config.model:
        # As in the config: a group spans two of eight replicas.
        config.data.batch_size, config.model["group_size"], config.model["widths"] = 64, 16, (8, 16, 16)
    if name in PER_REPLICA:
        config.data.batch_size = 16
        config.data.evaluation_split = config.checkpoint.best_metric = None
    config.data.source = {"target": "tfdist.zoo.sources:synthetic", "shape": shape, "num_test_examples": 16}
    config.data.source["num_examples"] = 4 * config.data.batch_size
    config.data.prepare.pop("resize", None)
    if name in PER_REPLICA:
        config.model["input_shape"] = shape
    return config


def of_whole_batches(network: dict[str, Any]) -> keras.Model:
    """Returns a model in float64 with synchronised statistics and without dropout."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    model = specs.build(network, field="config.model")
    keras.config.set_dtype_policy(policy)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = True
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0
    return model


def steps(config: c.Config, workdir: pathlib.Path) -> tuple[float, float, dict[str, np.ndarray]]:
    """Makes some steps and an evaluation; returns the loss, the largest change of a weight, and the weights."""
    probes.forget()
    run = setup.build_run(config, workdir)
    before = {key: array.copy() for key, array in probes.weights(run).items()}
    loss = probes.run_steps(run, STEPS)["loss"]
    after = {key: array.copy() for key, array in probes.weights(run).items()}
    if run.evaluation_data is not None:
        evaluate.evaluate(loop_tools.make_silent_tools(run), STEPS)
    return loss, largest_difference(before, after), after


def largest_difference(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> float:
    """The largest difference between weights; NaN if there is one."""
    assert first.keys() == second.keys()
    return float(np.max([np.abs(first[name] - second[name]).max() for name in first]))


if __name__ == "__main__":
    sys.path.append(str(REPOSITORY))  # For the package `configs`.
    out, name = sys.argv[1:]
    counts = [count for count in REPLICAS if smaller(name).data.batch_size % count == 0]
    found, alone = {}, {}
    for key in (*counts, *(["unchanged"] if name in PER_REPLICA else [])):
        config = smaller(name)
        config.cluster.logical_devices = counts[-1] if key == "unchanged" else key
        if name in PER_REPLICA and key != "unchanged":
            config.model = {"target": "shipped:of_whole_batches", "network": config.model}
        loss, moved, weights = steps(config, pathlib.Path(out).parent / name)
        alone = alone or weights
        found[key] = [loss, moved, largest_difference(alone, weights)]
        print(name, key, *found[key], flush=True)
    pathlib.Path(out).write_text(json.dumps(found))
