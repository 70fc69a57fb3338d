"""The graph of a step without the features that a field turns on is what it was before they existed, op for op."""

import functools
import hashlib
import importlib.metadata
import itertools
import runpy
import sys

import on_workers
import pytest
import tensorflow as tf

from tfdist.training import setup
from tfdist.training.step import multi_step

# The number of ops of an execution, and the hash of their types, function by function: those of commit d087032, before
# there were virtual replicas, and for each replica a cast, a product and a constant, because the step normalises the
# images since; and less a constant of each replica, its number, which only the gathering of rows of tables uses, and
# the product of the steps so far with the number of optimizer steps in each; and for each replica nine of the
# assertion in `tf.nn.compute_average_loss` about a constant, which TensorFlow removes when it optimizes the graph; and
# less the zero that the branches of a condition returned before they could return more (seven ops; commit 58956211).
# For the versions of TensorFlow and Keras with which they were recorded.
VERSIONS = {"tensorflow": "2.21", "keras": "3.15"}
RECORDED = "1887 0dda9dffd9874b5b"


def graph_of_a_step(workdir):
    """Returns what `RECORDED` has, of a process of its own."""
    config = runpy.run_path("tests/configs/same_run.py")["get_config"]()
    config.train.nonfinite, config.cluster.logical_devices = "skip", 2
    run = setup.build_run(config, workdir)
    run_steps = multi_step.make_multi_step_fn(run.context, functools.partial(run.train_step, run.context), trains=True)
    arguments = (run.feed.open_training(0, 20), tf.constant(2), tf.constant(0.0, tf.float64))
    graph = run_steps.get_concrete_function(*arguments).graph.as_graph_def()
    # In an order of their own: TensorFlow's is by numbers in their names, which count what was traced before.
    functions = sorted([node.op for node in one.node_def] for one in graph.library.function)
    ops = [*(node.op for node in graph.node), *itertools.chain(*functions)]
    assert "tfdist.training.step.variants.virtual_replicas" not in sys.modules
    return f"{len(ops)} {hashlib.sha256(' '.join(ops).encode()).hexdigest()[:16]}"


@pytest.mark.slow
def test_the_graph_of_a_step_has_not_changed(tmp_path):
    versions = {name: importlib.metadata.version(name) for name in VERSIONS}
    if any(not versions[name].startswith(f"{recorded}.") for name, recorded in VERSIONS.items()):
        pytest.skip(f"recorded with {VERSIONS}, and not with {versions}")
    assert on_workers.call(graph_of_a_step, tmp_path) == [RECORDED]
