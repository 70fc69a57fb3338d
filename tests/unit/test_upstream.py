"""The canary for new releases of TensorFlow and Keras: all that tfdist calls, sets and replaces has its effect.

Each private name is called or set as tfdist does; each replaced name must be called by Keras or TensorFlow.

It fails first, and names what has changed, before a run gives wrong results. `.ci/nightly` runs it with the newest
releases.
"""

import collections
import contextlib
import functools
import importlib
import inspect
import re
import sys
import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import test_house
from launching import REPOSITORY

from tfdist.config import patching

USED = sorted({name for names in test_house.PRIVATE_NAMES.values() for name in names})
PAGE = (REPOSITORY / "docs" / "what-is-replaced.md").read_text()
VERSIONS = f"TensorFlow {tf.__version__}, Keras {keras.__version__}"
ADAPTERS = "keras.src.trainers.data_adapters"
# Before Keras 3.15 a scope recomputes layers only.
OLD_KERAS = keras.__version__.startswith(("3.12", "3.13", "3.14"))
RECOMPUTED = (keras.Layer,) if OLD_KERAS else (keras.Layer, keras.Operation)


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


def collective() -> Any:
    """TensorFlow's module of the strategy of several workers."""
    return importlib.import_module("tensorflow.python.distribute.collective_all_reduce_strategy")


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


def wrote_its_variable(module: Any) -> bool:
    """Whether TensorFlow finds the variable that an operation writes."""
    variable, found = tf.Variable(1.0), []

    @tf.function
    def write() -> None:
        variable.assign(2.0)
        graph = tf.compat.v1.get_default_graph()
        writers = [op for op in graph.get_operations() if op.type == "AssignVariableOp"]
        found.extend(module.get_read_write_resource_inputs(writers[0])[1])
        assert found[0] is writers[0].inputs[0]

    write()
    return len(found) == 1


def class_weights_of(module: Any) -> list[list[float]]:
    """The batch (x, y, sample_weight) that Keras makes of a batch and class weights."""
    parts = module.make_class_weight_map_fn({0: 0.5, 1: 2.0})(tf.zeros([2, 1]), tf.constant([1, 0]))
    return [part.numpy().ravel().tolist() for part in parts]


def sliceable_rows(module: Any) -> list[list[float]]:
    """The second half of arrays as Keras splits them, and a row of a sparse matrix as Keras slices it."""
    _, (part, _) = module.train_validation_split((np.arange(4.0), None), validation_split=0.5)
    dense, sparse = module.convert_to_sliceable((np.eye(2), tf.sparse.eye(2)), target_backend="tensorflow")
    assert type(sparse) is module.TensorflowSparseWrapper
    row = module.slice_tensorflow_sparse_wrapper(sparse, tf.constant([1]))
    return [np.asarray(part).tolist(), tf.sparse.to_dense(row).numpy().ravel().tolist(), dense[1].tolist()]


def masked(module: Any) -> bool:
    """Whether a mask is kept with a tensor, and a layer that is called finds it."""
    tensor, mask = tf.zeros([1, 2, 1]), tf.constant([[True, False]])
    module.set_keras_mask(tensor, mask)
    assert module.get_keras_mask(tensor) is mask
    return keras.layers.GlobalAveragePooling1D()(tensor + 1.0).shape == (1, 1) and module.get_keras_mask(mask) is None


def configured_service(module: Any) -> bool:
    """Whether the context of a process takes the settings of the service between workers."""
    context = module.Context()
    job = collective().coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=2)
    context.configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        heartbeat_timeout_in_ms=7000,
        coordinated_jobs=[job],
    )
    service = context.config.experimental.coordination_config
    return (service.heartbeat_timeout_in_ms, service.coordinated_job_list[0].num_tasks) == (7000, 2)


def converted(module: Any) -> bool:
    """Whether AutoGraph makes an `if` over a tensor an operation, in a function that is traced without AutoGraph."""
    contexts = importlib.import_module("tensorflow.python.autograph.core.ag_ctx")
    convert = module.tf_convert(absolute, contexts.ControlStatusCtx(contexts.Status.ENABLED))
    return float(tf.function(lambda: convert(tf.constant(-2.0)), autograph=False)()) == 2.0


def absolute(value: tf.Tensor) -> tf.Tensor:
    """The absolute value, by a branch that AutoGraph converts."""
    if value < 0:
        value = -value
    return value


def own_rows_of_loss(module: Any) -> list[list[float]]:
    """Weights under a mask whose sum over the batch stays, and values and weights of one rank."""
    mask = tf.constant([True, False])
    weights = module.apply_mask(tf.constant([2.0, 3.0]), mask, dtype="float32", reduction="sum")
    values, same = module.squeeze_or_expand_to_same_rank(tf.zeros([2, 1]), weights)
    assert values.shape.rank == same.shape.rank
    return weights.numpy().tolist()


def is_connected(module: Any) -> bool:
    """Whether Keras' seed generator of draws without a seed is in its global state."""
    generator = module.global_seed_generator()
    return module.global_state.get_global_attribute("global_seed_generator") is generator


def own_aggregation() -> float:
    """The value of a metric's variable that all replicas share, after 7.0 was assigned to it."""
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        variable = keras.metrics.Mean().total.value
    assert variable._aggregation == tf.VariableAggregation.SUM
    variable._aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA
    assert variable.aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA
    variable.assign(7.0)
    return float(variable.numpy())


def own_strategy(built: keras.Model) -> Any:
    """The strategy of a model after the attribute was set."""
    with patching.restore_after([built], ["_distribute_strategy"]):
        patching.replace_attribute(built, "_distribute_strategy", "of the model")
        return built.distribute_strategy


def loss_of_logits() -> float:
    """The loss of a probability of exp(-50), which is 0 in float32."""
    probabilities = tf.constant([[1.0, 0.0]])
    probabilities._keras_logits = tf.constant([[50.0, 0.0]])
    return float(keras.losses.sparse_categorical_crossentropy(tf.constant([1]), probabilities)[0])


def added_losses() -> list[Any]:
    """What a layer keeps its losses in, after it has added one."""
    layer = keras.layers.ActivityRegularization(l2=0.1)
    layer._losses = []
    layer.add_loss(tf.constant(1.0))
    assert layer.losses[0] is layer._losses[0]
    return layer._losses


# What tfdist calls of a private module: called as tfdist does, it returns what tfdist expects.
FUNCTIONS: dict[str, Callable[[Any], bool]] = {
    "tensorflow.python.autograph.core.ag_ctx": lambda m: (
        m.ControlStatusCtx(m.Status.ENABLED).status == m.Status.ENABLED
    ),
    "tensorflow.python.autograph.impl.api": converted,
    "tensorflow.python.distribute.collective_all_reduce_strategy": (
        lambda m: m.coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=2).num_tasks == 2
    ),
    "tensorflow.python.distribute.values": (
        lambda m: isinstance(replicated_metric_variable(), m.MirroredVariable | m.SyncOnReadVariable)
    ),
    "tensorflow.python.eager.context": (
        lambda m: configured_service(m) and m.global_seed() == getattr(m.context(), "_seed", None)
    ),
    "tensorflow.python.framework.auto_control_deps_utils": wrote_its_variable,
    "tensorflow.python.util._pywrap_util_port": lambda m: m.IsMklEnabled() in (True, False),
    "keras.src.losses.loss": lambda m: own_rows_of_loss(m) == [2.0, 0.0],
    ADAPTERS: lambda m: m.get_data_adapter((np.ones((2, 1)),) for _ in range(3)).get_tf_dataset() is not None,
    f"{ADAPTERS}.array_data_adapter": (
        lambda m: m.can_convert_arrays(np.ones(2)) and not m.can_convert_arrays(object())
    ),
    f"{ADAPTERS}.array_slicing": lambda m: sliceable_rows(m) == [[2.0, 3.0], [0.0, 1.0], [0.0, 1.0]],
    f"{ADAPTERS}.data_adapter_utils": (
        lambda m: (
            [*m.class_weight_to_sample_weights(np.array([1, 0]), {0: 0.5, 1: 2.0})] == [2.0, 0.5]
            and m.get_tensor_spec([(np.ones((2, 1)),), (np.ones((3, 1)),)])[0].shape.rank == 2
            and m.pack_x_y_sample_weight(1, 2, None) == (1, 2)
            and m.check_data_cardinality((np.ones(2), np.ones(2))) is None
        )
    ),
    f"{ADAPTERS}.tf_dataset_adapter": lambda m: class_weights_of(m) == [[0.0, 0.0], [1, 0], [2.0, 0.5]],
    "keras.src.backend.common.masking": masked,
    "keras.src.backend.tensorflow.trainer": (
        lambda m: m.potentially_ragged_concat([tf.zeros([1, 2]), tf.zeros([1, 3])]).shape.as_list() == [2, None]
    ),
    "keras.src.random.seed_generator": is_connected,
}
# Private attributes that tfdist reads or sets: what follows from it in a model, and its value.
ATTRIBUTES: dict[str, tuple[Callable[[keras.Model], Any], Any]] = {
    # TensorFlow reads it where a replica assigns a value.
    "_aggregation": (lambda m: own_aggregation(), 7.0),
    "_distribute_strategy": (own_strategy, "of the model"),
    "_keras_logits": (lambda m: loss_of_logits(), 50.0),
    "_losses": (lambda m: len(added_losses()), 1),
    # Python ends by it.
    "_shutdown": (lambda m: [*inspect.signature(threading._shutdown).parameters], []),
    "_batch_size": (lambda m: int(dataset("batch")._batch_size), 2),
    "_compile_config": (lambda m: m._compile_config.config["optimizer"] is not None, True),
    "_compile_loss": (lambda m: isinstance(m._compile_loss, keras.Loss), True),
    "_compile_metrics": (lambda m: isinstance(m._compile_metrics, keras.Metric), True),
    "_count": (lambda m: int(dataset("repeat")._count), 3),
    "_deterministic": (lambda m: dataset("parallel map")._deterministic, "false"),
    "_drop_remainder": (lambda m: bool(dataset("batch")._drop_remainder), True),
    "_flatten_layers": (lambda m: len(list(m._flatten_layers())), 6),
    "_functions": (lambda m: hasattr(dataset("map")._functions()[0].function, "graph"), True),
    "_get_variable_index": (lambda m: [m.optimizer._get_variable_index(v) for v in m.trainable_variables], [*range(6)]),
    "_inputs": (lambda m: isinstance(dataset("map")._inputs()[0], tf.data.Dataset), True),
    "_learning_rate": (
        lambda m: type(keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 9))._learning_rate),
        keras.optimizers.schedules.CosineDecay,
    ),
    "_model_variables_moving_average": (
        lambda m: [isinstance(one, keras.Variable) for one in averaging(m)._model_variables_moving_average],
        [True] * 6,
    ),
    "_momentums": (lambda m: len(m.optimizer._momentums), 6),
    "_non_trainable_variables": (
        lambda m: max(len(layer._non_trainable_variables) for layer in m._flatten_layers()),
        2,
    ),
    "_remat_mode": (lambda m: (scoped_layer()._remat_mode.mode, m._remat_mode), ("full", None)),
    "_seed": (lambda m: dataset("shuffle")._seed is not None, True),
    "_seed2": (lambda m: int(dataset("shuffle")._seed2), 1),
    "_seed_generators": (
        lambda m: [type(one) for layer in m._flatten_layers() for one in layer._seed_generators],
        [keras.random.SeedGenerator],
    ),
    "_should_trace": (lambda m: keras.callbacks.TensorBoard()._should_trace, False),
    "_use_weight_decay": (lambda m: [m.optimizer._use_weight_decay(v) for v in m.trainable_variables], [True] * 6),
    "_user_loss_weights": (lambda m: m._compile_loss._user_loss_weights, None),
    "_velocities": (lambda m: len(m.optimizer._velocities), 6),
    "_watched_variables": (lambda m: watched_variables(), ["watched:0"]),
}
RANDOM_OPS = (
    *("random_standard_normal", "random_uniform", "random_uniform_int", "truncated_normal", "multinomial"),
    "random_shuffle",
)
# Classes that tfdist recognises by name.
CLASSES = {"map": "_MapDataset", "batch": "_BatchDataset", "shuffle": "_ShuffleDataset", "options": "_OptionsDataset"}

# Names that tfdist replaces, and that users' code calls or sets itself, a class of its own, or Python.
BY_USERS = {
    *("ForwardAccumulator", "GradientTape", "Layer", "MirroredStrategy", "Model"),
    *("MultiWorkerMirroredStrategy", "Optimizer", "SlurmClusterResolver", "TFConfigClusterResolver"),
    *("TFRecordWriter", "Checkpoint", "GFile", "CheckpointManager", "File", "__init__", "__float__"),
    *("__getitem__", "__int__", "add_loss", "batch_jacobian", "cache", "clear_session", "compile"),
    *("compute_average_loss", "config", "create_file_writer", "evaluate", "fit", "function"),
    *("get_file", "get_replica_context", "gradients", "hessians", "in_cross_replica_context", "jacobian"),
    *("merge_call", "memmap", "open", "optimizer", "predict", "random", "register", "unregister"),
    *("scale_regularization_loss", "scatter_nd_add", "_max", "_min", "_sub", "_update", "scope", "set_seed"),
    *("snapshot", "tempdir", "test_on_batch", "train_on_batch", "vectorized_map", "watch"),
}


def train() -> None:
    """Trains models by Keras alone, with all whose methods tfdist replaces."""
    for optimizer, keywords in (
        (keras.optimizers.AdamW, {"use_ema": True, "ema_overwrite_frequency": 2, "gradient_accumulation_steps": 2}),
        (keras.optimizers.SGD, {"momentum": 0.9}),
    ):
        layers = [keras.Input((4, 4, 2)), keras.layers.Conv2D(3, 2), keras.layers.BatchNormalization()]
        layers += [keras.layers.Dropout(0.5), keras.layers.Flatten(), keras.layers.Dense(2)]
        trained = keras.Sequential(layers)
        trained.compile(optimizer(0.1, **keywords), "mse", metrics=[keras.metrics.MeanAbsoluteError()])
        trained.fit(np.ones((4, 4, 4, 2)), np.ones((4, 2)), batch_size=2, epochs=2, verbose=0)
    scaled = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    scaled.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "mse")
    scaled.train_on_batch(np.ones((2, 1)), np.ones((2, 1)))


class Doubled(keras.Operation):
    """An operation that is no layer."""

    def call(self, values: tf.Tensor) -> tf.Tensor:
        return 2.0 * values

    def compute_output_spec(self, values: keras.KerasTensor) -> keras.KerasTensor:
        return values


def recompute() -> None:
    """Calls what is computed again in the backward pass."""
    with keras.RematScope("full"):
        made = [keras.layers.Dense(2), Doubled()]
    for function in (*made, keras.remat(tf.square)):
        function(tf.ones([2, 2]))


def draw() -> None:
    """Draws without seeds, as users' layers do."""
    keras.random.normal((2,))
    np.random.default_rng()
    for name in ("normal", "uniform", "truncated_normal"):
        getattr(tf.random, name)((2,))
    tf.random.uniform((2,), maxval=3, dtype=tf.int32)
    tf.random.categorical(tf.zeros([1, 2]), 2)
    tf.random.shuffle([1, 2])


def distribute() -> None:
    """Reads a dataset by a strategy, and makes one of several workers."""
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    next(iter(strategy.distribute_datasets_from_function(lambda context: tf.data.Dataset.range(2).batch(1))))
    tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        keras.losses.MeanSquaredError()(tf.zeros([2, 1]), tf.ones([2, 1]))


def named(module: str, *names: str) -> list[tuple[Any, str]]:
    """Names with their owner, a private module."""
    return [(importlib.import_module(module), name) for name in names]


def replaced() -> dict[Callable[[], None], list[tuple[Any, str]]]:
    """What makes Keras or TensorFlow call it -> owner and name of what tfdist replaces."""
    adam, metric = keras.optimizers.AdamW, keras.metrics.MeanAbsoluteError
    return {
        train: [
            *(
                (keras.layers.Layer, "__call__"),
                (keras.layers.BatchNormalization, "call"),
                (keras.layers.Conv2D, "convolution_op"),
            ),
            *((keras.random.SeedGenerator, "next"), (keras.Variable, "assign")),
            *((adam, name) for name in ("apply", "update_step", "add_variable_from_reference", "_apply_weight_decay")),
            *((adam, name) for name in ("_all_reduce_sum_gradients", "_overwrite_model_variables_with_average_value")),
            *((keras.optimizers.SGD, name) for name in ("assign", "assign_add", "assign_sub")),
            *((keras.optimizers.LossScaleOptimizer, "apply"), *named("tensorflow.python.ops.cond", "cond")),
            *((keras.Loss, "__call__"), (keras.Model, "compute_loss"), (type(tf.function(train)), "__call__")),
            *((tf.GradientTape, name) for name in ("gradient", "__enter__", "__exit__")),
            *((metric, name) for name in ("update_state", "result", "reset_state")),
            *named("keras.src.losses.loss", "reduce_weighted_values", "unscale_loss_for_distribution"),
        ],
        recompute: [
            *((kind, "rematerialized_call") for kind in RECOMPUTED),
            (tf, "recompute_grad"),
        ],
        draw: [
            *named("keras.src.random.seed_generator", "global_seed_generator"),
            *named("tensorflow.python.ops.gen_random_ops", *RANDOM_OPS),
            *named("numpy.random.bit_generator", "randbits"),
            (sys.modules[tf.compat.v1.random.get_seed.__module__], "get_seed"),
        ],
        distribute: [
            *named("tensorflow.python.data.ops.multi_device_iterator_ops", "_create_device_dataset"),
            (collective().CollectiveAllReduceExtended, "_initialize_local_devices"),
            *named("keras.src.losses.loss", "scale_loss_for_distribution"),
        ],
        keras.utils.clear_session: [(tf.compat.v1, "reset_default_graph")],
    }


def last_name(owner: Any) -> str:
    return owner.__name__.rpartition(".")[2]


@functools.cache
def calls(exercise: Callable[[], None]) -> collections.Counter:
    """How often Keras and TensorFlow call each name of `replaced` in an exercise; names that are gone are not there.

    Owners are known by their last names: a module that TensorFlow loads late is another object after its first use, and
    `import tensorflow.compat.v1` gives that module another path.
    """
    found: collections.Counter = collections.Counter()

    def count(original: Callable, *args: Any, key: tuple[str, str], **keywords: Any) -> Any:
        found[key] += 1
        return original(*args, **keywords)

    with contextlib.ExitStack() as stack:
        for owner, name in replaced()[exercise]:
            if hasattr(owner, name):
                stack.enter_context(patching.patch(owner, name, functools.partial(count, key=(last_name(owner), name))))
        exercise()
    return found


def test_every_private_name_in_use_is_checked_here():
    called = {f"{owner.__name__}.{name}" for names in replaced().values() for owner, name in names}
    elsewhere = {name for name in USED if any(f".{name}." in f".{one}." for one in called)}
    assert FUNCTIONS.keys() | ATTRIBUTES.keys() <= set(USED)
    assert set(USED) - FUNCTIONS.keys() - ATTRIBUTES.keys() - elsewhere == set()


def test_the_page_says_for_every_private_name_what_upstream_would_need():
    assert [name for name in USED if name.rpartition(".")[2] not in PAGE] == []


def test_every_replaced_name_is_checked_here():
    rows = [row.split(" | ") for row in PAGE.splitlines() if row.startswith("| `")]
    names = [row[2] for row in rows if len(row) > 3]
    listed = {name.rpartition(".")[2] for row in names for name in re.findall(r"`([^`]+)`", row)}
    called = {name for names in replaced().values() for _, name in names}
    assert listed - BY_USERS - called - ATTRIBUTES.keys() == {"activation", "num_replicas_in_sync", "value"}
    assert listed >= BY_USERS


@pytest.mark.parametrize("module", FUNCTIONS)
def test_a_private_module_does_what_tfdist_calls_it_for(module):
    assert FUNCTIONS[module](importlib.import_module(module)), f"{module} in {VERSIONS}"


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_a_private_attribute_is_what_tfdist_expects(built, name):
    get, expected = ATTRIBUTES[name]
    assert get(built) == expected, f"{name} in {VERSIONS}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("exercise", "owner", "name"), [(do, *one) for do, names in replaced().items() for one in names]
)
def test_keras_or_tensorflow_calls_what_tfdist_replaces(exercise, owner, name):
    assert calls(exercise)[last_name(owner), name] > 0, f"{owner.__name__}.{name} is not called in {VERSIONS}"


def test_keras_and_tensorflow_read_what_tfdist_replaces(monkeypatch):
    read = []
    for owner, name in ((keras.Variable, "value"), (tf.distribute.Strategy, "num_replicas_in_sync")):
        of = functools.partial(lambda one, get, name: [read.append(name), get(one)][1], get=getattr(owner, name).fget)
        monkeypatch.setattr(owner, name, property(functools.partial(of, name=name)))
    layer = keras.layers.Dense(1)
    layer.activation = lambda values: [read.append("activation"), values][1]
    layer(tf.zeros([1, 2]))
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    with strategy.scope():
        keras.losses.MeanSquaredError()(tf.zeros([2, 1]), tf.ones([2, 1]))
    assert {*read} == {"value", "num_replicas_in_sync", "activation"}, f"{read} in {VERSIONS}"


def test_kinds_of_datasets_have_their_names():
    assert {kind: type(dataset(kind)).__name__ for kind in CLASSES} == CLASSES
