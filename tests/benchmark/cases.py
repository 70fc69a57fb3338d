"""The jobs of participants, by kind: functions that run a number of steps and wait for their end."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from tests.benchmark import baselines, input_pipelines, keras_baseline
from tests.benchmark.baselines import Runner
from tests.benchmark.workloads import of_job
from tfdist import config as config_lib
from tfdist.cluster import strategy
from tfdist.cluster.cluster import Cluster
from tfdist.training import execution, setup
from tfdist.training.step.updates import all_reduce as all_reduce_lib

Job = dict[str, Any]
# Tensors of an all-reduce of 1 MB or more: about as many as ResNet50V2 has, all of one size.
_TENSORS = 100


def _config(job: Job, folder: Path) -> config_lib.Config:
    return of_job(job).config(folder, job["workers"], job["overrides"])


def floor(job: Job, folder: Path, *, fused: bool) -> dict[str, Runner]:
    """See `baselines.floor`."""
    return {"step": baselines.floor(of_job(job), _config(job, folder), fused=fused)}


def textbook(job: Job, folder: Path) -> dict[str, Runner]:
    """See `baselines.textbook`."""
    config = _config(job, folder)
    return {"step": baselines.textbook(of_job(job), config, strategy.connect(config.cluster))}


def fit(job: Job, folder: Path) -> dict[str, Runner]:
    """See `keras_baseline.fit`."""
    config = _config(job, folder)
    return {"step": keras_baseline.fit(of_job(job), config, steps_per_execution=job["stride"], xla=job["xla"])}


def tfdist(job: Job, folder: Path) -> dict[str, Runner]:
    """tfdist's steps, input included, as `training.loop.train_loop` runs them."""
    run = setup.build_run(_config(job, folder), folder / "run")
    runner = execution.make_train_runner(run)
    batches = run.feed.open_training(0, run.total_steps)

    def steps(count: int) -> None:
        while count:
            count -= runner.execute(batches, count).steps

    return {"step": steps}


def all_reduce(job: Job, folder: Path) -> dict[str, Runner]:
    """The all-reduce of a step, for each size of `job["megabytes"]`."""
    del folder
    communication = config_lib.Communication(**job["communication"])
    cluster = strategy.connect(strategy.plan(communication=communication))
    options = all_reduce_lib.with_pack_size(communication, cluster.implementation)
    return {str(size): _all_reduce(cluster, options, size) for size in job["megabytes"]}


def _all_reduce(cluster: Cluster, options: config_lib.Communication, megabytes: float) -> Runner:
    tensors = _TENSORS if megabytes >= 1 else 1
    with cluster.scope():
        variables = [tf.Variable(tf.ones([max(1, round(megabytes * 250_000 / tensors))])) for _ in range(tensors)]

    @tf.function
    def many(count: tf.Tensor) -> tf.Tensor:
        first = tf.zeros([])
        for _ in tf.range(count):
            first = cluster.strategy.run(_sum_of, args=(variables, first, options))
        return first

    def run(count: int) -> None:
        total = cluster.strategy.experimental_local_results(many(tf.constant(count)))[0].numpy()
        assert total == cluster.num_replicas, total

    return run


def _changing(tensor: tf.Variable, before: tf.Tensor) -> tf.Tensor:
    """Returns `tensor`, float32 [n], as a result of `before`, float32 [], which a loop changes.

    TensorFlow would move a sum of what does not change out of the loop. The computed shape costs no time.
    """
    shape = [tensor.shape[0] + tf.cast(before > 1e30, tf.int32)]
    return tf.ensure_shape(tf.reshape(tensor, shape), tensor.shape)


def _sum_of(variables: list[tf.Variable], before: tf.Tensor, options: config_lib.Communication) -> tf.Tensor:
    sums = all_reduce_lib.sum_over_replicas([_changing(one, before) for one in variables], options)
    # All sums are used: TensorFlow would leave out the others.
    return tf.add_n([total[0] for total in sums]) / len(sums)


KINDS: dict[str, Callable[[Job, Path], dict[str, Runner]]] = {
    "floor": functools.partial(floor, fused=False),
    "looped_floor": functools.partial(floor, fused=True),
    "textbook": textbook,
    "keras_fit": fit,
    "tfdist": tfdist,
    "all_reduce": all_reduce,
    "input": input_pipelines.tfdist,
    "classic_input": input_pipelines.classic,
}
