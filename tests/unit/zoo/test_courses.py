"""The courses' networks and recipes against the code that their pages print, run by Keras' own `fit`."""

import importlib
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf
import topologies
from parameters import slow, slow_except

from tfdist.configs.networks import cifar, courses
from tfdist.data import order
from tfdist.training import loop, setup
from tfdist.zoo import objectives, sources


def page_mlp():
    layers = [keras.layers.Flatten(), keras.layers.Dense(128, activation="relu")]
    return keras.Sequential([keras.Input((28, 28, 1)), *layers, keras.layers.Dense(10, activation="softmax")])


def page_mnist():
    model = keras.Sequential([keras.Input((28, 28, 1))])
    for filters in (32, 64):
        model.add(keras.layers.Conv2D(filters, (5, 5), activation="relu"))
        model.add(keras.layers.MaxPooling2D((2, 2)))
    model.add(keras.layers.Flatten())
    model.add(keras.layers.Dense(10, activation="softmax"))
    return model


# Config, what of it is smaller here, images, the page's model, optimizer and loss, steps, tolerance. Prepared images
# are float32 and differ by 1e-7: that changes the gradients of the first layer of a ResNet by 1 %.
RECIPES = [
    (
        *("sctrain_mlp", {}, (28, 28, 1), page_mlp),
        *(lambda: keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy", 3, 1e-4),
    ),
    slow("bsc_mnist", {}, (28, 28, 1), page_mnist, lambda: "sgd", "categorical_crossentropy", 3, 1e-4),
    slow(
        *("bsc_resnet50v2", {"input_shape": (32, 32, 3)}, (16, 16, 3)),
        lambda: keras.applications.ResNet50V2(weights=None, input_shape=(32, 32, 3), classes=10),
        *(lambda: keras.optimizers.SGD(0.01), keras.losses.SparseCategoricalCrossentropy(), 1, 0.1),
    ),
]


@pytest.mark.workers
@pytest.mark.parametrize(("name", "smaller", "shape", "page_model", "optimizer", "loss", "steps", "bound"), RECIPES)
def test_a_recipe_makes_the_steps_of_its_page(
    tmp_path, name, smaller, shape, page_model, optimizer, loss, steps, bound
):
    keras.utils.clear_session()
    config = importlib.import_module(f"configs.courses.{name}").get_config()
    batch = config.data.batch_size = min(config.data.batch_size, 16)
    config.learning_rate.reference_batch_size = batch
    config.data.source = {"target": "tfdist.zoo.sources:synthetic", "shape": shape, "num_examples": steps * batch}
    config.data.evaluation_split = None
    config.data.pipeline = "stream"  # The order of `order.permute`; tests/workers/test_pipelines.py compares both.
    config.checkpoint.best_metric = None
    config.train.epochs, config.train.steps = None, steps
    config.report.tensorboard, config.report.every.epochs = False, 1
    config.model |= smaller
    size = smaller.get("input_shape", shape)[:2]
    if smaller:
        config.data.prepare["resize"] = size
    run = setup.build_run(config, tmp_path)
    model, page = run.context.model, page_model()
    initial = model.get_weights()
    assert loop.train(run) == 0

    ids = tf.range(steps * batch, dtype=tf.int64)
    if config.data.shuffle:
        ids = order.permute(ids, tf.constant(0, tf.int64), seed=config.seed, num_examples=steps * batch)
    data = sources.synthetic("train", shape=shape, num_examples=steps * batch).read(ids)
    images = tf.image.resize(data["image"], size) if smaller else data["image"]
    images, labels = tf.cast(images, tf.float32).numpy() / 255, data["label"].numpy()
    page.set_weights(initial)
    page.compile(optimizer=optimizer(), loss=loss, metrics=["accuracy"])
    if loss == "categorical_crossentropy":
        labels = keras.utils.to_categorical(labels, page.output_shape[-1])
    history = page.fit(images, labels, batch_size=batch, epochs=1, shuffle=False, verbose=0).history
    final = topologies.records(tmp_path, "train")[-1]
    np.testing.assert_allclose(final["loss"], history["loss"][0], rtol=1e-5)
    np.testing.assert_allclose(final["accuracy"], history["accuracy"][0], rtol=1e-5)
    for ours, theirs, start in zip(model.get_weights(), page.get_weights(), initial, strict=True):
        assert np.linalg.norm(ours - theirs) <= bound * np.linalg.norm(theirs - start) + 1e-6


def test_the_networks_have_the_parameters_that_the_pages_count():
    assert courses.mlp().count_params() == 101_770
    assert courses.mnist_cnn().count_params() == 62_346
    assert courses.alexnet(10).count_params() == 70_086_218
    assert courses.alexnet(10, (224, 224, 3), "functional").count_params() == 56_454_730


PROBABILITIES = {"from_logits": False}
LOSSES = [
    ("binary_crossentropy", PROBABILITIES, (1,), "binary", keras.losses.BinaryCrossentropy(), "binary_accuracy"),
    ("BinaryCrossentropy", {"from_logits": True}, (1,), "binary", keras.losses.BinaryCrossentropy(True), None),
    (
        *("sparse_categorical_crossentropy", PROBABILITIES, (4,), "class"),
        *(keras.losses.SparseCategoricalCrossentropy(), "accuracy"),
    ),
    ("categorical_crossentropy", PROBABILITIES, (4,), "one_hot", keras.losses.CategoricalCrossentropy(), "accuracy"),
    ("huber", {"delta": 0.3}, (5, 2), "numbers", keras.losses.Huber(0.3), "mean_absolute_error"),
    ("kld", {}, (4,), "one_hot", keras.losses.KLDivergence(), None),
]


@pytest.mark.parametrize(
    ("name", "arguments", "shape", "kind", "loss", "metric"), slow_except(LOSSES, [LOSSES[2], LOSSES[4]])
)
def test_a_keras_loss_has_the_mean_that_keras_computes(name, arguments, shape, kind, loss, metric):
    random = np.random.default_rng(1)
    outputs = random.random((6, *shape), np.float32)
    if kind in ("class", "one_hot"):
        outputs /= outputs.sum(-1, keepdims=True)
    labels = {
        "binary": random.integers(0, 2, 6),
        "class": random.integers(0, 4, 6),
        "one_hot": np.eye(4, dtype=np.float32)[random.integers(0, 4, 6)],
        "numbers": random.random((6, *shape), np.float32),
    }[kind]
    metrics = [metric] if metric else []
    batch = {"image": tf.constant(outputs), "label": tf.constant(labels)}
    values = objectives.keras_loss(
        lambda inputs, training: inputs, batch, training=True, loss=name, arguments=arguments, metrics=metrics
    )
    assert list(values) == ["loss", *metrics] and all(value.shape == (6,) for value in values.values())
    np.testing.assert_allclose(np.mean(values["loss"]), loss(labels, outputs), rtol=1e-6)
    if metric:
        inputs = keras.Input(shape)
        model = keras.Model(inputs, keras.layers.Identity()(inputs))
        model.compile(loss=loss, metrics=[metric])
        expected = model.evaluate(outputs, labels, verbose=0, return_dict=True)[metric]
        np.testing.assert_allclose(np.mean(values[metric]), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss": "binary_crossentropie"}, "'binary_crossentropie'.* 'BinaryCrossentropy'"),
        ({"loss": "xyz"}, "'xyz'.* BinaryCrossentropy"),
        ({"loss": "huber", "arguments": {"dleta": 1}}, r"config.objective.arguments=\{'dleta': 1\}"),
        ({"loss": "mean_squared_error", "metrics": ["AUC"]}, "'AUC'.* accuracy"),
        ({"loss": "mean_squared_error", "labels": "y"}, r"batch\['y'\].* image, label"),
        ({"loss": "dice"}, r"\(\) .*tfdist\.fit"),
    ],
)
def test_unknown_losses_are_refused(changes, words):
    batch = {"image": tf.ones([4, 3]), "label": tf.ones([4, 3])}
    with pytest.raises(ValueError, match=words):
        objectives.keras_loss(lambda inputs, training: inputs, batch, training=True, **changes)


def write_cifar(folder, layout):
    """Writes a tiny data set in a layout of the authors; returns the images and labels of both splits."""
    random, fine = np.random.default_rng(0), "100" in layout
    (folder / layout).mkdir()
    files = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
    expected = {}
    for split, names in {"train": ["train"], "test": ["test"]}.items() if fine else files.items():
        pixels = random.integers(0, 256, (len(names), 4, 3072), np.uint8)
        labels = random.integers(0, 100 if fine else 10, (len(names), 4))
        for name, data, classes in zip(names, pixels, labels, strict=True):
            content = {b"data": data, b"fine_labels" if fine else b"labels": classes.tolist(), b"batch_label": b"x"}
            (folder / layout / name).write_bytes(pickle.dumps(content, protocol=2))
        expected[split] = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels.ravel()
    return expected


@pytest.mark.parametrize("layout", ["cifar-10-batches-py", "cifar-100-python"])
def test_cifar_is_read_from_each_layout_of_its_authors(tmp_path, layout):
    expected = write_cifar(tmp_path, layout)
    for path in (tmp_path, tmp_path / layout):
        for split, (images, labels) in expected.items():
            source = cifar.cifar(split, path=str(path))
            data = source.read(tf.range(len(source), dtype=tf.int64))
            np.testing.assert_array_equal(data["image"], images)
            np.testing.assert_array_equal(data["label"], labels)
            assert source.num_classes == (100 if "100" in layout else 10)


def test_cifar_refuses_pickles_of_anything_else_without_running_them(tmp_path):
    write_cifar(tmp_path, "cifar-10-batches-py")
    folder = tmp_path / "cifar-10-batches-py"

    class Harmful:
        def __reduce__(self):
            return (open, (str(tmp_path / "written"), "w"))

    (folder / "test_batch").write_bytes(pickle.dumps({b"data": Harmful(), b"labels": [1]}))
    with pytest.raises(ValueError, match=r"test_batch.* _?io\.open"):
        cifar.cifar("test", path=str(folder))
    assert not (tmp_path / "written").exists()
    (folder / "data_batch_1").write_bytes((folder / "data_batch_1").read_bytes()[:-2000])
    with pytest.raises(ValueError, match=r"data_batch_1' is damaged"):
        cifar.cifar("train", path=str(folder))
    with pytest.raises(FileNotFoundError, match=r"other.* cifar-10-batches-py"):
        cifar.cifar("train", path=str(tmp_path / "other"))
