"""The courses' networks and recipes against the code that their pages print, run by Keras' own `fit`."""

import gzip
import importlib
import json
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf
from parameters import slow_except

from tfdist.configs.networks import courses
from tfdist.data import order
from tfdist.training import loop, setup
from tfdist.zoo import objectives, sources


def page_mlp():
    return keras.Sequential(
        [
            keras.layers.Flatten(input_shape=(28, 28, 1)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def page_mnist():
    model = keras.Sequential()
    model.add(keras.layers.Conv2D(32, (5, 5), activation="relu", input_shape=(28, 28, 1)))
    model.add(keras.layers.MaxPooling2D((2, 2)))
    model.add(keras.layers.Conv2D(64, (5, 5), activation="relu"))
    model.add(keras.layers.MaxPooling2D((2, 2)))
    model.add(keras.layers.Flatten())
    model.add(keras.layers.Dense(10, activation="softmax"))
    return model


def page_alexnet(size, classes):
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Conv2D(64, (11, 11), strides=(4, 4), padding="valid", input_shape=(size, size, 3)),
            layers.ZeroPadding2D((2, 2)),
            layers.Activation("relu"),
            layers.MaxPooling2D((3, 3), strides=(2, 2)),
            layers.Conv2D(192, (5, 5), padding="valid"),
            layers.ZeroPadding2D((2, 2)),
            layers.Activation("relu"),
            layers.MaxPooling2D((3, 3), strides=(2, 2)),
            layers.Conv2D(384, (3, 3)),
            layers.ZeroPadding2D((1, 1)),
            layers.Activation("relu"),
            layers.Conv2D(256, (3, 3)),
            layers.ZeroPadding2D((1, 1)),
            layers.Activation("relu"),
            layers.MaxPooling2D((3, 3), strides=(2, 2)),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(4096),
            layers.Activation("relu"),
            layers.Dropout(0.5),
            layers.Dense(4096),
            layers.Activation("relu"),
            layers.Dense(classes),
            layers.Activation("softmax"),
        ]
    )


def page_resnet50v2():
    return keras.applications.ResNet50V2(
        include_top=True, weights=None, input_shape=(32, 32, 3), classes=10, classifier_activation="softmax"
    )


def page_resnet50():
    return keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3), classes=10, classifier_activation=None)


def page_inceptionv3():
    return keras.applications.InceptionV3(weights=None, input_shape=(75, 75, 3), classes=1001)


def float64_application(**arguments):
    keras.config.set_dtype_policy("float64")
    return courses.application(**arguments)


@pytest.fixture(autouse=True)
def policy():
    yield
    keras.config.set_dtype_policy("float32")


# Config, what of it is smaller here, images, the page's model, optimizer and loss, steps, tolerance. DEEP ones compute
# in float64: in float32 their losses on small images differ by 3e-5 on some processors. Prepared images are float32 and
# differ by 1e-7: that changes the gradients of the first layer of the ResNets by 1 %.
DEEP = {"target": f"{__name__}:float64_application"}
RECIPES = [
    (
        "sctrain_mlp",
        {},
        (28, 28, 1),
        page_mlp,
        lambda: keras.optimizers.Adam(1e-3),
        "sparse_categorical_crossentropy",
        3,
        1e-4,
    ),
    pytest.param(
        *("bsc_mnist", {}, (28, 28, 1), page_mnist, lambda: "sgd", "categorical_crossentropy", 3, 1e-4),
        marks=pytest.mark.slow,
    ),
    pytest.param(
        *("bsc_resnet50v2", {"input_shape": (32, 32, 3)}, (16, 16, 3), page_resnet50v2),
        *(lambda: keras.optimizers.SGD(0.01), keras.losses.SparseCategoricalCrossentropy(), 1, 0.1),
        marks=pytest.mark.slow,
    ),
    pytest.param(
        *("idris_resnet50", DEEP | {"input_shape": (32, 32, 3)}, (16, 16, 3), page_resnet50),
        *(lambda: keras.optimizers.SGD(0.001), keras.losses.SparseCategoricalCrossentropy(from_logits=True), 1, 0.1),
        marks=pytest.mark.slow,
    ),
    pytest.param(
        *("cscs_imagenet", DEEP | {"input_shape": (75, 75, 3)}, (16, 16, 3), page_inceptionv3),
        *(lambda: keras.optimizers.SGD(1e-4, momentum=0.9), "categorical_crossentropy", 1, 1e-5),
        marks=pytest.mark.slow,
    ),
    # Without dropout, which Keras and tfdist draw from different seeds.
    pytest.param(
        *("sctrain_alexnet", {"input_shape": (131, 131, 3)}, (16, 16, 3), lambda: page_alexnet(131, 10)),
        *(lambda: keras.optimizers.SGD(0.001, momentum=0.8), "sparse_categorical_crossentropy", 3, 1e-4),
        marks=pytest.mark.slow,
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
    for layer in [*model.layers, *page.layers]:
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    initial = model.get_weights()
    assert loop.train(run) == 0

    ids = tf.range(steps * batch, dtype=tf.int64)
    if config.data.shuffle:
        ids = order.permute(ids, tf.constant(0, tf.int64), seed=config.seed, num_examples=steps * batch)
    data = sources.synthetic("train", shape=shape, num_examples=steps * batch).read(ids)
    images = tf.image.resize(data["image"], size) if smaller else data["image"]
    images, labels = tf.cast(images, tf.float32).numpy(), data["label"].numpy()
    if name != "cscs_imagenet":
        images /= 255
    page.set_weights(initial)
    page.compile(optimizer=optimizer(), loss=loss, metrics=["accuracy"])
    if loss == "categorical_crossentropy":
        labels = keras.utils.to_categorical(labels, page.output_shape[-1])
    history = page.fit(images, labels, batch_size=batch, epochs=1, shuffle=False, verbose=0).history
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    final = [line for line in lines if line["kind"] == "train"][-1]
    np.testing.assert_allclose(final["loss"], history["loss"][0], rtol=1e-5)
    np.testing.assert_allclose(final["accuracy"], history["accuracy"][0], rtol=1e-5)
    # The gradient of ResNet50's biases is 0, because normalisation follows: they move by rounding alone, 1e-6.
    rounding = 1e-5 if name == "idris_resnet50" else 1e-6
    for ours, theirs, start in zip(model.get_weights(), page.get_weights(), initial, strict=True):
        assert np.linalg.norm(ours - theirs) <= bound * np.linalg.norm(theirs - start) + rounding


def test_the_networks_have_the_parameters_that_the_pages_count():
    assert courses.mlp().count_params() == 101_770
    assert courses.mnist_cnn().count_params() == 62_346
    assert courses.alexnet(10).count_params() == 70_086_218
    assert courses.alexnet(10, (224, 224, 3), "functional").count_params() == 56_454_730
    with pytest.raises(ValueError, match=r"form must be one of functional, sequential. Received: 'subclassed'"):
        courses.alexnet(form="subclassed")
    with pytest.raises(ValueError, match=r"keras.applications has no 'ResNet50v2'. Did you mean 'ResNet50V2'"):
        courses.application("ResNet50v2", 10, (32, 32, 3))


@pytest.mark.slow
def test_alexnet_computes_what_the_slides_code_computes():
    ours, page = courses.alexnet(7, (131, 131, 3), "functional"), page_alexnet(131, 7)
    assert all(bias.numpy().max() == 0 for bias in ours.weights if bias.name == "bias")
    page.set_weights(ours.get_weights())
    images = np.random.default_rng(0).random((2, 131, 131, 3), np.float32)
    np.testing.assert_allclose(ours(images), page(images), rtol=1e-6)


@pytest.mark.parametrize("name", ["sctrain_alexnet", "cscs_line", "cscs_imagenet", "idris_resnet50"])
def test_the_other_recipes_keep_the_pages_numbers(name):
    config = importlib.import_module(f"configs.courses.{name}").get_config()
    rate, steps = config.learning_rate, (config.train.epochs, config.train.steps)
    expected = {
        "sctrain_alexnet": (0.001, "none", 128, (100, None), 0.8),
        "cscs_line": (0.5, "none", 1000, (None, 100), None),
        "cscs_imagenet": (1e-4, "none", 64, (None, 200), 0.9),
        "idris_resnet50": (0.001, "linear", 64, (None, 1000), None),
    }
    found = (rate.peak, rate.scaling, config.data.batch_size, steps, config.optimizer.get("momentum"))
    assert found == expected[name]


def test_the_points_of_the_line_lie_where_the_laboratory_draws_them():
    data = sources.line("train", m=2.0, n=0.0, noise=0.5, width=0.5, num_examples=1000).read(
        tf.range(1000, dtype="int64")
    )
    x, error = data["x"].numpy(), (data["y"] - 2 * data["x"]).numpy()
    for values in (x, error):
        assert -0.5 <= values.min() < -0.49 and 0.49 < values.max() < 0.5


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
    ("mse", {}, (5, 2), "numbers", keras.losses.MeanSquaredError(), "mae"),
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
    ("changes", "message"),
    [
        ({"loss": "binary_crossentropie"}, r"has no 'binary_crossentropie'. Did you mean 'BinaryCrossentropy'"),
        ({"loss": "xyz"}, r"keras.losses has no 'xyz'. It has: BinaryCrossentropy"),
        ({"loss": "huber", "arguments": {"dleta": 1}}, r"config.objective.arguments=\{'dleta': 1\} .*'dleta'"),
        ({"loss": "mean_squared_error", "metrics": ["AUC"]}, r"no function 'AUC'.* It has: accuracy"),
        ({"loss": "mean_squared_error", "labels": "y"}, r"reads batch\['y'\], but the batch has: image, label"),
        ({"loss": "dice"}, r"'loss' has no value per example: shape \(\) .* Train with tfdist.fit"),
    ],
)
def test_unknown_losses_are_refused(changes, message):
    batch = {"image": tf.ones([4, 3]), "label": tf.ones([4, 3])}
    with pytest.raises(ValueError, match=message):
        objectives.keras_loss(lambda inputs, training: inputs, batch, training=True, **changes)


def test_images_are_resized_as_on_the_page_and_decoded_where_needed():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), np.uint8)
    found = courses.images({"image": tf.constant(pixels), "label": 1}, None, training=True, resize=(13, 11))
    np.testing.assert_allclose(found["image"], tf.image.resize(pixels, [13, 11]) / 255.0, rtol=1e-6)
    assert found["label"] == 1
    encoded = [tf.io.encode_jpeg(image, quality=100).numpy() for image in pixels]
    found = courses.images({"image": tf.constant(encoded)}, None, training=True, resize=(4, 4), scale=1.0)["image"]
    decoded = [tf.image.resize(tf.io.decode_jpeg(image), [4, 4]) for image in encoded]
    np.testing.assert_allclose(found, decoded, rtol=1e-6)
    with pytest.raises(ValueError, match=r"needs resize=\(height, width\) for encoded images"):
        courses.images({"image": tf.constant(encoded)}, None, training=True)


def write_cifar(folder, layout):
    """Writes a tiny data set in a layout of the authors; returns the images and labels of both splits."""
    random = np.random.default_rng(0)
    folder = folder / layout
    folder.mkdir()
    fine = "100" in layout
    if fine:
        files = {"train": ["train"], "test": ["test"]}
    else:
        files = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
    expected = {}
    for split, names in files.items():
        images, labels = [], []
        for name in names:
            pixels = random.integers(0, 256, (4, 3072), np.uint8)
            classes = random.integers(0, 100 if fine else 10, 4)
            key = b"fine_labels" if fine else b"labels"
            content = {b"data": pixels, key: classes.tolist(), b"filenames": [b"a.png"] * 4, b"batch_label": b"x"}
            (folder / name).write_bytes(pickle.dumps(content, protocol=2))
            images.append(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
            labels.append(classes)
        expected[split] = np.concatenate(images), np.concatenate(labels)
    return expected


@pytest.mark.parametrize("layout", ["cifar-10-batches-py", "cifar-100-python"])
def test_cifar_is_read_from_each_layout_of_its_authors(tmp_path, layout):
    expected = write_cifar(tmp_path, layout)
    for path in (tmp_path, tmp_path / layout):
        for split, (images, labels) in expected.items():
            source = sources.cifar(split, path=str(path))
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
    with pytest.raises(
        ValueError, match=r"test_batch' is damaged or not a CIFAR file: it contains an object of _?io.open"
    ):
        sources.cifar("test", path=str(folder))
    assert not (tmp_path / "written").exists()
    content = (folder / "data_batch_1").read_bytes()
    (folder / "data_batch_1").write_bytes(content[:-2000])
    with pytest.raises(ValueError, match=r"data_batch_1' is damaged"):
        sources.cifar("train", path=str(folder))
    with pytest.raises(FileNotFoundError, match=r"other' is none of the folders cifar-10-batches-py and"):
        sources.cifar("train", path=str(tmp_path / "other"))


def idx_bytes(values):
    header = bytes([0, 0, 8, values.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in values.shape)
    return header + values.astype(np.uint8).tobytes()


@pytest.mark.parametrize("compressed", [False, True])
def test_idx_files_are_read_compressed_or_not(tmp_path, compressed):
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28), np.uint8)
    labels = np.array([3, 1, 4, 1, 5], np.uint8)
    for name, values in (("train-images-idx3-ubyte", images), ("train-labels-idx1-ubyte", labels)):
        content = idx_bytes(values)
        path = tmp_path / (name + ".gz" * compressed)
        path.write_bytes(gzip.compress(content) if compressed else content)
    source = sources.idx("train[1:]", path=str(tmp_path))
    data = source.read(tf.range(4, dtype=tf.int64))
    np.testing.assert_array_equal(data["image"], images[1:, ..., None])
    np.testing.assert_array_equal(data["label"], labels[1:])
    with pytest.raises(FileNotFoundError, match=r"neither t10k-images-idx3-ubyte nor t10k-images-idx3-ubyte\.gz"):
        sources.idx("test", path=str(tmp_path))
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ValueError, match=r"idx: .*train-labels-idx1-ubyte.* is damaged"):
        sources.idx("train", path=str(tmp_path))
