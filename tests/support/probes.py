"""Measurements in worker processes: each returns arrays, which the tests compare with expected values.

A pytest process cannot do this: the number of logical devices is fixed with its first TensorFlow operation.
"""

import dataclasses
import functools
import json
import os
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import forked
import keras
import lab
import numpy as np
import on_workers
import small_runs
import tensorflow as tf
from launching import run_all
from tensorflow.python.eager import context

from tfdist import config as c
from tfdist.checkpoint import format as checkpoint_format
from tfdist.checkpoint import restore
from tfdist.cluster import strategy
from tfdist.cluster.cluster import Cluster
from tfdist.cluster.devices import replicas as replicas_lib
from tfdist.configs.laboratory.local_sgd import rounds
from tfdist.configs.networks import optimizers
from tfdist.keras_fit.adapters import base, make_adapter, same_data
from tfdist.training import checkpointing, execution, loop, opening
from tfdist.training import run as run_lib
from tfdist.training.step import multi_step, train_step
from tfdist.training.step.updates import all_reduce, stages
from tfdist.zoo import schedules, sources

Arrays = dict[str, np.ndarray]
# One gradient per variable, for each of two replicas: of about 1, of very different sizes, a scalar.
DENSE = [
    [np.float32(np.random.default_rng(replica).standard_normal((3, 4))) for replica in range(2)],
    [np.float32([1e-3, -1.0, 30.0, 250.0, 1e-5]) * np.float32(1 + 0.37 * replica) for replica in range(2)],
    [np.float32(0.25 - replica) for replica in range(2)],
]
# Rows of a table of 6 x 2 and what is added to them: each replica's sparse gradient.
SPARSE = [([0, 4, 4], [[1, 2], [3, 4], [5, 6]]), ([4, 1], [[10, 20], [30, 40]])]
TOKENS = np.random.default_rng(0).integers(0, 20, (96, 3))
BATCH = 24
SEVERAL_WORKERS = "TF_CONFIG" in os.environ
# Of the runs.
DIRECTORY: pathlib.Path | None = None


def measure(
    directory: pathlib.Path, *names: str, workers: int = 1, devices: int = 1, unlike: bool = False
) -> list[Arrays]:
    """Runs the probes `names` on `workers` processes of `devices` replicas; returns what each worker has measured.

    If `unlike`, the last worker multiplies matrices with the instructions of an older processor.
    """

    def run(commands: list[list[str]], environments: list[dict[str, str]]) -> None:
        more = {"ONEDNN_MAX_CPU_ISA": "SSE41"} if unlike else {}
        run_all(commands, [*environments[:-1], environments[-1] | more], timeout=900)

    return on_workers.call(run_probes, names, devices, directory, workers=workers, run=run)


def forget() -> None:
    """Resets Keras' names and, with one worker, TensorFlow's context: this process can then make another strategy."""
    keras.utils.clear_session()
    if not SEVERAL_WORKERS:
        # The next strategy has the same collective ids as the last one, which TensorFlow still holds.
        context._reset_context()
        # They are on again. For the graph of several ResNets they take more time than all the rest.
        forked.disable_graph_optimizers()


def start(options: c.ClusterOptions, **changes) -> run_lib.Run:
    """Makes a run of a linear model on the digits; `changes` replaces parts of its config."""
    forget()
    parts = {
        "data": small_runs.data(batch_size=BATCH),
        "optimizer": {"target": "keras.optimizers:SGD"},
        "learning_rate": c.LearningRate(peak=1.0),
        "cluster": options,
    }
    assert DIRECTORY is not None
    return small_runs.start(DIRECTORY / f"on{options.logical_devices}", **parts | changes)


def run_steps(run: run_lib.Run, last: int, first: int = 0) -> dict[str, float]:
    """Runs the steps [first, last) in one call; returns the means over all examples."""
    iterator = run.feed.open_training(first, last)
    call = execution.make_train_runner(run).run_steps
    vector, _ = call(iterator, tf.constant(last - first, tf.int32), tf.zeros([], tf.float64))
    return run.objective.results(dict(zip(run.context.names_of_execution, vector.numpy().tolist(), strict=True)))


def weights(run: run_lib.Run) -> Arrays:
    return {
        name: array for name, array in checkpoint_format.snapshot(run.variables).items() if name.startswith("model/")
    }


def on_each(cluster: Cluster, value) -> np.ndarray:
    """A per-replica value or a variable as this worker's replicas hold it: [local replicas, ...]."""
    return np.stack(
        [tf.convert_to_tensor(local).numpy() for local in cluster.strategy.experimental_local_results(value)]
    )


def per_replica(cluster: Cluster, values: list) -> tf.Tensor:
    """Gives replica i `values[i]`."""
    distribute = cluster.strategy.experimental_distribute_values_from_function
    return distribute(lambda replica: tf.constant(values[replica.replica_id_in_sync_group]))


def sums(options: c.ClusterOptions) -> Arrays:
    """The sum over replicas of dense and absent gradients, in each type on the wire, and in packs."""
    forget()
    cluster = strategy.connect(options)
    dense = [per_replica(cluster, values) for values in DENSE]
    found = {}
    for dtype, pack in (("float32", 0), ("float32", 64), ("float16", 0), ("bfloat16", 0)):

        def replica(dense, dtype=dtype, pack=pack):
            total = all_reduce.sum_over_replicas(
                [None, *dense, None], c.Communication(dtype=dtype, bytes_per_pack=pack)
            )
            assert total[0] is None and total[-1] is None and len(total) == 5
            return total[1:-1]

        total = tf.function(lambda replica=replica: cluster.strategy.run(replica, args=(dense,)))()
        for name, value in zip(("matrix", "vector", "scalar"), total, strict=True):
            found[f"{dtype}/{pack}/{name}"] = on_each(cluster, value)
    exact = per_replica(cluster, [np.array([1.0, 2.0**-40 * (replica + 1)]) for replica in range(2)])
    mixed = tf.function(
        lambda: cluster.strategy.run(lambda: all_reduce.sum_over_replicas([dense[0], exact], c.Communication()))
    )
    found["float64"] = on_each(cluster, mixed()[1])
    return found


def lookups(options: c.ClusterOptions, *, dtype: str, pack: int = 0) -> Arrays:
    """The sum over replicas of a sparse gradient between dense and absent ones: its rows, their lookups, the others."""
    forget()
    cluster = strategy.connect(options)
    dense = [per_replica(cluster, values) for values in DENSE]
    rows = per_replica(cluster, [np.int64(rows) for rows, _ in SPARSE])
    values = per_replica(cluster, [np.float32(values) for _, values in SPARSE])

    def replica(dense, rows, values):
        # Replicas have different numbers of lookups, which are not known when the step is traced.
        values = tf.compat.v1.placeholder_with_default(values, [None, 2])
        rows = tf.compat.v1.placeholder_with_default(rows, [None])
        sparse = tf.IndexedSlices(values, rows, tf.constant([6, 2], tf.int64))
        given = [None, dense[0], sparse, *dense[1:], None]
        total = all_reduce.sum_over_replicas(given, c.Communication(dtype=dtype, bytes_per_pack=pack))
        assert total[0] is None and total[-1] is None and len(total) == 6
        return [total[1], total[2].values, total[2].indices, *total[3:-1]]

    total = tf.function(lambda: cluster.strategy.run(replica, args=(dense, rows, values)))()
    names = ("matrix", "rows", "lookups", "vector", "scalar")
    return {name: on_each(cluster, value) for name, value in zip(names, total, strict=True)}


def clipped(options: c.ClusterOptions) -> Arrays:
    """The sum, clipped as a step does it: below its norm, and not at all."""
    forget()
    cluster = strategy.connect(options)
    dense = [per_replica(cluster, values) for values in DENSE]

    def replica(dense, norm):
        return stages.clip([*all_reduce.sum_over_replicas(dense, c.Communication()), None], norm)[:-1]

    found = {}
    for norm in (0.5, 1e6):
        result = tf.function(lambda norm=norm: cluster.strategy.run(replica, args=(dense, norm)))()
        found |= {f"{norm}/{i}": on_each(cluster, value) for i, value in enumerate(result)}
    return found


def clipped_alike(options: c.ClusterOptions) -> Arrays:
    """A kernel of a million weights after a step with clipped gradients."""
    model = {"target": "lab:Dropouts", "width": 2**14, "depth": 1}
    run = start(options, train=c.Train(steps=20, clip_norm=1e-3), model=model)
    run_steps(run, 1)
    return {name: value for name, value in weights(run).items() if name.endswith("hidden0/kernel")}


def muon(options: c.ClusterOptions) -> Arrays:
    """Everything that Muon holds after 10 steps on all replicas, and a kernel after one step of this worker alone."""
    model = {"target": "tfdist.zoo.models:small_cnn", "num_classes": 10, "group_size": 4}
    muon = {"target": "tfdist.configs.networks.optimizers:muon"}
    run = start(options, model=model, optimizer=muon, train=c.Train(steps=20))
    run_steps(run, 10)
    found = {f"shared/{name}": array for name, array in checkpoint_format.snapshot(run.variables).items()}
    weights, gradient = np.float32(np.random.default_rng(0).normal(size=(2, 3, 3, 32, 64)))
    kernel = keras.Variable(weights)
    optimizers.muon(schedules.constant(0.1, total_steps=1)).apply([tf.constant(gradient)], [kernel])
    return found | {"alone": keras.ops.convert_to_numpy(kernel)}


# Name -> optimizer, and options of training and of communication, of a step that reads few rows of a table.
ADAM = {"target": "keras.optimizers:Adam"}
TABLES = {
    "plain": ({"target": "keras.optimizers:SGD"}, {}, {}),
    "micro": ({"target": "keras.optimizers:SGD"}, {"micro_batches": 2}, {}),
    "adam": (ADAM, {"precision": "float16", "xla": True}, {}),
    "adam, dense": (ADAM, {}, {"sparse_as_dense": True}),
}


def tokens(split: str) -> object:
    """A source of the rows that a step reads."""
    return sources.arrays(split, splits={"train": {"token": TOKENS, "label": np.zeros(len(TOKENS), np.int64)}})


def ones(split: str) -> object:
    """A source of equal examples."""
    splits = {"train": {"image": np.ones((96, 64), np.float32), "label": np.zeros(96, np.int64)}}
    return sources.arrays(split, splits=splits)


def embedding(options: c.ClusterOptions, *, name: str) -> Arrays:
    """One step that reads few rows of a table, beside a weight that nothing depends on; `name` is one of `TABLES`."""
    optimizer, training, communication = TABLES[name]
    run = start(
        options,
        model={"target": "lab:Table", "rows": 30, "columns": 4},
        data=c.Data(
            source={"target": f"{__name__}:tokens"},
            prepare={"target": "tfdist.zoo.prepare:identity"},
            evaluation_split=None,
            batch_size=BATCH,
            shuffle=False,
        ),
        objective={"target": "lab:sum_of_outputs", "inputs": "token"},
        train=c.Train(steps=20, **training),
        communication=c.Communication(**communication),
        optimizer=optimizer,
    )
    found = {f"before/{key}": value for key, value in weights(run).items()}
    run_steps(run, 1)
    return found | {f"after/{key}": value for key, value in weights(run).items()}


def loss_scale(options: c.ClusterOptions) -> Arrays:
    """Steps in float16; the third overflows on replica 1 alone: [step, local replica, ...] of each value."""
    run = start(options, train=c.Train(steps=20, precision="float16"), learning_rate=c.LearningRate(peak=1e-3))
    cluster, step_context = run.cluster, run.context
    step_context.loss_scale.growth_steps = 4
    local = BATCH // cluster.num_replicas
    images = np.random.default_rng(0).random((2, local, 8, 8, 1)).astype(np.float32)
    # 2e4 itself fits into float16; its product with a gradient that is scaled by 2**15 does not.
    large = np.stack([images[0], np.float32(2e4) * images[1]])
    label = per_replica(cluster, [np.arange(local) % 10] * 2)

    @tf.function
    def one_step(image, label):
        cluster.strategy.run(
            functools.partial(train_step.train_step, step_context), args=({"image": image, "label": label},)
        )

    def observe():
        return {
            "scale": on_each(cluster, step_context.loss_scale.value),
            "good_steps": on_each(cluster, step_context.loss_scale.good_steps),
            "kernel": on_each(cluster, step_context.model.trainable_variables[0].value),
            "iterations": np.asarray(keras.ops.convert_to_numpy(step_context.optimizer.iterations)),
        }

    seen = [observe()]
    for overflows in (False, False, True, False, False, False, False, False):
        one_step(per_replica(cluster, list(large if overflows else images)), label)
        seen.append(observe())
    return {key: np.stack([each[key] for each in seen]) for key in seen[0]}


def statistics(options: c.ClusterOptions) -> Arrays:
    """Three steps of unsynchronised batch normalisation: what each replica sees, and the statistics that it holds."""
    run = start(options, model={"target": "lab:normalised", "num_classes": 10, "momentum": 0.9})
    images = [batch["image"] / 16 for batch in run.feed.training(0, 3).take(6)]  # As the step normalises them.
    run_steps(run, 3)
    norm = run.context.model.get_layer("norm")
    return {
        "images": np.stack(images).reshape(3, 2, BATCH // 2, 64),
        "mean": on_each(run.cluster, norm.moving_mean.value),
        "variance": on_each(run.cluster, norm.moving_variance.value),
        "saved mean": checkpoint_format.snapshot(run.variables)["model/norm/moving_mean"],
    }


def masks(options: c.ClusterOptions) -> Arrays:
    """The dropout masks of three steps, as replica -> [step, examples, features of both layers]."""
    seen: dict[int, list[np.ndarray]] = {}

    def note(replica, outputs):
        seen.setdefault(int(replica), []).append(np.array(outputs))
        return np.float32(0)

    def objective(model, batch, *, training):
        logits, dropped = model(batch["image"], training=training)
        loss = tf.reduce_sum(logits, axis=-1)
        if training:
            loss += tf.stop_gradient(tf.numpy_function(note, [replicas_lib.replica_id(), dropped], tf.float32))
        return {"loss": loss}

    globals()["noting"] = objective
    run = start(
        options,
        model={"target": "lab:only_dropout"},
        data=c.Data(
            source={"target": f"{__name__}:ones"},
            prepare={"target": "tfdist.zoo.prepare:identity"},
            evaluation_split=None,
            batch_size=BATCH,
        ),
        objective={"target": f"{__name__}:noting"},
    )
    run_steps(run, 3)
    return {str(replica): np.stack(values) for replica, values in seen.items()}


def traces(options: c.ClusterOptions) -> Arrays:
    """How often each compiled call was traced over 20 steps with intervals that do not divide one another."""
    run = start(
        options,
        report=c.Report(every=c.Every(steps=3), tensorboard=False),
        evaluation=c.Evaluation(every=c.Every(steps=4)),
        checkpoint=c.Checkpoint(every=c.Every(steps=5)),
        learning_rate=c.LearningRate(peak=0.1),
        data=c.Data(prepare={"target": "lab:darkened"}, batch_size=BATCH),
        objective={"target": "lab:bounded"},
    )
    lab.TRACED.clear()
    services, state = opening.open_run(run)
    loop.train_loop(services, state)
    checkpointing.close(services)
    runners = {"train": services.train_runner, "evaluation": services.evaluation_runner}
    functions = {"train": services.train_runner.run_steps, "evaluation": services.evaluation_runner.run_steps}
    counts = {name: np.array(one.experimental_get_tracing_count()) for name, one in functions.items()}
    prepared = {f"prepared for {name}": np.array(lab.TRACED.count(t)) for name, t in (("train", True), ("eval", False))}
    return counts | prepared | {"calls": np.array([runner.length.executions for runner in runners.values()])}


def collectives(options: c.ClusterOptions) -> Arrays:
    """Counts the collective operations in a step and in the rest of a call, for several `Communication` options."""
    run = start(options, model={"target": "lab:normalised", "num_classes": 10})
    iterator = run.cluster.distribute(run.feed.training(0, 1))
    found = {"bytes per pack": np.array(run.context.reduction.options.bytes_per_pack)}
    for name, communication in (
        ("one pack", c.Communication()),
        ("packs", c.Communication(bytes_per_pack=1024)),
        ("compressed", c.Communication(dtype="bfloat16")),
    ):
        reduction = dataclasses.replace(run.context.reduction, options=communication)
        step_context = dataclasses.replace(run.context, reduction=reduction)
        call = multi_step.make_multi_step_fn(step_context, functools.partial(train_step.train_step, step_context), True)
        graph = call.get_concrete_function(iterator, tf.constant(1, tf.int32), tf.zeros([], tf.float64)).graph
        definition = graph.as_graph_def()
        outside = [node.op for node in definition.node]
        inside = [node.op for function in definition.library.function for node in function.node_def]
        found[name] = np.array([_sums(inside), _sums(outside)])
    return found


def _sums(ops: list[str]) -> int:
    """Counts sums over the workers: collectives of TensorFlow, and packs of the ring, which are started and awaited."""
    assert ops.count("PyFuncStateless") % 2 == 0
    return sum(op.startswith("Collective") for op in ops) + ops.count("PyFuncStateless") // 2


def local_rounds(options: c.ClusterOptions) -> Arrays:
    """A fitted line after 4 rounds of local steps, on all replicas and on one; and after as many plain steps on one."""
    line = {
        "model": {"target": "tfdist.configs.networks.classic:line", "m": -1.0, "n": 2.0},
        "objective": {"target": "tfdist.configs.networks.classic:line_error"},
        "optimizer": {"target": "keras.optimizers:SGD", "momentum": 0.5},
        "learning_rate": c.LearningRate(peak=0.1),
    }
    source = {"target": "tfdist.configs.networks.classic:points", "m": 2.0, "n": 0.5, "noise": 0.3, "num_examples": 64}
    parts = {"source": source, "prepare": {"target": "tfdist.zoo.prepare:identity"}, "evaluation_split": None}
    alone = c.ClusterOptions(connect_seconds=options.connect_seconds)
    found = {}
    for name, cluster, batch, local, steps in (
        ("rounds", options, 16, 4, 4),
        ("alone", alone, 16, 2, 4),
        ("steps", alone, 8, 1, 8),
    ):
        data = c.Data(batch_size=batch, shuffle=False, **parts)
        run = start(cluster, **line, data=data, train=c.Train(steps=steps))
        run = run if name == "steps" else rounds.compose(run, local)
        means = run_steps(run, steps)
        arrays = checkpoint_format.snapshot(run.variables)
        found |= {f"{name}/{key}": value for key, value in arrays.items()} | {f"{name}/loss": np.array(means["loss"])}
        if name == "rounds":
            found |= {f"replicas/{v.path}": on_each(run.cluster, v.value) for v in run.context.optimizer.variables}
    return found


def restored(options: c.ClusterOptions) -> Arrays:
    """What a resumed run holds, and how often this worker opened the checkpoint's files for it."""
    run = start(options, optimizer={"target": "keras.optimizers:SGD", "momentum": 0.9})
    bits = np.random.default_rng(5).integers(0, 2**32, run.context.model.variables[0].shape, np.uint32)
    bits.flat[:2] = 0x80000000, 0x7FC00001  # -0.0, and a NaN with a payload.
    saved = checkpoint_format.snapshot(run.variables)
    name = next(name for name in saved if name.endswith("kernel"))
    saved[name] = bits.view(np.float32)
    callback = {"callbacks/Mine/values": np.arange(5.0)}
    opened = []
    sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
    if run.cluster.is_chief:
        run.workdir.mkdir(exist_ok=True)
        path = checkpoint_format.write(run.checkpoints, 7, saved | callback, {"best": float("inf")})
        own = checkpoint_format.verify(path)
    found = restore.broadcast_saved(run.cluster, own if run.cluster.is_chief else None)
    restore.restore(run.cluster, found, run.variables)
    (values,) = dict(restore.read(run.cluster, found, checkpoint_format.callback_names(found))).values()
    reads = sum("step-00000007/arrays.npz" in path for path in opened)
    after = checkpoint_format.snapshot(run.variables)
    assert {n: a.tobytes() for n, a in after.items()} == {n: a.tobytes() for n, a in saved.items()}
    assert restore.broadcast_saved(run.cluster, None) is None
    state = np.array([found.step, found.state["best"], values.sum()])
    return {"reads": np.array(reads), "state": state, "kernel": after[name].view(np.uint32)}


def other_data(options: c.ClusterOptions) -> Arrays:
    """The error of each worker if its data differ from those of worker 0, by the kind of difference."""
    cluster = strategy.connect(options)
    texts = [f"word {index}" for index in range(20)]
    strings, values = np.array(texts), np.float32(np.random.default_rng(0).normal(size=(20, 3)))
    columns = {"text": np.array([text.encode() for text in texts], object).reshape(20, 1), "age": values}
    dataset = tf.data.Dataset.from_tensor_slices((columns["text"].astype(bytes), strings)).batch(4)
    words = tf.constant(columns["text"])
    cases: dict[str, tuple[Any, Any]] = {"same": ({"text": words, "age": values}, tf.constant(strings))}
    cases["strings"] = (dataset, None)
    if cluster.rank == 1:
        strings, other = strings.copy(), values.copy()
        strings[19] = "another"
        other[0, 0] += 1
    else:
        other = values
    cases["last bits"] = (values * np.float32(1 + 1e-7 * cluster.rank), None)
    cases["content"] = ({"text": words, "age": values}, tf.constant(strings))
    cases["floats"] = ({"a": values, "b": other}, None)
    cases["size"] = ({"age": values[:, : 3 - cluster.rank]}, None)
    cases["examples"] = (values[: 20 - cluster.rank], None)
    found = {}
    for name, (x, y) in cases.items():
        data = make_adapter.make_data_adapter(x, y, None, base.DataOptions(batch_size=None if x is dataset else 4))
        try:
            same_data.check_same_data(cluster, data)
            found[name] = np.array("")
        except ValueError as error:
            found[name] = np.array(str(error))
    return found


def groups(options: c.ClusterOptions) -> Arrays:
    """The loss of 20 steps with statistics over groups of 16 of 48 examples, and the weights before and after."""
    model = {"target": "tfdist.zoo.models:small_cnn", "num_classes": 10, "group_size": 16}
    run = start(options, model=model, data=small_runs.data(), learning_rate=c.LearningRate(peak=0.02))
    before = {f"before {name}": array.copy() for name, array in weights(run).items()}
    return before | {"loss": np.array(run_steps(run, 20)["loss"])} | weights(run)


PROBES: dict[str, Callable[[c.ClusterOptions], Arrays]] = {
    **{f.__name__: f for f in (sums, clipped, loss_scale)},
    **{f"lookups/{dtype}": functools.partial(lookups, dtype=dtype) for dtype in ("float32", "bfloat16")},
    "lookups/packed": functools.partial(lookups, dtype="float32", pack=64),
    **{f"embedding/{name}": functools.partial(embedding, name=name) for name in TABLES},
    **{f.__name__: f for f in (statistics, masks)},
    **{f.__name__: f for f in (traces, collectives, local_rounds)},
    **{f.__name__: f for f in (restored, other_data, clipped_alike, muon, groups)},
}


def run_probes(names: Sequence[str], devices: int, directory: pathlib.Path) -> Arrays:
    """Runs probes on this worker; their runs are in `directory`."""
    global DIRECTORY
    DIRECTORY = directory
    if SEVERAL_WORKERS:  # They connect once for all probes.
        once = functools.cache(functools.partial(strategy.connect, c.ClusterOptions(connect_seconds=60.0)))
        strategy.connect = lambda *args, **keywords: once()
        # As on machines with different numbers of cores, which add large tensors in different orders.
        rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        tf.config.threading.set_intra_op_parallelism_threads(1 + 15 * rank)
    measured: Arrays = {}
    for name in names:
        options = c.ClusterOptions(logical_devices=devices, connect_seconds=60.0)
        measured |= {f"{name}/{key}": value for key, value in PROBES[name](options).items()}
    return measured
