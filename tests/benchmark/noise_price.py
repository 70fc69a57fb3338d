"""Measures what `config.report.noise_scale` costs: `python -m tests.benchmark.noise_price --devices=2`.

Prints the processor time of a step without and with it for four networks: medians of turns that alternate in one
process with several logical devices, or one with several micro-batches.
"""

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from absl import app, flags

from tfdist import config as c
from tfdist.tools import tables

NETWORKS = {
    "small_cnn, 8x8": ({"target": "tfdist.zoo.models:small_cnn"}, (8, 8)),
    "mnist_cnn, 28x28": ({"target": "tfdist.zoo.models:mnist_cnn"}, (28, 28)),
    "perceptron, 2 x 1024": ({"target": "tfdist.zoo.models:mlp", "hidden": (1024, 1024)}, (28, 28)),
    "ResNet-20, 32x32": ({"target": "tfdist.zoo.models:cifar_resnet", "input_shape": (32, 32, 1)}, (32, 32)),
}


def turns(run: object, steps: int) -> Callable[[], float]:
    """Returns a function that makes `steps` steps of a run, and returns the processor time of one in milliseconds."""
    import tensorflow as tf

    from tfdist.training import execution

    run_steps = execution.training_steps(run).run_steps
    iterator = run.feed.open_training(0, 10**6)

    def turn() -> float:
        started = time.process_time()
        vector, _ = run_steps(iterator, tf.constant(steps, tf.int32), tf.zeros([], tf.float64))
        vector.numpy()
        return (time.process_time() - started) / steps * 1000

    return turn


def main(argv: list[str]) -> None:
    """Prints the table."""
    del argv
    from tfdist.training import setup
    from tfdist.training.step.variants import noise_scale

    values, rows, cluster = flags.FLAGS, [], None
    for name, (model, size) in NETWORKS.items():
        config = c.Config(
            model=model,
            data=c.Data(
                prepare={"target": "tfdist.zoo.prepare:image", "scale": 1 / 16, "resize": size},
                batch_size=values.batch_size,
            ),
            train=c.Train(steps=10**6, micro_batches=values.micro_batches),
            cluster=c.ClusterOptions(logical_devices=values.devices, connect_seconds=120.0),
        )
        plain = setup.build_run(config, Path(tempfile.mkdtemp()), cluster)
        cluster = plain.cluster
        config = dataclasses.replace(config, report=dataclasses.replace(config.report, noise_scale=100))
        both = [plain, noise_scale.measure(dataclasses.replace(plain, config=config))]
        trial = turns(plain, 3)
        trial()
        steps = max(1, round(values.milliseconds / trial()))
        functions = [turns(run, steps) for run in both]
        for function in functions:
            function()
        found = [[function() for function in functions] for _ in range(values.rounds)]
        without, with_it = (statistics.median(column) for column in zip(*found, strict=True))
        least = [min(column) for column in zip(*found, strict=True)]
        ratio = statistics.median(two / one for one, two in found)
        rows.append((name, plain.context.model.count_params(), without, with_it, ratio, least[1] / least[0]))
    if cluster.is_chief:
        header = ("network", "parameters", "ms without", "ms with", "ratio, median", "of the least")
        print(f"{cluster.num_replicas} replicas, {values.micro_batches} micro-batches, batch {values.batch_size}")
        print(tables.text(header, rows))


if __name__ == "__main__":
    flags.DEFINE_integer("devices", 1, "Logical devices of each worker.")
    flags.DEFINE_integer("micro_batches", 1, "Micro-batches of each replica.")
    flags.DEFINE_integer("batch_size", 128, "Examples per step, over all replicas.")
    flags.DEFINE_integer("milliseconds", 1000, "Processor time of a turn.")
    flags.DEFINE_integer("rounds", 9, "Turns of each.")
    app.run(main)
