"""Measures what virtual replicas cost: processor time of a step, beside a usual step with one thread in an op.

usage: python docs/same_bits.py [--networks=digits,mnist,resnet20,resnet50v2,transformer] [--rounds=5]

One replica computes all: a usual step, a step with one virtual replica (N = V: only the sums differ), and with four
(N < V: shards one after another). The rounds alternate; the smallest time of each is compared, because other programs
only add to it. In brackets: the medians.
"""

import argparse
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from tfdist import config as c
from tfdist.cluster import strategy
from tfdist.cluster.cluster import Cluster
from tfdist.configs import char_gpt
from tfdist.training import opening, setup

# Name -> model, shape of the images, global batch.
NETWORKS = {
    "digits": ({"target": "tfdist.zoo.models:small_cnn"}, (8, 8, 1), 64),
    "mnist": ({"target": "tfdist.zoo.models:mnist_cnn"}, (28, 28, 1), 64),
    "resnet20": ({"target": "tfdist.zoo.models:cifar_resnet", "depth": 20}, (32, 32, 3), 64),
    "resnet50v2": ({"target": "tfdist.zoo.models:application", "name": "ResNet50V2"}, (32, 32, 3), 64),
}
TRANSFORMER = "transformer"
# Seconds that the steps of one round take, about.
_SECONDS = 2.0


def config(name: str, virtual_replicas: int | None) -> c.Config:
    """Returns the config of a run of a network, which reports and saves nothing."""
    train = c.Train(steps=10_000, virtual_replicas=virtual_replicas)
    if name == TRANSFORMER:
        config = dataclasses.replace(char_gpt.get_config(), callbacks=[], train=train)
        config.data.batch_size, config.data.evaluation_split = 64, None
        return config
    model, shape, batch = NETWORKS[name]
    return c.Config(
        model=model | {"num_classes": 10, "input_shape": shape},
        data=c.Data(
            source={"target": "tfdist.zoo.sources:synthetic", "shape": shape, "num_examples": 50_000},
            prepare={"target": "tfdist.zoo.prepare:image"},
            batch_size=batch,
            evaluation_split=None,
        ),
        train=train,
    )


def make_step(name: str, virtual_replicas: int | None, cluster: Cluster) -> Callable[[int], float]:
    """Returns a function that makes some steps and returns the processor seconds of one."""
    run = setup.build_run(config(name, virtual_replicas), Path(tempfile.mkdtemp()), cluster)
    tools = opening.make_silent_services(run)
    batches = run.feed.open_training(0, run.total_steps)
    tools.train_runner.execute(batches, 1)  # Compiles.

    def steps(count: int) -> float:
        tools.train_runner.length.steps = count
        started = time.process_time()
        tools.train_runner.execute(batches, count)
        return (time.process_time() - started) / count

    return steps


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--networks", default=[*NETWORKS, TRANSFORMER], type=lambda text: text.split(","))
    parser.add_argument("--rounds", default=5, type=int)
    flags = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    cluster = strategy.connect(c.ClusterOptions(gpus=0))
    print("| network | usual step | N = V | N = V / 4 |\n| --- | --- | --- | --- |", flush=True)
    for name in flags.networks:
        kinds = {kind: make_step(name, kind, cluster) for kind in (None, 1, 4)}
        count = max(2, int(_SECONDS / kinds[None](2)))
        times = {kind: [] for kind in kinds}
        for _ in range(flags.rounds):
            for kind, steps in kinds.items():
                times[kind].append(steps(count))
        usual, *others = ((min(each), statistics.median(each)) for each in times.values())
        more = [
            [f"{100 * (ours / theirs - 1):+.1f} %" for ours, theirs in zip(one, usual, strict=True)] for one in others
        ]
        print(
            f"| {name} | {1e3 * usual[0]:.1f} ms | " + " | ".join(f"{low} ({half})" for low, half in more),
            "|",
            flush=True,
        )


if __name__ == "__main__":
    main()
