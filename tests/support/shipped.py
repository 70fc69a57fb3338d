"""Makes steps with a shipped config on several numbers of replicas, in one process.

What batch normalisation and dropout compute depends on the number of replicas. A config with them is changed:
statistics are those of the whole batch, nothing is dropped, and layers compute in float64: in float32, new weights
amplify the rounding of the statistics to 2e-4, and the 50 layers of a ResNet amplify it further. Such a config also
makes steps on several replicas as it is: "unchanged".
"""

import gc
import importlib
import pathlib
from typing import Any

import keras
import probes
import tensorflow as tf
from topologies import largest_difference

from tfdist import config as c
from tfdist.config import specs
from tfdist.training import opening, setup
from tfdist.training.evaluation import evaluate
from tfdist.zoo import sources

REPLICAS = (1, 2, 4, 8)
STEPS = 2
# Config -> the images on which it is trained here: small ones, if its network allows that. None: its own data.
IMAGES: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(("digits", "digits28", "line", "char_gpt", "courses.cscs_line")),
    **dict.fromkeys(("mlp", "mnist", "courses.bsc_mnist", "courses.sctrain_mlp"), (28, 28, 1)),
    **dict.fromkeys(("cifar", "cifar_fast"), (32, 32, 3)),
    **dict.fromkeys(("alexnet", "courses.sctrain_alexnet"), (67, 67, 3)),
    **dict.fromkeys(("cifar_resnet50", "cifar_resnet50v2"), (32, 32, 3)),
    **dict.fromkeys(("courses.bsc_resnet50v2", "courses.idris_resnet50"), (32, 32, 3)),
    "imagenet": (32, 32, 3),
    "courses.cscs_imagenet": (75, 75, 3),  # The smallest images of InceptionV3.
}
# Networks of keras.applications, whose copies and graphs fill the memory of one process: on up to four replicas.
APPLICATIONS = (
    *("cifar_resnet50", "cifar_resnet50v2", "imagenet"),
    *("courses.bsc_resnet50v2", "courses.idris_resnet50", "courses.cscs_imagenet"),
)
# Those whose sources are encoded images.
JPEGS = ("imagenet", "courses.cscs_imagenet")
# Networks with unsynchronised batch normalisation or dropout.
PER_REPLICA = ("alexnet", "courses.sctrain_alexnet", *APPLICATIONS)


def smaller(name: str) -> c.Config:
    """Returns a shipped config with small images, and with small batches of them if it is large."""
    config = importlib.import_module(f"configs.{name}").get_config()
    config.report.tensorboard = False
    shape = IMAGES[name]
    if shape is None:
        return config
    if "group_size" in config.model:
        # As in the config: a group spans two of eight replicas.
        config.data.batch_size, config.model["group_size"], config.model["widths"] = 64, 16, (8, 16, 16)
    if name in PER_REPLICA:
        config.data.batch_size = 16
    config.data.train_split, config.data.evaluation_split = "train", config.data.evaluation_split and "test"
    config.data.source = {"target": "tfdist.zoo.sources:synthetic", "shape": shape, "num_test_examples": 16}
    config.data.source["num_examples"] = 4 * config.data.batch_size
    if name in JPEGS:
        config.data.source |= {"target": "shipped:jpegs", "num_classes": 1000}
        config.data.prepare |= {"size": shape[0]} if "size" in config.data.prepare else {"resize": shape[:2]}
    else:
        config.data.prepare.pop("resize", None)
    if name in PER_REPLICA:
        config.model["input_shape"] = shape
    return config


class Jpegs:
    """A source of the images of another one, as JPEGs."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def read(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the examples `ids`, with "image" string [n]."""
        batch = self._source.read(ids)
        return {**batch, "image": tf.map_fn(tf.io.encode_jpeg, batch["image"], fn_output_signature=tf.string)}


def jpegs(split: str, **arguments: Any) -> Jpegs:
    """Returns the images of `tfdist.zoo.sources:synthetic` as JPEGs."""
    return Jpegs(sources.synthetic(split, **arguments))


def of_whole_batches(network: dict[str, Any]) -> keras.Model:
    """Returns a model of type float64 with synchronised statistics and without dropout."""
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


def steps(config: c.Config, workdir: pathlib.Path) -> tuple[float, probes.Arrays, probes.Arrays]:
    """Makes some steps and an evaluation; returns the loss, and the weights before and after."""
    probes.forget()
    gc.collect()  # Frees the variables of the last run: one copy per replica.
    run = setup.build_run(config, workdir)
    before = {key: array.copy() for key, array in probes.weights(run).items()}
    loss = probes.run_steps(run, STEPS)["loss"]
    after = {key: array.copy() for key, array in probes.weights(run).items()}
    if run.feed.evaluation is not None:
        evaluate.evaluate(opening.make_silent_services(run), STEPS)
    return loss, before, after


def all_counts(name: str, folder: pathlib.Path) -> dict[int | str, list[float]]:
    """Makes steps on each of `REPLICAS`, one after the other.

    Returns for each the loss, the largest change of a weight, and the largest difference from a weight on one replica.
    """
    most = 4 if name in APPLICATIONS else REPLICAS[-1]
    counts = [count for count in REPLICAS if count <= most and smaller(name).data.batch_size % count == 0]
    found, alone = {}, {}
    for key in (*counts, *(["unchanged"] if name in PER_REPLICA else [])):
        config = smaller(name)
        if name in PER_REPLICA:
            config.data.evaluation_split = config.checkpoint.best_metric = None
        # Two replicas have eight images each. With fewer, some variances over 1x1 pixels are near 0.
        unchanged = 2 if name in APPLICATIONS else counts[-1]
        config.cluster.logical_devices = unchanged if key == "unchanged" else key
        if name in PER_REPLICA and key != "unchanged":
            config.model = {"target": "shipped:of_whole_batches", "network": config.model}
        loss, before, weights = steps(config, folder / name)
        alone = alone or weights
        found[key] = [loss, largest_difference(before, weights), largest_difference(alone, weights)]
    return found
