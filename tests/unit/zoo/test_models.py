"""The zoo's models: the published sizes, float32 logits, and exports that Keras alone can load."""

import functools
import subprocess
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf
from launching import python
from parameters import slow, slow_except

from tfdist.configs.networks import airbench
from tfdist.zoo import models

SMALL = {
    "mlp": lambda **kw: models.mlp(num_classes=7, input_shape=(8, 8, 1), **kw),
    "mnist_cnn": lambda **kw: models.mnist_cnn(num_classes=7, input_shape=(8, 8, 1), **kw),
    "small_cnn": lambda **kw: models.small_cnn(num_classes=7, input_shape=(8, 8, 1), **kw),
    "cifar_resnet": lambda **kw: models.cifar_resnet(8, num_classes=7, input_shape=(8, 8, 1), width=4, **kw),
}
# One network of each family.
QUICK = ("mlp", "small_cnn", "cifar_resnet")
APPLICATION = {"name": "MobileNetV2", "num_classes": 7, "input_shape": (32, 32, 3), "alpha": 0.35}


@pytest.fixture(autouse=True)
def policy():
    yield
    keras.config.set_dtype_policy("float32")


def images(shape, n=4):
    return np.random.default_rng(0).uniform(0.0, 1.0, (n, *shape)).astype(np.float32)


def trainable(model):
    return sum(variable.numpy().size for variable in model.trainable_variables)


def test_mlp_and_mnist_cnn_have_the_sizes_of_their_layers():
    assert trainable(models.mlp()) == 784 * 128 + 128 + 128 * 10 + 10
    assert [layer.units for layer in models.mlp(hidden=(5, 4)).layers if hasattr(layer, "units")] == [5, 4, 10]
    assert trainable(models.mnist_cnn()) == (25 * 32 + 32) + (25 * 32 * 64 + 64) + (7 * 7 * 64 * 10 + 10)
    assert trainable(models.small_cnn()) == (9 * 32 + 64) + (9 * 32 * 64 + 128) + (4 * 4 * 64 * 10 + 10)


@pytest.mark.parametrize("depth, millions", [(20, 0.27), slow(56, 0.85)])
def test_cifar_resnet_has_the_size_that_the_paper_states(depth, millions):
    model = models.cifar_resnet(depth)
    assert round(trainable(model) / 1e6, 2) == millions
    kernels = [v for v in model.trainable_variables if v.name == "kernel"]
    assert len(kernels) == depth
    assert model.output.shape == (None, 10)


def test_cifar_resnet_shortcuts_take_every_second_pixel_and_pad_with_zeros():
    model = models.cifar_resnet(8, input_shape=(7, 9, 3), width=4)
    for layer in model.layers:  # With the residual branches at 0, each block is ReLU of its shortcut.
        if layer.name.endswith("_2_norm"):
            layer.gamma.assign(np.zeros(layer.gamma.shape))
    stem, last = (model.get_layer(name).output for name in ("stem_relu", "stage3_block1_relu"))
    stem, last = keras.Model(model.input, [stem, last])(images((7, 9, 3)))
    assert last.shape == (4, 2, 3, 16)
    np.testing.assert_array_equal(last[..., :4], stem[:, ::4, ::4])
    np.testing.assert_array_equal(last[..., 4:], np.zeros((4, 2, 3, 12)))


@pytest.mark.parametrize(
    ("name", "precision"),
    slow_except(
        [*((name, "mixed_bfloat16") for name in [*SMALL, "application"]), ("mlp", "mixed_float16")],
        [("cifar_resnet", "mixed_bfloat16"), ("mlp", "mixed_float16")],
    ),
)
def test_logits_are_float32_under_mixed_precision(name, precision):
    keras.config.set_dtype_policy(precision)
    model = models.application(**APPLICATION) if name == "application" else SMALL[name]()
    logits = model(images(model.input.shape[1:]), training=True)
    assert logits.dtype == tf.float32 and logits.shape == (4, 7)
    assert all(variable.dtype == "float32" for variable in model.variables)
    assert model.layers[1].compute_dtype == precision.removeprefix("mixed_")


@pytest.mark.parametrize("name", slow_except(SMALL, QUICK))
def test_weights_start_as_he_normal_are_named_alike_and_only_kernels_have_l2(name):
    keras.utils.set_random_seed(0)
    first, model = SMALL[name](), SMALL[name](l2=0.01)
    kernels = [variable for variable in model.trainable_variables if variable.name == "kernel"]
    for kernel in kernels:
        deviation = kernel.numpy().std() / np.sqrt(2 / np.prod(kernel.shape[:-1]))
        assert abs(deviation - 1) < 4 / np.sqrt(kernel.numpy().size)
    paths = [variable.path for variable in first.variables]
    assert paths == [variable.path for variable in model.variables] and len(set(paths)) == len(paths)
    assert first.losses == []
    np.testing.assert_allclose(tf.add_n(model.losses), sum(0.01 * np.square(k).sum() for k in kernels), rtol=1e-5)


def normalisations(model):
    return [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]


@pytest.mark.parametrize("build", [models.small_cnn, slow(functools.partial(models.application, **APPLICATION))])
def test_normalization_is_over_replicas_or_groups_or_neither(build):
    assert all(layer.synchronized for layer in normalisations(build(normalization="sync_batch")))
    model = build(group_size=3)
    assert normalisations(model) and not any(layer.synchronized for layer in normalisations(model))
    with pytest.raises(ValueError, match="group_size=3 and synchronized=True"):
        build(normalization="sync_batch", group_size=3)
    with pytest.raises(ValueError, match=r"batch, sync_batch.* 'layer'"):
        build(normalization="layer")


LOAD = """
    import sys
    sys.modules["tfdist"] = None  # Any import of it fails.
    import keras, numpy as np
    for name in sys.argv[2:]:
        model = keras.models.load_model(f"{sys.argv[1]}/{name}.keras")
        data = np.load(f"{sys.argv[1]}/{name}.npz")
        np.testing.assert_allclose(model(data["images"]), data["logits"], rtol=1e-6, atol=1e-6)
    print(len(sys.argv) - 2, "loaded")
"""


@pytest.mark.slow
def test_saved_models_load_and_predict_alike_without_tfdist(tmp_path):
    builders = SMALL | {
        "groups": lambda: models.cifar_resnet(8, input_shape=(8, 8, 3), width=4, group_size=2, l2=1e-4),
        "synchronised": lambda: models.small_cnn(normalization="sync_batch"),
        "application": lambda: models.application(**APPLICATION, group_size=2),
        "airbench": lambda: airbench.network(widths=(8, 8, 8), group_size=2),
    }
    for name, build in builders.items():
        for precision in ("float32", "mixed_bfloat16"):
            keras.config.set_dtype_policy(precision)
            model = build()
            x = images(model.input.shape[1:])
            model(x * 2, training=True)  # Moves the moving statistics.
            model.save(tmp_path / f"{name}_{precision}.keras")
            np.savez(tmp_path / f"{name}_{precision}.npz", images=x, logits=model(x).numpy())
    names = [path.stem for path in tmp_path.glob("*.keras")]
    assert len(names) == 2 * len(builders)
    done = python("-c", textwrap.dedent(LOAD), tmp_path, *names, start=subprocess.run, cwd=tmp_path)
    assert done.stdout == f"{len(names)} loaded\n"
