"""The interrupted run for the chaos test: longer, a batch that up to 32 workers divide, every step reported."""

import os
from collections.abc import Mapping

import tensorflow as tf

from tests.configs import interrupted
from tests.support import lab
from tfdist import config as c
from tfdist.cluster.devices import replicas


def corruptible(model, batch, *, training, seconds: float, corruption: str) -> Mapping[str, tf.Tensor]:
    """`lab.slow_classification`; in training replica 1 changes its weights as long as there is a file `corruption`."""
    values = lab.slow_classification(model, batch, training=training, seconds=seconds)
    if training:
        # With an input and no state, as `lab.slow_classification`.
        found = tf.numpy_function(lambda loss: os.path.exists(corruption), [values["loss"]], tf.bool, stateful=False)
        kernel = model.trainable_variables[0].value
        kernel.assign(tf.where(found & (replicas.replica_id() == 1), kernel + 1.0, kernel))
    return values


def get_config() -> c.Config:
    """Returns the configuration of the run."""
    config = interrupted.get_config()
    # Wide enough that a kill can hit a save.
    config.model["width"] = 256
    config.data.source = {"target": "tfdist.zoo.sources:npz", "path": ""}
    config.data.cache = "raw"
    config.data.batch_size = config.data.evaluation_batch_size = 96
    config.train.steps = 240
    config.objective = {"target": "tests.configs.chaos:corruptible", "seconds": 0.06, "corruption": ""}
    config.report.every.steps = 1
    return config
