"""Reads the input pipelines of several configs on the devices of one worker, and records the examples of each step."""

import dataclasses

import numpy as np
import tensorflow as tf

from tfdist import config as c
from tfdist.cluster import strategy
from tfdist.data import inputs as inputs_lib
from tfdist.data import pipelines
from tfdist.training import run as run_lib

EXAMPLES, BATCH, STEPS, STARTS = 50, 8, 14, (9,)
SEED = 5
SPOILED = 37
# How many examples were read and prepared.
COUNTS = {"read": 0, "prepared": 0}
CASES = {
    "stream": {},
    "fixed": {"shards": "fixed"},
    "contiguous": {"shards": "contiguous"},
    "textbook": {"pipeline": "textbook"},
}


def count(what: str, ids: tf.Tensor) -> tf.Tensor:
    """Returns `ids`, and counts them when they are computed."""

    def add(values):
        COUNTS[what] += values.size
        return values

    counted = tf.numpy_function(add, [ids], tf.int64)
    return tf.ensure_shape(counted, ids.shape)


class Numbers:
    """Examples that are their own numbers."""

    def __init__(self, split: str):
        self.split = split

    def __len__(self) -> int:
        return EXAMPLES

    def read(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the examples `ids`."""
        return {"image": count("read", ids)}


def numbered(batch, seeds, *, training):
    """Returns the ids of the examples, and their seeds."""
    return {"id": count("prepared", batch["image"]), "seed": seeds[:, 1], "stream": seeds[:, 0]}


def spoiled(batch, seeds, *, training):
    """Makes a value of example `SPOILED` that is not finite."""
    bad = tf.equal(batch["image"], SPOILED)[:, tf.newaxis]
    return {"pair": tf.where(bad, tf.constant([0.0, np.nan]), 0.0)}


def take(cluster, iterator, steps: int) -> dict[str, np.ndarray]:
    """The next steps of this worker: name -> [steps, examples]."""
    taken = []
    for _ in range(steps):
        local = cluster.strategy.experimental_local_results(next(iterator))
        taken.append({name: np.concatenate([part[name].numpy() for part in local]) for name in local[0]})
    return {name: np.stack([step[name] for step in taken]) for name in taken[0]}


def measure(cluster, options: dict) -> dict[str, np.ndarray]:
    """What one pipeline gives this worker from the start, and from later steps."""
    data = c.Data(**{"source": {"target": "pipeline_probe:Numbers"}, "batch_size": BATCH} | options)
    config = c.Config(model={"target": "lab:linear"}, data=data, train=c.Train(steps=STEPS), seed=SEED)
    train, test = (inputs_lib.open_source(config, split) for split in ("train", "test"))
    inputs = pipelines.Inputs(
        make_feed=pipelines.make_feed,
        prepare=numbered,
        prepare_all=numbered,
        objective=lambda *args, **keywords: {},
        adapt=None,
        train_source=train,
        evaluation_source=test,
    )
    sizes, shard = inputs_lib.make_sizes(config, inputs, cluster.num_replicas), run_lib.replica_shard(cluster)
    made = inputs.make_feed(config, inputs, sizes, shard, cluster)
    COUNTS.update(dict.fromkeys(COUNTS, 0))
    found = take(cluster, made.open_training(0, STEPS), STEPS)
    found |= {what: np.array(number) for what, number in COUNTS.items()}
    for start in STARTS:
        later = take(cluster, made.open_training(start, STEPS), STEPS - start)
        found |= {f"{name} from {start}": values for name, values in later.items()}
    dataset, steps = made.evaluation()
    iterator = cluster.distribute(dataset)
    kept = []
    for _ in range(steps):
        batches, masks = (cluster.strategy.experimental_local_results(part) for part in next(iterator))
        for batch, mask in zip(batches, masks, strict=True):
            kept += batch["id"].numpy()[mask.numpy()].tolist()
    inputs = dataclasses.replace(inputs, prepare=spoiled)
    searched = inputs.make_feed(config, inputs, sizes, shard, cluster).first_nonfinite
    nonfinite = [searched(first, STEPS) or (0, "") for first in (1, STARTS[0] + 1)]
    return found | {"evaluated": np.array(kept), "nonfinite": np.array(nonfinite, str)}


def run(cases: list[str]) -> dict[str, np.ndarray]:
    """What the pipelines of `cases` give this worker."""
    cluster = strategy.connect(c.ClusterOptions(logical_devices=2, connect_seconds=240.0))
    return {f"{case}/{key}": value for case in cases for key, value in measure(cluster, CASES[case]).items()}
