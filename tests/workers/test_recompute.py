"""Activations are computed again in the backward pass, and no number changes: `train.recompute`, `keras.RematScope`."""

import dataclasses
import itertools
import re
import runpy

import keras
import lab
import numpy as np
import on_workers
import processes
import pytest
import tensorflow as tf
import topologies
from launching import REPOSITORY
from parameters import slow_except

import tfdist
from tfdist import config as c
from tfdist.training import loop, setup
from tfdist.training.step.layers import remat_scopes
from tfdist.training.step.random_numbers import seed_generators

pytestmark = pytest.mark.usefixtures("own_process", "graph_optimizers")

CONFIG = "tests/configs/blocks.py"
MODES = ("full", "list_of_layers")
CASES = {
    "plain": {},
    "in micro-batches": {"micro_batches": 2},
    "bfloat16": {"precision": "bfloat16"},
    "float16 with its loss scale": {"precision": "float16"},
    "clipped": {"clip_norm": 0.5},
}


@pytest.fixture(autouse=True)
def float32():
    """The types of new layers; a run in another precision leaves its own."""
    keras.config.set_dtype_policy("float32")


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


def operations(model, shape):
    """The types of the operations of a training step of `model` on images of `shape`."""

    @tf.function
    def gradients(images):
        seed_generators.begin_forward_pass(0)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(images, training=True))
        return tape.gradient(loss, model.trainable_variables)

    graph = gradients.get_concrete_function(tf.TensorSpec(shape)).graph
    return [op.type for op in graph.get_operations()]


@pytest.mark.parametrize(
    ("case", "way"), slow_except(itertools.product(CASES, ("field", "scope")), [("in micro-batches", "field")])
)
def test_recomputation_changes_no_bit(tmp_path, case, way, capsys):
    made = config(**CASES[case])
    kept = run(tmp_path / "kept", made)
    if way == "field":
        made.train.recompute = ["block_*"]
    else:
        made.model = {"target": f"{__name__}:in_scope"}
    found = run(tmp_path / "recomputed", made)
    assert any("moving_variance" in name for name in found)
    topologies.assert_same_bits(found, kept)
    said = re.findall(r"^recompute .*", capsys.readouterr().out, re.M)
    assert said == ["recompute  the layers block_*: 2 in all"] * (way == "field")


class Exact(keras.layers.Layer):
    """Two dense layers, the first one in float32 whatever the precision of the model."""

    def __init__(self, **keywords):
        super().__init__(**keywords)
        self.first, self.second = keras.layers.Dense(8, dtype="float32"), keras.layers.Dense(8)

    def call(self, x, training=None):
        return self.second(keras.ops.tanh(self.first(x)))


def exact(num_classes=10):
    inputs = keras.Input((8, 8, 1))
    x = Exact(name="block_0")(keras.layers.Flatten()(inputs))
    return keras.Model(inputs, keras.layers.Dense(num_classes)(x))


@pytest.mark.slow
def test_layers_with_a_type_of_their_own_keep_their_bits(tmp_path):
    made = config(precision="bfloat16")
    made.model = {"target": f"{__name__}:exact"}
    kept = run(tmp_path / "kept", made)
    made.train.recompute = ["block_0"]
    topologies.assert_same_bits(run(tmp_path / "recomputed", made), kept)


def test_a_block_keeps_its_inputs_only_and_computes_its_layers_twice(tmp_path):
    made = setup.build_run(config(recompute=["block_0"]), tmp_path)
    # The activation of block_0, twice, and that of block_1.
    assert operations(made.context.model, [4, 8, 8, 1]).count("Erfc") == 3


def in_scope(mode="full", layer_names=None, num_classes=10):
    """The model of the config, made in a `keras.RematScope`."""
    with keras.RematScope(mode, layer_names=layer_names):
        return lab.blocks(num_classes)


def test_a_block_of_a_scope_keeps_its_inputs_only(tmp_path):
    made = config()
    made.model = {"target": f"{__name__}:in_scope", "mode": "list_of_layers", "layer_names": ["block_0"]}
    assert operations(setup.build_run(made, tmp_path).context.model, [4, 8, 8, 1]).count("Erfc") == 3


@pytest.mark.slow
def test_two_workers_and_two_devices_make_the_bits_of_runs_without(tmp_path):
    for name, sizes in (("devices", {"devices": 2}), ("workers", {"workers": 2})):
        for words in ("[]", "['block_*']"):
            workdir = tmp_path / f"{name}{words[1:2]}"
            topologies.train(workdir, f"--config.train.recompute={words}", config=CONFIG, **sizes)
        topologies.assert_same_bits(*(topologies.arrays(tmp_path / f"{name}{end}", 5) for end in ("]", "'")))


class OwnStep(keras.Model):
    """Computes and applies its gradients itself."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def train_in_scopes():
    """Trains by `tfdist.fit` on two devices, in float64, with and without a step of the model's own.

    Returns:
        (class of the model, mode of the scope) -> the weights and the predictions.
    """
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    cluster, found = tfdist.connect(c.ClusterOptions(logical_devices=2)), {}
    draws = np.random.default_rng(0)
    x, y = draws.integers(0, 20, (32, 6)), draws.integers(0, 3, 32)
    for kind, mode in itertools.product((keras.Model, OwnStep), (None, *MODES)):
        keras.utils.clear_session()
        keras.utils.set_random_seed(0)
        with cluster.scope(), keras.RematScope(mode, layer_names=["block_0", "block_1"]):
            inputs = keras.Input((6,))
            z = keras.layers.LSTM(8)(keras.layers.Embedding(20, 8, mask_zero=True)(inputs))
            for number in range(2):
                z = lab.Block(8, name=f"block_{number}")(z)
            model = kind(inputs, keras.layers.Dense(3)(keras.layers.Concatenate()([z, 2 * z])))
            model.compile(keras.optimizers.SGD(0.5), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        tfdist.fit(cluster, model, x, y, batch_size=16, epochs=2, verbose=0, shuffle=False)
        found[kind.__name__, mode] = [*model.get_weights(), tfdist.predict(cluster, model, x, verbose=0)]
    return found


@pytest.mark.slow
def test_what_a_fit_recomputes_by_keras_has_its_numbers():
    (found,) = on_workers.call(train_in_scopes)
    for (kind, mode), arrays in found.items():
        for one, kept in zip(arrays, found[kind, None], strict=True):
            np.testing.assert_allclose(one, kept, rtol=1e-11, atol=1e-13, err_msg=f"{kind}, {mode}")


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
        remat_scopes.put_into_scope(model, made)


def test_layers_with_keras_masks_in_them_are_refused():
    table = keras.layers.Embedding(9, 8, mask_zero=True, name="table")
    block = keras.Sequential([keras.Input((6,)), table, keras.layers.LSTM(8)], name="block_0")
    model = keras.Sequential([keras.Input((6,)), block])
    with pytest.raises(ValueError, match=r"for 'block_0': its layer 'table' makes a Keras mask"):
        remat_scopes.put_into_scope(model, config(recompute=["block_0"]))


@pytest.mark.parametrize(("mode", "refused"), [("larger_than", "mode"), ("activations", "mode"), (None, "keras.remat")])
def test_other_modes_and_functions_are_refused(mode, refused, tmp_path):
    made = setup.build_run(config(), tmp_path)  # In a run only.
    with keras.RematScope(mode):
        layer = keras.layers.Dense(4)
    layer.build((None, 8))
    compute = layer if mode else lambda x, training: keras.remat(layer)(x)

    @tf.function
    def forward(x):
        seed_generators.begin_forward_pass(0)
        return compute(x, training=True)

    with pytest.raises(ValueError, match=refused):
        forward(tf.zeros([2, 8]))
    assert made.context.model is not None


def test_statistics_of_several_replicas_are_refused(tmp_path):
    """On two devices; on one nothing is sent."""
    model = {"target": "tests.support.lab:nested", "num_classes": 10, "normalization": "sync_batch"}
    words = (f"--config.model={model}", "--config.train.recompute=['small_cnn']")
    command = topologies.command(tmp_path, *words, "--config.cluster.logical_devices=2", config=CONFIG)
    (code,), (output,) = processes.run([command], topologies.environments(1), timeout=300)
    assert code == 1 and "'small_cnn' normalises over the batches of several replicas" in output, output


class TwoHeads(keras.Model):
    """A model with a head that the objective does not use."""

    def __init__(self):
        super().__init__()
        self.flatten, self.used, self.unused = keras.layers.Flatten(), keras.layers.Dense(10), keras.layers.Dense(4)
        self.unused.build((None, 64))

    def call(self, x):
        return self.used(self.flatten(x))


@pytest.mark.slow
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_weight_without_a_gradient_does_not_decay(tmp_path, micro_batches):
    made = config(micro_batches=micro_batches)
    made.model = {"target": f"{__name__}:TwoHeads"}
    made.optimizer = {"target": "keras.optimizers:AdamW", "learning_rate": 0.1, "weight_decay": 0.5}
    keras.utils.clear_session()
    started = setup.build_run(made, tmp_path)
    before = started.context.model.unused.kernel.numpy()
    assert loop.train(started) == 0
    assert (started.context.model.unused.kernel.numpy() == before).all()
