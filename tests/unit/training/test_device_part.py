"""config.data.finish: batches travel as bytes, and the run is the same to the bit."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist import config as c
from tfdist.cluster.cluster import Cluster
from tfdist.cluster.discovery.roster import Roster
from tfdist.data import inputs as inputs_lib
from tfdist.data.run_parts import on_gpu
from tfdist.training import execution, setup

NORMALISED = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}
AUGMENTED = {"pad": 2, "flip": True}
ADAPTED = []


def remember(model, read):
    """An `adapt` that notes what it reads."""
    ADAPTED.append(read(4)["image"])


@pytest.fixture(scope="module")
def cluster():
    strategy = tf.distribute.MirroredStrategy(["/CPU:0"])
    return Cluster(
        strategy=strategy, rank=0, num_workers=1, num_replicas=1, roster=Roster(), monitor=None, implementation="ring"
    )


def config_of(prepare, finish=None):
    """A config of three steps in two micro-batches."""
    return c.Config(
        model={"target": "tfdist.zoo.models:mlp", "num_classes": 10, "input_shape": (8, 8, 3), "hidden": (8,)},
        adapt={"target": "test_device_part:remember"},
        data=c.Data(
            source={"target": "tfdist.zoo.sources:synthetic", "shape": (8, 8, 3), "num_examples": 64},
            prepare=prepare,
            finish=finish,
            evaluation_split=None,
            batch_size=16,
        ),
        train=c.Train(steps=3, micro_batches=2),
    )


def trained(cluster, folder, prepare, finish):
    """The type of the batches, and the weights after the run."""
    keras.utils.clear_session()
    config = config_of(prepare, finish)
    run = setup.build_run(config, folder, cluster)
    data = run.feed.training(0, 3)
    runner = execution.training_steps(run)
    totals = runner(cluster.distribute(data), 3).totals
    return data.element_spec["image"].dtype, totals["loss"], [w.numpy() for w in run.context.model.weights]


@pytest.mark.workers
def test_bytes_to_the_device_give_the_same_bits(own_signals, cluster, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(__file__).rpartition("/")[0])
    image = {"target": "tfdist.zoo.prepare:image", **AUGMENTED, **NORMALISED}
    floats, loss, weights = trained(cluster, tmp_path, image, None)
    config = config_of(image | {"cutout": 0, "num_classes": 10})
    divided, inputs, lines = on_gpu.divide_preprocessing(config, inputs_lib.open_inputs(config))
    as_bytes, normalised = divided.data.prepare, divided.data.finish
    assert as_bytes == {"target": "tfdist.zoo.prepare:image_bytes", **AUGMENTED}
    assert normalised == {"target": "tfdist.zoo.prepare:normalised", **NORMALISED}
    assert len(inputs.train_source) == 64
    assert lines == ("copies     images to the GPU as uint8: they are normalised there",)
    small, same_loss, same_weights = trained(cluster, tmp_path, as_bytes, normalised)
    assert (floats, small) == (tf.float32, tf.uint8)
    assert loss == same_loss
    for one, other in zip(weights, same_weights, strict=True):
        np.testing.assert_array_equal(one, other)
    adapted = __import__("test_device_part").ADAPTED
    np.testing.assert_array_equal(*adapted)
    assert adapted[0].dtype == tf.float32


def test_a_wrong_finish_is_named_before_the_run_starts():
    config = c.Config(model={"target": "tfdist.zoo.models:mlp"}, train=c.Train(steps=1))
    config.data.finish = {"target": "tfdist.zoo.prepare:normalised", "skale": 1.0}
    with pytest.raises(ValueError, match=r"config\.data\.finish\.skale: .* Did you mean 'scale'\?"):
        inputs_lib.open_inputs(config)


@pytest.mark.parametrize(
    "config",
    [
        config_of({"target": "tfdist.zoo.prepare:image", "cutout": 4}),
        config_of({"target": "tfdist.zoo.prepare:image", "mixup": 0.2, "num_classes": 10}),
        config_of({"target": "tfdist.zoo.prepare:image"}, {"target": "tfdist.zoo.prepare:normalised"}),
        config_of({"target": "tfdist.zoo.prepare:identity"}),
    ],
)
def test_what_cannot_be_divided_stays_on_the_host(config, monkeypatch):
    monkeypatch.syspath_prepend(str(__file__).rpartition("/")[0])
    inputs = inputs_lib.open_inputs(config)
    assert on_gpu.divide_preprocessing(config, inputs) == (config, inputs, ())


def test_floats_are_normalised_on_the_host(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(__file__).rpartition("/")[0])
    np.savez(tmp_path / "floats.npz", x_train=np.ones([64, 8, 8, 3], np.float32), y_train=np.zeros([64], np.int64))
    config = config_of({"target": "tfdist.zoo.prepare:image"})
    config.data.source = {"target": "tfdist.zoo.sources:npz", "path": str(tmp_path / "floats.npz")}
    inputs = inputs_lib.open_inputs(config)
    assert on_gpu.divide_preprocessing(config, inputs) == (config, inputs, ())
