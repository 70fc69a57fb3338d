"""`config.train.recompute`: activations are computed again in the backward pass, and no bit changes."""

import dataclasses
import re
import runpy

import keras
import pytest
import tensorflow as tf
import topologies
from launching import REPOSITORY
from parameters import slow_except

from tfdist import config as c
from tfdist.training import loop, setup
from tfdist.training.step.variants import recompute

pytestmark = pytest.mark.usefixtures("own_process", "graph_optimizers")

CONFIG = "tests/configs/blocks.py"
CASES = {
    "plain": {},
    "in micro-batches": {"micro_batches": 2},
    "bfloat16": {"precision": "bfloat16"},
    "float16 with its loss scale": {"precision": "float16"},
    "clipped": {"clip_norm": 0.5},
}


def config(**train) -> c.Config:
    """The config of these tests; `train` replaces fields of its section `train`."""
    made = runpy.run_path(str(REPOSITORY / CONFIG))["get_config"]()
    made.train = dataclasses.replace(made.train, **train)
    return made


def run(workdir, made):
    """Trains in this process; returns every array of the last checkpoint."""
    keras.utils.clear_session()
    assert loop.train(setup.build_run(made, workdir)) == 0
    return topologies.arrays(workdir, made.train.steps)


@pytest.mark.parametrize("case", slow_except(list(CASES), ["in micro-batches"]))
def test_recomputation_changes_no_bit(tmp_path, case):
    kept = run(tmp_path / "kept", config(**CASES[case]))
    found = run(tmp_path / "recomputed", config(recompute=["block_*"], **CASES[case]))
    assert found.keys() == kept.keys() and any("moving_variance" in name for name in found)
    for name, array in kept.items():
        assert (found[name] == array).all(), name


def test_a_block_keeps_its_inputs_only_and_computes_its_layers_twice(tmp_path):
    made = setup.build_run(config(recompute=["block_0"]), tmp_path)
    model = made.context.model

    @tf.function
    def gradients(images):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(images, training=True))
        return tape.gradient(loss, model.trainable_variables)

    graph = gradients.get_concrete_function(tf.TensorSpec([4, 8, 8, 1])).graph
    # The activation of block_0, twice, and that of block_1.
    assert [op.type for op in graph.get_operations()].count("Erfc") == 3


@pytest.mark.slow
def test_two_workers_and_two_devices_make_the_bits_of_runs_without(tmp_path):
    for name, sizes in (("devices", {"devices": 2}), ("workers", {"workers": 2})):
        for words in ("[]", "['block_*']"):
            workdir = tmp_path / f"{name}{words[1:2]}"
            topologies.train(workdir, f"--config.train.recompute={words}", config=CONFIG, **sizes)
        kept, found = (topologies.arrays(tmp_path / f"{name}{end}", 5) for end in ("]", "'"))
        assert all((found[key] == array).all() for key, array in kept.items())


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["blok_0"], "no layer has the name 'blok_0'. Did you mean 'block_0'?"),
        (["held"], "call() of the layer 'held' has no argument `training`"),
        (["penalised"], "the layer 'penalised' has an activity_regularizer"),
    ],
)
def test_layers_that_cannot_be_recomputed_are_refused(names, message):
    class Held(keras.layers.Layer):
        def __init__(self):
            super().__init__(name="held")
            self.dropout = keras.layers.Dropout(0.5)

        def call(self, x):
            return self.dropout(x)

    inputs = keras.Input((4,))
    outputs = keras.layers.Dense(4, activity_regularizer="l2", name="penalised")(Held()(inputs))
    model = keras.Model(inputs, keras.layers.Dense(4, name="block_0")(outputs))
    made = config(recompute=names)
    with pytest.raises(ValueError, match=re.escape(message)):
        recompute.install(model, made)
