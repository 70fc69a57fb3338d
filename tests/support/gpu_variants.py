"""The configs, variants of a step and compiled models of the GPU audit, on logical devices that stand for GPUs."""

import contextlib
import pathlib
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import gpu_audit
import keras
import numpy as np
import own_steps
import shipped
import tensorflow as tf

from tfdist import config as c
from tfdist.cluster import interruption
from tfdist.cluster.cluster import Cluster
from tfdist.cluster.control.heartbeat_monitor import HeartbeatMonitor
from tfdist.cluster.discovery.roster import Roster
from tfdist.keras_fit import make_run, patches
from tfdist.keras_fit.adapters import base, make_adapter
from tfdist.keras_fit.own_step import own_setup
from tfdist.training import execution, setup
from tfdist.training.run import Run

SHIPPED = tuple(shipped.IMAGES)


def _small(**changes: Any) -> c.Config:
    """Returns a config of a small convolutional network; `changes` replaces fields: `train__steps` is `train.steps`."""
    config = shipped.smaller("digits")
    for path, value in changes.items():
        *sections, field = path.split("__")
        section = config
        for one in sections:
            section = getattr(section, one)
        setattr(section, field, value)
    return config


def _finished(config: c.Config) -> c.Config:
    """Normalises on the device."""
    config.data.prepare = {"target": "tfdist.zoo.prepare:image_bytes", "pad": 2, "flip": True}
    config.data.finish = {"target": "tfdist.zoo.prepare:normalised", "mean": [0.5], "std": [0.25]}
    config.train.micro_batches = 2
    return config


_ZOO = "tfdist.configs.networks.optimizers:"
_CNN = {"target": "tfdist.zoo.models:small_cnn", "num_classes": 10}
# name -> config of a variant of the step.
VARIANTS: dict[str, Callable[[], c.Config]] = {
    "float16": lambda: _small(train__precision="float16"),
    "bfloat16": lambda: _small(train__precision="bfloat16"),
    "micro_batches": lambda: _small(train__micro_batches=2),
    "clip": lambda: _small(train__clip_norm=1.0),
    "ema": lambda: _small(optimizer={"target": "keras.optimizers:SGD", "momentum": 0.9, "use_ema": True}),
    "skip": lambda: _small(train__nonfinite="skip"),
    "sync_batch": lambda: _small(model=_CNN | {"normalization": "sync_batch"}),
    "group": lambda: _small(model=_CNN | {"group_size": 4}),
    "batch": lambda: _small(model=_CNN),
    "dropout": lambda: _small(model={"target": "lab:Dropouts"}),
    "dropout_micro_batches": lambda: _small(model={"target": "lab:Dropouts"}, train__micro_batches=2),
    "l2": lambda: _small(model=_CNN | {"l2": 1e-4}),
    "compressed": lambda: _small(communication__dtype="float16"),
    "adam": lambda: _small(optimizer={"target": "keras.optimizers:Adam"}),
    "adamw": lambda: _small(optimizer={"target": "keras.optimizers:AdamW"}),
    "lookahead_sgd": lambda: _small(optimizer={"target": f"{_ZOO}lookahead_sgd"}),
    "muon": lambda: _small(optimizer={"target": f"{_ZOO}muon"}),
    "settable": lambda: _small(
        learning_rate=c.LearningRate(schedule={"target": "tfdist.zoo.schedules:settable"}),
    ),
    "one_cycle": lambda: _small(learning_rate__schedule={"target": "tfdist.zoo.schedules:one_cycle"}),
    "step_schedule": lambda: _small(learning_rate__schedule={"target": "tfdist.zoo.schedules:step"}),
    "range_test": lambda: _small(learning_rate__schedule={"target": "tfdist.zoo.schedules:range_test"}),
    "noise": lambda: _small(model={"target": "lab:noise"}),
    "cosine": lambda: _small(learning_rate__schedule={"target": "tfdist.zoo.schedules:cosine"}),
    "constant": lambda: _small(learning_rate__schedule={"target": "tfdist.zoo.schedules:constant"}),
    "finish": lambda: _finished(shipped.smaller("mlp")),
    # Defects that the audit must find.
    "timed": lambda: _small(report__step_times=True),
}


def _layers(policy: str, examples: int = 64, tokens: str = "int64") -> tuple[Any, ...]:
    """Returns a compiled model of Keras' own layers, and data of two inputs with weights; `tokens`: dtype of one."""
    keras.config.set_dtype_policy(policy)
    layers = keras.layers
    image, token = keras.Input((8, 8, 1), name="image"), keras.Input((4,), name="token", dtype=tokens)
    hidden = layers.Conv2D(8, 3, activation="relu", kernel_regularizer="l2")(image)
    hidden = layers.BatchNormalization()(layers.BatchNormalization(synchronized=True)(hidden))
    hidden = layers.GlobalAveragePooling2D()(layers.MaxPooling2D()(hidden))
    words = layers.LayerNormalization()(layers.Flatten()(layers.Embedding(20, 4)(token)))
    hidden = layers.Dropout(0.5)(layers.Concatenate()([hidden, words]))
    model = keras.Model({"image": image, "token": token}, layers.Dense(10, dtype="float32")(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss=loss, metrics=["accuracy"], weighted_metrics=["accuracy"])
    keras.config.set_dtype_policy("float32")
    inputs = {"image": np.ones((examples, 8, 8, 1), np.float32), "token": np.ones((examples, 4), tokens)}
    return model, inputs, np.arange(examples) % 10, np.ones(examples, np.float32)


def _own_steps() -> tuple[Any, ...]:
    """Returns a compiled model with steps of its own, and its data."""
    case = own_steps.vae()
    return case["build"](), *case["data"], None, None


# name -> a compiled model of a script, and its x, y and weights; called in the scope.
COMPILED: dict[str, Callable[[], tuple[Any, ...]]] = {
    "compiled": lambda: _layers("float32"),
    "compiled_float16": lambda: _layers("mixed_float16"),
    "compiled_bfloat16": lambda: _layers("mixed_bfloat16"),
    "compiled_tokens": lambda: _layers("float32", tokens="int32"),
    # The last batch has one example: a replica has none.
    "compiled_uneven": lambda: _layers("float32", 65),
    "own_steps_uneven": _own_steps,
}


def _compiled_run(cluster: Cluster, model: keras.Model, data: list[Any], stack: contextlib.ExitStack) -> Run:
    """Makes the run of `tfdist.fit` for a compiled model, as it runs on GPUs."""
    own_step = own_setup.overrides(model)
    options = base.DataOptions(batch_size=None if own_step else 8)
    adapters = {kind: make_adapter.make_data_adapter(*data, options) for kind in ("train", "test")}
    scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    config = c.Config(
        model={"class": type(model).__name__},
        data=c.Data(source={"kind": "data"}, batch_size=adapters["train"].batch_size),
        train=c.Train(epochs=1, precision="float16" if scaled else "float32"),
        report=c.Report(step_times=False),
    )
    stop = interruption.StopRequest()
    return make_run.make_run(cluster, model, config, adapters, None, 0, stop, stack)


def make_config(name: str) -> c.Config:
    """Returns the config `name` as it runs on GPUs without XLA."""
    config = shipped.smaller(name) if name in SHIPPED else VARIANTS[name]()
    if config.report.step_times is None:
        config.report.step_times = False
    config.train.xla = False  # The audit does not look into a program of XLA.
    return config


def make_cluster(num_replicas: int) -> Cluster:
    """Returns a cluster of one worker with replicas on the logical devices after the first, which stand for GPUs."""
    return Cluster(
        strategy=tf.distribute.MirroredStrategy([f"/CPU:{1 + index}" for index in range(num_replicas)]),
        rank=0,
        num_workers=1,
        num_replicas=num_replicas,
        roster=Roster(),
        monitor=HeartbeatMonitor(rank=0, members=[], options=c.ClusterOptions()),
        implementation="nccl",
    )


def audited(cluster: Cluster, name: str) -> dict[str, list[list]]:
    """Returns the findings of the audit in a training and in an evaluation step: [kind, source, reader, how often]."""
    if name not in COMPILED:
        return _audited(setup.build_run(make_config(name), pathlib.Path(tempfile.mkdtemp()), cluster))
    with cluster.scope():
        model, *data = COMPILED[name]()
    with patches.patch_for_run(model) as stack:
        return _audited(_compiled_run(cluster, model, data, stack))


def _audited(run: Run) -> dict[str, list[list]]:
    steps = {"training": (execution.make_train_runner(run), run.feed.training(0, 1))}
    if run.feed.evaluation is not None:
        steps["evaluation"] = (execution.make_evaluation_runner(run), run.feed.evaluation()[0])
    found = {}
    for name, (runner, dataset) in steps.items():
        run_steps = runner.run_steps
        iterator = run.cluster.distribute(dataset)
        # No step is run: the graph is there before the loop starts.
        arguments = (iterator, tf.constant(0), tf.zeros([], tf.float64), tf.constant(0))
        graph = gpu_audit.executed_graph(lambda run_steps=run_steps, arguments=arguments: run_steps(*arguments))
        counts = gpu_audit.count(gpu_audit.audit(graph))
        found[name] = [[*key, number] for key, number in sorted(counts.items())]
    return found


def audit_all(replicas: int, names: Sequence[str]) -> dict[str, dict[str, list[list]]]:
    """Returns what the audit finds in the configs `names` on this number of replicas; needs its own process."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration() for _ in range(1 + replicas)]
    tf.config.set_logical_device_configuration(cpu, logical)
    cluster = make_cluster(replicas)
    return {name: audited(cluster, name) for name in names}
