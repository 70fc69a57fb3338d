"""Small trainings by `model.fit` on one device and by `tfdist.fit` on any topology, for tests that compare them."""

import contextlib
import dataclasses
import functools
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import own_steps
import tensorflow as tf

import tfdist
from tfdist import config as c
from tfdist.cluster.cluster import Cluster
from tfdist.training.step import build_context

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(53, 6))  # In batches of 16 the last has 5.
LABELS = RANDOM.integers(0, 3, 53)
TARGETS = RANDOM.normal(size=(53, 2))
WEIGHTS = RANDOM.uniform(0.2, 2.0, 53)
TOKENS = RANDOM.integers(0, 20, (53, 7)) * (np.arange(7) < RANDOM.integers(2, 8, (53, 1)))


@dataclasses.dataclass(kw_only=True)
class Case:
    """A compiled model, and the arguments of both fits."""

    build: Callable[[], keras.Model]
    # x, y and sample_weight.
    data: tuple = (X, LABELS)
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    # Data for Keras if it does not support the data for tfdist.
    for_keras: tuple | None = None
    batch_size: int | None = 16
    # Calls of `fit`, one after another.
    calls: int = 1
    # Whether `evaluate` and `predict` are called then.
    evaluates: bool = False


def dense(outputs: int, activation: str | None = None, **keywords) -> keras.Model:
    hidden = keras.layers.Dense(8, activation="tanh", **keywords)
    return keras.Sequential([keras.Input((6,)), hidden, keras.layers.Dense(outputs, activation=activation)])


def compiled(model: keras.Model, optimizer="adam", loss="sparse_categorical_crossentropy", **keywords) -> keras.Model:
    model.compile(optimizer=optimizer, loss=loss, **keywords)
    return model


def simple(**keywords) -> keras.Model:
    return compiled(dense(3, "softmax"), metrics=["accuracy"], **keywords)


def classification() -> Case:
    """A tfdist source; Keras gets the same arrays."""

    def build():
        optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.01, global_clipnorm=0.1)
        metrics = ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2, name="top2")]
        return compiled(dense(3, "softmax"), optimizer, metrics=metrics, steps_per_execution=2)

    options = {"validation_data": (X[:21], LABELS[:21]), "validation_batch_size": 8}
    return Case(build=build, data=(Memory(),), for_keras=(X, LABELS), options=options)


class Penalty(keras.layers.Layer):
    """A loss with one value per example; Keras sums the values."""

    def call(self, x):
        self.add_loss(0.001 * keras.ops.sum(keras.ops.square(x), axis=1, keepdims=True))
        return x


def regression() -> Case:
    """Sample weights, penalties, a learning rate function, and one example in the last batch: one of two replicas has
    no example."""

    def build():
        activities = None if keras.__version__.startswith(("3.12", "3.13")) else "l1"  # These are refused.
        model = dense(2, kernel_regularizer=keras.regularizers.L2(0.01), activity_regularizer=activities)
        model.add(Penalty())
        sgd = keras.optimizers.SGD(lambda: 0.1, momentum=0.9, clipnorm=0.5)
        return compiled(model, sgd, keras.losses.MeanSquaredError(), metrics=["mae"], weighted_metrics=["mse"])

    options = {"sample_weight": WEIGHTS, "validation_split": 0.2}
    return Case(build=build, data=(X[:51], TARGETS[:51]), options=options, batch_size=8)


def shuffled() -> Case:
    """Shuffles with seeds: each epoch has another order, that of Keras; the batches have no static size.

    A callback ends each of two calls of `fit` after two epochs, at which workers have read ahead differently.
    """
    dataset = tf.data.Dataset.from_tensor_slices((X, LABELS))
    halves = tf.data.Dataset.zip(tuple(dataset.shuffle(53, seed=seed).batch(16) for seed in (1, 2)))
    mixed = halves.map(lambda one, other: ((one[0] + other[0]) / 2, one[1]))
    early = keras.callbacks.EarlyStopping("loss", mode="max", patience=1)
    return Case(build=lambda: simple(), data=(mixed,), batch_size=None, options={"callbacks": [early]}, calls=2)


def without_target() -> Case:
    """Arrays, ragged ones too, with None as the target of an output."""

    def build():
        inputs = keras.Input((6,))
        hidden = keras.layers.Dense(4, activation="tanh")(inputs)
        outputs = {"kind": keras.layers.Dense(3, activation="softmax")(hidden), "place": keras.layers.Dense(2)(hidden)}
        loss = {"kind": "sparse_categorical_crossentropy", "place": None}
        return compiled(keras.Model(inputs, outputs), "sgd", loss)

    return Case(build=build, data=(X, {"kind": LABELS, "place": None}))


class Positions(keras.layers.Layer):
    """Adds a vector that is learnt for each position, which all examples share."""

    def build(self, shape):
        self.table = keras.layers.Embedding(*shape[1:])

    def call(self, x):
        return x + self.table(keras.ops.arange(x.shape[1]))


def repeated_tokens(table: str = "sparse") -> Case:
    """Adam, which squares the row of each lookup: of tokens that occur several times, and of positions."""

    def build():
        tokens = keras.layers.Embedding(200, 4)
        tokens.build()
        tokens.embeddings.dense_gradient = table == "dense"
        layers = [keras.Input((7,)), tokens, Positions(), keras.layers.Flatten(), keras.layers.Dense(3)]
        return compiled(keras.Sequential(layers), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    return Case(build=build, data=(TOKENS, LABELS))


def summed_tokens() -> Case:
    """A layer that needs a dense gradient: rows are summed before they are squared."""
    return repeated_tokens("dense")


def transfer() -> Case:
    """A frozen body with frozen moving statistics, and normalisation over the global batch in the new head.

    The last batch has three examples: one of four replicas has none.
    """

    def build():
        layers = [keras.Input((6,)), keras.layers.Dense(8), keras.layers.BatchNormalization()]
        body = keras.Sequential(layers, name="body")
        body.trainable = False
        inputs = keras.Input((6,))
        features = keras.layers.BatchNormalization(synchronized=True)(body(inputs))
        outputs = keras.layers.Dense(3, activation="softmax")(features)
        return compiled(keras.Model(inputs, outputs), "sgd", metrics=["accuracy"])

    return Case(build=build, batch_size=25, evaluates=True)


class Memory:
    """A tfdist source."""

    def __init__(self):
        self.x, self.labels = tf.constant(X), tf.constant(LABELS)

    def __len__(self):
        return len(X)

    def read(self, ids):
        return {"x": tf.gather(self.x, ids), "label": tf.gather(self.labels, ids)}


def _own_step(made: Callable[[], dict[str, Any]]) -> Callable[[], Case]:
    @functools.wraps(made)
    def case() -> Case:
        return Case(**({"batch_size": None} | made()))

    return case


CASES = [
    *map(_own_step, own_steps.CASES),
    *(regression, transfer, classification, shuffled, repeated_tokens, summed_tokens, without_target),
]


def run(case: Callable[[], Case], cluster: Cluster | None) -> dict[str, Any]:
    """Trains a case with tfdist, or with Keras if there is no cluster."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(7)
    given = case()
    options = {"batch_size": given.batch_size, "epochs": 3, "shuffle": False, "verbose": 0} | given.options
    own = {"fit": keras.Model.fit, "evaluate": keras.Model.evaluate, "predict": keras.Model.predict}
    of_tfdist = {name: functools.partial(getattr(tfdist, name), cluster) for name in own}
    methods = own if cluster is None else of_tfdist
    with contextlib.nullcontext() if cluster is None else cluster.scope():
        model = given.build()
    data = given.for_keras if cluster is None and given.for_keras else given.data
    data = dict(zip(("x", "y", "sample_weight"), data, strict=False))
    histories = [methods["fit"](model, **data | options).history for _ in range(given.calls)]
    evaluated, predicted = [], []
    if given.evaluates:
        evaluated = methods["evaluate"](model, **data, batch_size=given.batch_size, verbose=0)
        predicted = methods["predict"](model, data["x"], verbose=0, batch_size=10)
    found = {
        "history": {name: [value for one in histories for value in one[name]] for name in histories[0]},
        "evaluated": evaluated,
        "predicted": predicted,
        "weights": model.get_weights(),
    }
    return keras.tree.map_structure(lambda one: np.asarray(one, float).tolist(), found) | {
        "left_patched": [
            *(name for name in build_context.OPTIMIZER_ATTRIBUTES if name in vars(model.optimizer)),
            *(layer.name for layer in model._flatten_layers() if "call" in vars(layer)),
            *(
                name
                for name in ("apply", "assign")
                if name in {*vars(keras.optimizers.Optimizer), *vars(keras.Variable)}
            ),
            *(one.name for layer in model._flatten_layers() for one in layer._seed_generators if "next" in vars(one)),
        ],
    }


class OwnFunctions(keras.Sequential):
    """Makes its functions by itself."""

    def make_train_function(self, force=False):
        super().make_train_function(force)

    def make_test_function(self, force=False):
        super().make_test_function(force)


class Counted(keras.layers.Dense):
    """Counts its calls in a variable that Keras does not track."""

    def __init__(self, units: int):
        super().__init__(units)
        self.calls = tf.Variable(0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA, name="calls")

    def call(self, inputs):
        self.calls.assign_add(1)
        return super().call(inputs)


def error_of(attempt: Callable[[], Any]) -> str:
    """Returns the error of an attempt; "" if there is none."""
    try:
        attempt()
    except (ValueError, RuntimeError, ArithmeticError, IndexError, tf.errors.InvalidArgumentError) as error:
        return str(error)
    return ""


def refused(cluster: Cluster) -> list[tuple[str, str]]:
    """Makes calls with models and data that are not supported.

    Returns:
        For each call: a pattern for what its error must name (argument, method, field or number), and the error.
    """
    found = []

    def refuses(words: str, call: Callable[..., Any], *data: Any, **keywords: Any) -> None:
        found.append((words, error_of(functools.partial(call, *data, **keywords))))

    def made(build: Callable[[], keras.Model], **keywords: Any) -> keras.Model:
        with cluster.scope():
            return compiled(build(), **{"optimizer": "sgd", "loss": "mse"} | keywords)

    def own() -> keras.Model:
        return made(lambda: own_steps.Improper(own_steps.applies))

    def given(model: keras.Model, **attributes: Any) -> keras.Model:
        for name, value in attributes.items():
            setattr(model, name, value)
        return model

    def of_words() -> keras.Model:
        layers = [keras.layers.Embedding(20, 3, mask_zero=True), keras.layers.GRU(2)]
        return keras.Sequential([keras.Input((None,)), *layers])

    def two_outputs() -> keras.Model:
        inputs = keras.Input((6,))
        return keras.Model(inputs, [keras.layers.Dense(2)(inputs), keras.layers.Dense(2)(inputs)])

    def apply_of_object() -> keras.Model:
        model = simple()
        model.optimizer.apply = functools.partial(model.optimizer.apply)
        return model

    def fit_by_other_optimizer() -> None:
        with cluster.scope():
            model, other = simple(), keras.optimizers.Adam()
        fit(model, X, LABELS)
        model.optimizer = other
        fit(model, X, LABELS)

    def fit_with_other_replicas() -> None:
        with cluster.scope():
            model = simple()
        cluster.strategy.experimental_local_results(model.weights[0].value)[-1].assign_add(tf.ones([6, 8]))
        fit(model, X, LABELS)

    outside, counting = simple(), given(own(), steps=tf.Variable(0))
    with cluster.scope():
        # An error within a step, as of data that end, leaves replicas that differ: `fresh` has seen none.
        good, fresh, uncompiled, applying = simple(), simple(), dense(3), apply_of_object()
        functions = compiled(OwnFunctions([keras.Input((6,)), keras.layers.Dense(3)]))
        predicting = given(simple(), make_predict_function=len)
    preprocessing = given(simple(), preprocessor=len, preprocess_samples=len)
    of_vectors = made(lambda: dense(3), loss=keras.losses.MeanSquaredError(reduction=None))
    frozen = made(lambda: given(dense(3), trainable=False))
    counted = made(lambda: keras.Sequential([keras.Input((6,)), Counted(3)]))
    dataset = tf.data.Dataset.from_tensor_slices((X, LABELS))
    ragged = tf.data.Dataset.from_tensor_slices((tf.ragged.constant([[1], [2, 3]]), TARGETS[:2])).batch(2)

    def fit(model: Any, *data: Any, **keywords: Any) -> None:
        tfdist.fit(cluster, model, *data, **{"verbose": 0} | keywords)

    rows = dataset.batch(8, drop_remainder=True)
    hidden_rows = rows.map(lambda x, y: (x, tf.boolean_mask(y, y >= 0)))
    refuses(r"Sequential .* outside of cluster\.scope\(\)", fit, outside, X, LABELS)
    refuses(r"model\.compile\(", fit, uncompiled, X, LABELS)
    refuses(r"reduction=None", fit, of_vectors, X, X[:, :3])
    refuses(r"all 4 are frozen", fit, frozen, X, X[:, :3])
    refuses(r"`loss`", fit, made(lambda: dense(3), loss=None), X, LABELS)
    refuses(r"metrics=\['accuracy'\]", fit, made(lambda: dense(3), loss_weights=["accuracy"]), X, X[:, :3])
    refuses(r"OwnFunctions .* make_train_function", fit, functions, X, LABELS)
    refuses(r"OwnFunctions .* make_test_function", tfdist.evaluate, cluster, functions, X, LABELS)
    refuses(r"Sequential .* make_predict_function", tfdist.predict, cluster, predicting, X)
    refuses(r"^\w+\.apply ", fit, applying, X, LABELS)
    refuses(r"Sequential\.preprocessor .* tfdist\.run", fit, preprocessing, X, LABELS)
    refuses(r"^model\.optimizer .* Adam", fit_by_other_optimizer)
    refuses(r"kernel[\s\S]*not compared before\. .*ended early.* again", fit_with_other_replicas)
    refuses(r"no examples", tfdist.predict, cluster, good, [])
    refuses(r"^The data of predict .*\(8, 6\)", tfdist.predict, cluster, good, hidden_rows)
    refuses(r"^test_step .* '(?i:sgd)\w*'", tfdist.evaluate, cluster, own(), X, TARGETS)
    refuses(r"Improper\.steps .* cluster\.scope\(\)", fit, counting, X, TARGETS)
    refuses(r"calls \(\S+\.py:\d+: ", fit, counted, X, X[:, :3])
    refuses(r"run_eagerly=True", fit, made(of_words, run_eagerly=True), ragged)
    refuses(r"^tfdist\.fit\(.*`cluster` .*: NoneType", tfdist.fit, None, good, X, LABELS)
    refuses(r"^tfdist\.fit\(.*`cluster` .* Sequential", tfdist.fit, good, X, LABELS)
    refuses(r"^tfdist\.evaluate\(.*`model` .* ndarray", tfdist.evaluate, cluster, X, LABELS)
    refuses(r"'x' sizes: 53\s+'y' sizes: 9", fit, good, X, LABELS[:9])
    refuses(r"^validation_data: ", fit, good, X, LABELS, validation_data=(X, LABELS[:9]))
    refuses(r"loss=.* validation_data .* \(x, y\)", fit, good, X, LABELS, validation_data=X)
    refuses(r"validation_split .* 1\.5", fit, good, X, LABELS, validation_split=1.5)
    refuses(r"validation_split.* .*Dataset", fit, good, dataset.batch(8), validation_split=0.1)
    refuses(r"numpy\.array\(", fit, good, X.tolist(), LABELS)
    refuses(r"dtype: object", fit, good, X.astype(object), LABELS)
    refuses(r"\(x, y, sample_weight\).* str", fit, good, iter(["text", "text"]), steps_per_epoch=2)
    refuses(r"single examples", fit, good, tf.data.Dataset.range(9))
    refuses(r"Dataset .* y", fit, good, dataset.batch(8), LABELS)
    refuses(r"loss=.* pass y", fit, good, X)
    refuses(r"y=None", fit, good, X, sample_weight=WEIGHTS)
    refuses(r"class_weight or sample_weight", fit, good, X, LABELS, class_weight={0: 2.0}, sample_weight=WEIGHTS)
    refuses(r"^class_weight ", fit, good, dataset.map(lambda x, y: x).batch(8), class_weight={0: 2.0})
    refuses(r"^class_weight .* 2 arrays", fit, made(two_outputs), X, [TARGETS] * 2, class_weight={0: 1.0})
    refuses(r"steps_per_epoch", fit, good, dataset.batch(8).repeat())
    refuses(r"generator .*: pass steps_per_epoch", fit, good, iter([(X, LABELS)]))
    refuses(r"PyDataset\.__len__", fit, good, keras.utils.PyDataset())
    # The latter is all that Keras 3.12 says.
    refuses(r"at least one batch|list index out of range", fit, good, iter([]), steps_per_epoch=2)
    refuses(r"an epoch of 9 steps", fit, good, iter([(X, LABELS)] * 3), steps_per_epoch=9)
    refuses(r"no examples", tfdist.predict, cluster, good, X[:0])
    refuses(r"value 6, .* shape \(\w+, 5\)", tfdist.evaluate, cluster, good, X[:, :5], LABELS)
    refuses(r"^y\[\d+\] has the label 3, .* 3 outputs", fit, fresh, X, LABELS + 1)
    refuses(r"epochs=0", fit, good, X, LABELS, epochs=0)
    refuses(r"epochs='3'", fit, good, X, LABELS, epochs="3")
    refuses(r"batch_size .* 0", tfdist.evaluate, cluster, good, X, LABELS, batch_size=0)
    refuses(r"batch_size .* 16\.5", fit, good, X, LABELS, batch_size=16.5)
    refuses(r"^workdir .* 3$", fit, good, X, LABELS, workdir=3)
    refuses(r"^workdir='gs:/bucket/run'", fit, good, X, LABELS, workdir=pathlib.Path("gs://bucket/run"))
    return found


def not_finite(cluster: Cluster, *names: str) -> dict[str, str]:
    """Returns the errors for data with a value that is not finite, by kind of data, and for a rate that is too high.

    Args:
        cluster: what the workers are.
        *names: the keys of `attempts` that are run.
    """
    x, weights = X.copy(), WEIGHTS.copy()
    x[37, 4], weights[12] = np.nan, np.inf

    def attempt(*data: Any, build: Callable[[], keras.Model] = simple, **keywords: Any) -> None:
        with cluster.scope():
            model = build()
        tfdist.fit(cluster, model, *data, epochs=2, verbose=0, **{"batch_size": 8} | keywords)

    def diverging() -> keras.Model:
        return compiled(dense(2), keras.optimizers.SGD(1e20), "mse")

    batches = tf.data.Dataset.from_tensor_slices((x, LABELS)).batch(8)

    attempts = {
        "array": lambda: attempt(x, LABELS),
        "weights": lambda: attempt(X, LABELS, sample_weight=weights),
        "batches": lambda: attempt(batches, batch_size=None),
        "rate": lambda: attempt(X, TARGETS, build=diverging),
    }
    return {name: error_of(attempts[name]) for name in names}


def assert_close(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Asserts that two results of `run` agree, and that the first has left no patch behind."""
    assert list(ours["history"]) == list(theirs["history"]) and ours["left_patched"] == []
    for part in ("history", "weights", "evaluated", "predicted"):
        numbers = (keras.tree.flatten(one[part]) for one in (ours, theirs))
        np.testing.assert_allclose(*numbers, rtol=1e-5, atol=1e-5, err_msg=part)


def refused_steps(cluster: Cluster) -> list[tuple[str, str]]:
    """As `refused`, for steps that cannot be distributed; on several replicas."""
    found = []

    def refuses(words: str, build: Callable[[], keras.Model], **keywords: Any) -> None:
        with cluster.scope():
            model = build()
            model.compile(**{"optimizer": "sgd"} | keywords)
        fit = functools.partial(tfdist.fit, cluster, model, X, TARGETS, batch_size=16, verbose=0)
        found.append((words, error_of(fit)))

    def improper(step: Callable[..., Any]) -> Callable[[], keras.Model]:
        return functools.partial(own_steps.Improper, step)

    def normalised() -> keras.Model:
        layers = [keras.Input((6,)), keras.layers.BatchNormalization(synchronized=True), keras.layers.Dense(2)]
        return keras.Sequential(layers)

    own_steps.FOREIGN["optimizer"] = keras.optimizers.SGD()
    applied = r"optimizer .* in \S+own_steps\.py:\d+: model\.optimizer\.apply\(gradients"
    by_xla = r"jit_compile=True.* 'batch_normalization\w*' .* synchronized=False"
    refuses(r"Improper\.train_step .* model/\S+kernel", improper(own_steps.assigns))
    refuses(applied, improper(own_steps.repeats))
    refuses(r"Improper\.train_step .* 'losses' has shape \(2,\)", improper(own_steps.returns_vector))
    refuses(r"Improper\.train_step .*Tensor", improper(own_steps.returns_tensor))
    refuses(r"'(?i:sgd)\w*' of Improper .* cluster\.scope\(\)", improper(own_steps.applies_foreign))
    refuses(by_xla, normalised, loss="mse", jit_compile=True)
    return found


def unbuilt(cluster: Cluster) -> float:
    """Predicts with a model that is not built; returns the largest difference from the product with its weights."""
    with cluster.scope():
        model = keras.Sequential([keras.layers.Dense(3)])
    x = RANDOM.normal(size=(11, 4)).astype(np.float32)
    found = tfdist.predict(cluster, model, x, batch_size=8, verbose=0)
    kernel, bias = model.get_weights()
    return float(np.abs(found - (x @ kernel + bias)).max())


def chief_first(cluster: Cluster, directory: pathlib.Path) -> dict[str, Any]:
    """Weights that the chief saves and all workers load, a failure of the chief, and what a block may not do."""
    initial, found, ran = directory / "initial.weights.h5", {}, []
    with cluster.scope():
        normal = keras.layers.Normalization()
        normal.adapt(X)
        words = keras.layers.StringLookup(output_mode="multi_hot")
        words.adapt([["red", "green"], ["blue", "red"]])
        model = compiled(keras.Sequential([keras.Input((6,)), normal, keras.layers.Dense(3, "softmax")]), "sgd")
    lookup = keras.layers.StringLookup(vocabulary=["red", "green", "blue"], output_mode="one_hot")
    with cluster.chief_first():
        if cluster.is_chief:
            time.sleep(0.5)
            model.save_weights(initial)
        found["is_there"] = initial.exists()
    for _ in range(2):  # Twice from the same weights.
        model.load_weights(initial)
        colours = tf.data.Dataset.from_tensor_slices((X, np.array(["red", "green", "blue"])[LABELS])).batch(16)
        colours = colours.map(lambda x, colour: (x, tf.argmax(lookup(colour), axis=-1) - 1))
        found.setdefault("losses", []).append(tfdist.fit(cluster, model, colours, verbose=0).history["loss"])
    found["words"] = words([["red", "blue"]]).numpy().tolist()

    def fails() -> None:
        with cluster.chief_first():
            ran.append(cluster.rank)
            raise OSError("No space left on device.")

    def in_block(action: Callable[[], Any]) -> None:
        with cluster.chief_first():
            action()

    def build() -> None:
        with cluster.scope():
            dense(2)

    attempts = {"fails": fails, "builds": lambda: in_block(build), "communicates": lambda: in_block(cluster.barrier)}
    attempts["exits"] = lambda: in_block(lambda: sys.exit(3))
    for name, attempt in attempts.items():
        try:
            attempt()
        except (Exception, SystemExit) as error:
            found[name] = f"{type(error).__name__}: {error}"
    cluster.barrier()
    return found | {"ran": ran, "ranks": cluster.all_gather([cluster.rank])[:, 0].tolist()}


class InManyTypes(keras.layers.Layer):
    """Rows [n, 6] as bfloat16, booleans, bytes, complex numbers and strings."""

    def call(self, x):
        x = tf.convert_to_tensor(x)
        lengths = tf.cast(tf.abs(x[:, 0]) * 5, tf.int32)
        return {
            "bfloat16": tf.cast(x, tf.bfloat16),
            "bool": x > 0,
            "uint8": tf.cast(tf.abs(x) * 50, tf.uint8),
            "complex64": tf.complex(x, -x),
            "text": tf.strings.substr(tf.fill(tf.shape(lengths), "a\0bcdefghijklmnopq\0"), 0 * lengths, lengths),
        }


def of_many_types(cluster: Cluster) -> dict[str, Any]:
    """Trains bfloat16 variables, predicts outputs of many types, and gives variables of many types the chief's initial
    and later values."""
    keras.config.set_dtype_policy("bfloat16")
    try:
        with cluster.scope():
            model = compiled(
                dense(3), keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            )
            inputs = keras.Input((6,), dtype="float32")
            shown = keras.Model(inputs, InManyTypes(dtype="float32")(inputs))
            variables = [
                keras.Variable(lambda shape, dtype: tf.cast(tf.fill(shape, 0.5 + cluster.rank), dtype), (2,), dtype)
                for dtype in ("bfloat16", "uint8", "bool", "float32")
            ]
        initial = [variable.numpy().astype(float).tolist() for variable in variables]
        for variable in variables:
            variable.assign(tf.cast([1 - cluster.rank, 1], variable.dtype))
        cluster.broadcast_variables(variables)
        history = tfdist.fit(cluster, model, X, LABELS, batch_size=16, epochs=2, verbose=0).history
    finally:
        keras.config.set_dtype_policy("float32")
    outputs = tfdist.predict(cluster, shown, X[:7], batch_size=4, verbose=0)
    alone = shown(np.float32(X[:7]))
    return {
        "initial": initial,
        "later": [variable.numpy().astype(float).tolist() for variable in variables],
        "loss": history["loss"],
        "weights": sorted({tf.as_dtype(variable.value.dtype).name for variable in model.weights}),
        "predicted": [tf.as_dtype(tfdist.predict(cluster, model, X, verbose=0).dtype).name],
        "types": {name: tf.as_dtype(one.dtype).name for name, one in outputs.items()},
        "equal": {name: bool(np.all(one == alone[name].numpy())) for name, one in outputs.items()},
        "lengths": [len(text) for text in outputs["text"]],
    }


def measure(names: Sequence[str], devices: int, directory: pathlib.Path) -> dict[str, Any]:
    """Runs cases and trials; returns their results by name. Names that begin with "keras:" are for Keras' own fit."""
    cluster = tfdist.connect(c.ClusterOptions(logical_devices=devices, connect_seconds=240))
    cases = {case.__name__: case for case in CASES}
    trials = {
        "refused": lambda: refused(cluster),
        "not_finite": lambda: not_finite(cluster, "array", "rate"),
        "not_finite_slow": lambda: not_finite(cluster, "batches", "weights"),
        "refused_steps": lambda: refused_steps(cluster),
        "unbuilt": lambda: unbuilt(cluster),
        "of_many_types": lambda: of_many_types(cluster),
        "chief_first": lambda: chief_first(cluster, directory),
    }
    results = {}
    for name in names:
        keras_own, _, case = name.rpartition(":")
        results[name] = trials[name]() if name in trials else run(cases[case], None if keras_own else cluster)
    return results
