"""The canary for new releases of TensorFlow and Keras: every private name in use exists and behaves as tfdist expects.

It fails first, and names what has changed, before a run gives wrong results. `.ci/nightly` runs it with the newest
releases.
"""

import importlib
import inspect
import json
import sys
import threading
from collections.abc import Callable
from typing import Any

import forked
import keras
import pytest
import tensorflow as tf
import test_house
from launching import REPOSITORY, worker_environment

USED = sorted({name for names in test_house.PRIVATE_NAMES.values() for name in names})
DATA = "tensorflow.python.data"
ADAPTERS = "keras.src.trainers.data_adapters"


def model() -> keras.Model:
    """A compiled model with normalisation, dropout and a penalty, after one batch of Keras' own training."""
    inputs = keras.Input((4,))
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(3, kernel_regularizer="l2")(inputs))
    outputs = keras.layers.Dense(2)(keras.layers.Dropout(0.5)(hidden))
    built = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    built.compile(keras.optimizers.Adam(), loss=loss, metrics=["accuracy"])
    built.train_on_batch(tf.zeros([2, 4]), tf.zeros([2], tf.int32))
    return built


def averaging(built: keras.Model) -> keras.Optimizer:
    """An optimizer that keeps moving averages of the model's weights."""
    optimizer = keras.optimizers.SGD(use_ema=True)
    optimizer.build(built.trainable_variables)
    return optimizer


@pytest.fixture(scope="module")
def built():
    """`model()`, once."""
    return model()


def replicated_metric_variable() -> tf.Variable:
    """The variable of a Keras metric that was made in the scope of a strategy."""
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        return keras.metrics.Mean().total.value


def scoped_layer() -> keras.Layer:
    """A layer that is computed again in the backward pass."""
    with keras.RematScope("full"):
        return keras.layers.Dense(1)


def dataset(kind: str) -> tf.data.Dataset:
    """A dataset whose last transformation is `kind`."""
    source = tf.data.Dataset.range(8)
    return {
        "map": lambda: source.map(lambda x: x + 1),
        "parallel map": lambda: source.map(lambda x: x + 1, num_parallel_calls=2, deterministic=False),
        "batch": lambda: source.batch(2, drop_remainder=True),
        "shuffle": lambda: source.shuffle(4, seed=1, reshuffle_each_iteration=False),
        "repeat": lambda: source.repeat(3),
        "take": lambda: source.take(3),
        "options": lambda: source.with_options(tf.data.Options()),
    }[kind]()


def watched_variables() -> list[str]:
    """The names of the variables that a function has used, asked for while it is traced."""
    variable, found = tf.Variable(1.0, name="watched"), []

    @tf.function
    def double() -> tf.Tensor:
        result = 2.0 * variable
        found.extend(one.name for one in tf.compat.v1.get_default_graph()._watched_variables)
        return result

    double()
    return found


# What tfdist calls of a private module, with the parameters that it passes, in order.
FUNCTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    f"{DATA}.ops.multi_device_iterator_ops": {"_create_device_dataset": ()},
    "tensorflow.python.autograph.core.ag_ctx": {"ControlStatusCtx": ("status",)},
    "tensorflow.python.autograph.impl.api": {"tf_convert": ("f", "ctx")},
    "tensorflow.python.distribute.collective_all_reduce_strategy": {
        "CollectiveAllReduceExtended._initialize_local_devices": ("self", "cluster_resolver", "worker_device")
    },
    "tensorflow.python.distribute.values": {"MirroredVariable.numpy": ("self",)},
    "tensorflow.python.eager.context": {
        "Context.configure_coordination_service": (
            *("service_type", "service_leader", "heartbeat_timeout_in_ms", "coordinated_jobs"),
        ),
        "context": (),
        "global_seed": (),
    },
    "tensorflow.python.framework.op_def_registry": {"get": ("name",)},
    "tensorflow.python.util._pywrap_util_port": {"IsMklEnabled": ()},
    "keras.src.losses.loss": {
        "reduce_weighted_values": ("values", "sample_weight", "mask", "reduction", "dtype"),
        "scale_loss_for_distribution": ("value",),
        "unscale_loss_for_distribution": ("value",),
        "apply_mask": ("sample_weight", "mask", "dtype", "reduction"),
        "squeeze_or_expand_to_same_rank": ("x1", "x2", "expand_rank_1"),
    },
    ADAPTERS: {"get_data_adapter": ("x", "y", "sample_weight", "shuffle")},
    f"{ADAPTERS}.array_data_adapter": {"can_convert_arrays": ("arrays",)},
    "tensorflow.python.framework.auto_control_deps_utils": {"get_read_write_resource_inputs": ("op",)},
    f"{ADAPTERS}.array_slicing": {"train_validation_split": ("arrays", "validation_split")},
    f"{ADAPTERS}.data_adapter_utils": {
        "class_weight_to_sample_weights": ("y", "class_weight"),
        "get_tensor_spec": ("batches",),
        "is_scipy_sparse": ("x",),
    },
    f"{ADAPTERS}.tf_dataset_adapter": {"make_class_weight_map_fn": ("class_weight",)},
    "keras.src.backend.common.masking": {"get_keras_mask": ("x",), "set_keras_mask": ("x", "mask")},
    "keras.src.ops": {"cond": ("pred", "true_fn", "false_fn")},
    "keras.src.random.seed_generator": {"global_seed_generator": ()},
    "tensorflow.python.ops.gen_random_ops": {
        "random_standard_normal": ("shape", "dtype", "seed", "seed2"),
        "random_uniform": ("shape", "dtype", "seed", "seed2"),
        "random_uniform_int": ("shape", "minval", "maxval", "seed", "seed2"),
        "truncated_normal": ("shape", "dtype", "seed", "seed2"),
        "multinomial": ("logits", "num_samples", "seed", "seed2", "output_dtype"),
        "random_shuffle": ("value", "seed", "seed2"),
    },
}
# Private attributes: how to get the object from a model, and what must be true of it; a tuple: its parameters.
ATTRIBUTES: dict[str, tuple[Callable[[keras.Model], Any], Any]] = {
    "_aggregation": (
        lambda m: replicated_metric_variable()._aggregation,
        lambda found: found == tf.VariableAggregation.SUM,
    ),
    "_all_reduce_sum_gradients": (lambda m: m.optimizer._all_reduce_sum_gradients, ("grads_and_vars",)),
    "_apply_weight_decay": (lambda m: m.optimizer._apply_weight_decay, ("variables",)),
    "_backend_apply_gradients": (lambda m: m.optimizer._backend_apply_gradients, ("grads", "trainable_variables")),
    "_overwrite_model_variables_with_average_value": (
        lambda m: m.optimizer._overwrite_model_variables_with_average_value,
        ("trainable_variables",),
    ),
    "_batch_size": (lambda m: int(dataset("batch")._batch_size), lambda found: found == 2),
    "_compile_loss": (lambda m: m._compile_loss, lambda found: isinstance(found, keras.Loss)),
    "_compile_metrics": (lambda m: m._compile_metrics, lambda found: isinstance(found, keras.Metric)),
    "_config": (lambda m: hasattr(eager_context(), "_config"), lambda found: found),
    "_count": (lambda m: int(dataset("repeat")._count), lambda found: found == 3),
    "_create_device_dataset": (
        lambda m: attribute(f"{DATA}.ops.multi_device_iterator_ops", "_create_device_dataset"),
        lambda found: callable(found),
    ),
    "_distribute_strategy": (lambda m: hasattr(m, "_distribute_strategy"), lambda found: found),
    "_deterministic": (lambda m: dataset("parallel map")._deterministic, lambda found: found == "false"),
    "_drop_remainder": (lambda m: bool(dataset("batch")._drop_remainder), lambda found: found),
    "_flatten_layers": (lambda m: len(list(m._flatten_layers())), lambda found: found == 6),
    "_functions": (lambda m: dataset("map")._functions(), lambda found: "graph" in dir(found[0].function)),
    "_get_variable_index": (
        lambda m: [m.optimizer._get_variable_index(v) for v in m.trainable_variables],
        lambda found: found == list(range(len(found))),
    ),
    "_initialize_local_devices": (
        lambda m: attribute(
            "tensorflow.python.distribute.collective_all_reduce_strategy",
            "CollectiveAllReduceExtended._initialize_local_devices",
        ),
        lambda found: callable(found),
    ),
    "_inputs": (lambda m: dataset("map")._inputs(), lambda found: isinstance(found[0], tf.data.Dataset)),
    "_learning_rate": (
        lambda m: keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 9))._learning_rate,
        lambda found: isinstance(found, keras.optimizers.schedules.LearningRateSchedule),
    ),
    "_map_func": (lambda m: dataset("map")._map_func.function, lambda found: "graph" in dir(found)),
    "_model_variables_moving_average": (
        lambda m: averaging(m)._model_variables_moving_average,
        lambda found: len(found) == 6 and all(isinstance(one, keras.Variable) for one in found),
    ),
    "_momentums": (lambda m: len(m.optimizer._momentums), lambda found: found == 6),
    "_non_trainable_variables": (
        lambda m: [len(layer._non_trainable_variables) for layer in m._flatten_layers()],
        lambda found: max(found) == 2,
    ),
    "_remat_mode": (
        lambda m: (scoped_layer()._remat_mode.mode, m._remat_mode),
        lambda found: found == ("full", None),
    ),
    "_seed": (lambda m: dataset("shuffle")._seed, lambda found: found is not None),
    "_seed2": (lambda m: int(dataset("shuffle")._seed2), lambda found: found == 1),
    "_seed_generators": (
        lambda m: [g for layer in m._flatten_layers() for g in layer._seed_generators],
        lambda found: len(found) == 1 and isinstance(found[0], keras.random.SeedGenerator),
    ),
    "_losses": (lambda m: m.layers[0]._losses, lambda found: found == []),
    "_should_trace": (lambda m: keras.callbacks.TensorBoard()._should_trace, lambda found: found is False),
    "_shutdown": (lambda m: threading._shutdown, ()),
    "_use_weight_decay": (lambda m: m.optimizer._use_weight_decay, ("variable",)),
    "_user_loss": (lambda m: m._compile_loss._user_loss, lambda found: isinstance(found, keras.Loss)),
    "_user_loss_weights": (lambda m: m._compile_loss._user_loss_weights, lambda found: found is None),
    "_velocities": (lambda m: len(m.optimizer._velocities), lambda found: found == 6),
    "_watched_variables": (lambda m: watched_variables(), lambda found: found == ["watched:0"]),
}
# Public methods that tfdist replaces on objects, with their parameters.
REPLACED = {
    "keras.random.SeedGenerator.next": ("ordered",),
    "keras.optimizers.Optimizer.update_step": ("gradient", "variable", "learning_rate"),
    "keras.optimizers.Optimizer._backend_apply_gradients": ("grads", "trainable_variables"),
    "keras.optimizers.Optimizer._overwrite_model_variables_with_average_value": ("trainable_variables",),
    "keras.Metric.update_state": (),
}
# Classes that tfdist recognises by name.
CLASSES = {"map": "_MapDataset", "batch": "_BatchDataset", "shuffle": "_ShuffleDataset", "options": "_OptionsDataset"}
# Operations of the graph of a dataset -> the inputs that `pipelines.copy` replaces.
INPUTS = {"ShuffleDatasetV3": (4, "seed_generator"), "RandomDatasetV2": (2, "seed_generator")}

THREE_STEPS = """
import json, sys
import keras
import numpy as np
import tfdist

def build():
    keras.utils.set_random_seed(3)
    layers = [keras.Input((6,)), keras.layers.Dense(8, "tanh", kernel_regularizer=keras.regularizers.L2(0.01)),
              keras.layers.BatchNormalization(), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(0.01), loss=loss, metrics=["accuracy"])
    return model

random = np.random.default_rng(0)
x, y = random.normal(size=(48, 6)).astype("float32"), random.integers(0, 3, 48)
options = {"batch_size": 16, "epochs": 1, "shuffle": False, "verbose": 0, "class_weight": {0: 1.0, 1: 2.0, 2: 0.5}}
theirs = build()
their_history = theirs.fit(x, y, **options).history
cluster = tfdist.connect()
with cluster.scope():
    ours = build()
our_history = tfdist.fit(cluster, ours, x, y, **options).history
moved = max(float(np.abs(a - b).max()) for a, b in zip(theirs.get_weights(), build().get_weights()))
differ = max(float(np.abs(a - b).max()) for a, b in zip(theirs.get_weights(), ours.get_weights()))
print(json.dumps({"moved": moved, "differ": differ, "theirs": their_history, "ours": our_history}))
"""


def eager_context() -> Any:
    """TensorFlow's eager context."""
    return attribute("tensorflow.python.eager.context", "context")()


def attribute(module: str, dotted: str) -> Any:
    """The object at a dotted name in a module."""
    found = importlib.import_module(module)
    for part in dotted.split("."):
        found = getattr(found, part)
    return found


def assert_takes(function: Callable, wanted: tuple[str, ...]) -> None:
    """Asserts that a function can be called with these parameters, in this order; () for any parameters."""
    assert callable(function)
    if not wanted:
        return
    names = list(inspect.signature(function).parameters)
    missing = [name for name in wanted if name not in names]
    said = f"{function} takes {names} in TensorFlow {tf.__version__}, Keras {keras.__version__}; tfdist needs {wanted}"
    assert not missing and sorted(wanted, key=names.index) == list(wanted), said


def test_every_private_name_in_use_is_checked_here():
    assert {name for name in USED if "." in name} == set(FUNCTIONS)
    assert {name for name in USED if "." not in name} == set(ATTRIBUTES)


@pytest.mark.parametrize("module", FUNCTIONS)
def test_a_private_module_has_what_tfdist_calls(module):
    for name, parameters in FUNCTIONS[module].items():
        assert_takes(attribute(module, name), parameters)


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_a_private_attribute_is_what_tfdist_expects(built, name):
    get, expected = ATTRIBUTES[name]
    found = get(built)
    if isinstance(expected, tuple):
        assert_takes(found, expected)
    else:
        assert expected(found), f"{name} is {found!r} in TensorFlow {tf.__version__}, Keras {keras.__version__}"


@pytest.mark.parametrize("name", REPLACED)
def test_a_method_that_tfdist_replaces_is_there(name):
    module, _, dotted = name.partition(".")
    assert_takes(attribute(module, dotted), REPLACED[name])


def test_losses_use_the_function_that_tfdist_replaces(monkeypatch):
    loss = importlib.import_module("keras.src.losses.loss")
    calls = []
    original = loss.reduce_weighted_values

    def counted(*args, **keywords):
        calls.append(args)
        return original(*args, **keywords)

    monkeypatch.setattr(loss, "reduce_weighted_values", counted)
    keras.losses.MeanSquaredError()(tf.zeros([2, 1]), tf.ones([2, 1]))
    assert len(calls) == 1


def test_kinds_of_datasets_have_their_names():
    assert {kind: type(dataset(kind)).__name__ for kind in CLASSES} == CLASSES


def test_operations_of_datasets_have_their_inputs():
    registry = importlib.import_module("tensorflow.python.framework.op_def_registry")
    assert {op: (at, registry.get(op).input_arg[at].name) for op, (at, _) in INPUTS.items()} == INPUTS


def test_coordination_and_session_options():
    collective = importlib.import_module("tensorflow.python.distribute.collective_all_reduce_strategy")
    job = collective.coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=2)
    assert (job.name, job.num_tasks) == ("worker", 2)
    options = importlib.import_module("tensorflow.core.protobuf.config_pb2").ConfigProto()
    options.experimental.recv_buf_max_chunk = 1 << 20
    assert options.experimental.recv_buf_max_chunk == 1 << 20
    assert importlib.import_module("tensorflow.python.autograph.core.ag_ctx").Status.ENABLED


@pytest.mark.workers
def test_three_steps_are_those_of_keras_own_fit(tmp_path):
    words = [sys.executable, "-c", THREE_STEPS]
    done = forked.run(words, cwd=REPOSITORY, env=worker_environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["moved"] > 0.02 and found["differ"] < 2e-6, found
    for name, values in found["theirs"].items():
        assert found["ours"][name] == pytest.approx(values, abs=2e-6), found
