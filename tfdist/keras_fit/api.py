"""For scripts that build and compile a Keras model themselves: `connect`, `fit`, `evaluate` and `predict`."""

import atexit
import contextlib
import dataclasses
import os
import signal
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras

from tfdist import config as config_lib
from tfdist.cluster import cluster as cluster_lib
from tfdist.cluster import collective_guard, interruption, process_exit, strategy
from tfdist.cluster.cluster import Cluster
from tfdist.keras_fit import callbacks as callbacks_lib
from tfdist.keras_fit import predict as predict_lib
from tfdist.keras_fit import setup
from tfdist.keras_fit.adapters import base, make_adapter
from tfdist.keras_fit.adapters.base import DataAdapter
from tfdist.training import checkpointing, loop
from tfdist.training import evaluate as evaluate_lib
from tfdist.training import run as run_lib
from tfdist.training.step import optimizer as optimizer_lib


def connect(options: config_lib.Cluster | None = None, *, seed: int | None = 0) -> Cluster:
    """Meets all other workers of this job: the first thing that a script does.

    The script is started once per worker, by Slurm, MPI, TF_CONFIG or by hand; see `strategy.connect`. At its end the
    workers wait for each other, and an error of one ends all.

    Args:
        options: ports, deadlines, and how many devices to simulate; None: the defaults.
        seed: given to `keras.utils.set_random_seed` on every worker, unless TensorFlow has a seed already: shuffled
            datasets and dropout must be the same everywhere. None: the script sees to that.

    Returns:
        The cluster, in whose `scope()` models are made and compiled.

    Raises:
        TimeoutError, ValueError, OSError: as `strategy.connect`.
    """
    cluster = strategy.connect(options)
    if seed is not None and strategy.global_seed() is None:
        keras.utils.set_random_seed(seed)
    if cluster.num_workers > 1:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # TensorFlow's own handler would let nobody end the script.
        atexit.register(cluster_lib.leave, cluster)
        sys.excepthook = _end_all
    return cluster


def _end_all(kind: type[BaseException], error: BaseException, traceback: types.TracebackType | None) -> None:
    del kind, traceback

    def fail() -> int:
        raise error

    process_exit.run_and_exit(fail)


@contextlib.contextmanager
def _stoppable(workdir: Path | None) -> Iterator[interruption.StopRequest]:
    """Within, signals ask the run to save and stop; where nothing is saved, they do what they always do."""
    if workdir is None:
        yield interruption.StopRequest()
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    try:
        yield interruption.install_handlers()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _optimizer_as_found(model: keras.Model) -> Iterator[None]:
    """Takes from the optimizer, in the end, what a step has put on it: a loop of one's own finds Keras' methods."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    before = dict(vars(optimizer))
    try:
        yield
    finally:
        for name in optimizer_lib.PUT_ON_OPTIMIZERS:
            vars(optimizer).pop(name, None)
            if name in before:
                vars(optimizer)[name] = before[name]


def fit(
    cluster: Cluster,
    model: keras.Model,
    x: Any,
    y: Any = None,
    *,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: str | int = "auto",
    callbacks: Any = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool = True,
    class_weight: dict[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int = 1,
    workdir: os.PathLike | str | None = None,
    seed: int = 0,
) -> Any:
    """Trains a compiled model as `model.fit` does on one device, on all workers and devices of `cluster`.

    Args:
        cluster: what `connect` returned; `model` was made and compiled in its scope.
        model: its weights are trained in place.
        x: arrays, alone or in lists, tuples and dicts; a `tf.data.Dataset` or `keras.utils.PyDataset`; a source, with
            `len()` and a `read(ids)` that returns (x, y), (x, y, sample_weight) or a dict with a "label"; a generator.
            The same on every worker: each takes its share.
        y: the targets, where `x` is arrays.
        batch_size: examples in one step over all replicas; 32 where nothing is said. A `tf.data.Dataset` of single
            examples is put into batches of it.
        verbose: 1 and "auto" for Keras' bar, or one line an epoch where the output is no terminal; 2 for Keras' line at
            the end of an epoch; 0 for neither. The chief alone prints.
        callbacks: Keras callbacks, Keras' own and others; the same on every worker. They run on the chief, and all
            workers follow; one with `on_all_workers = True` runs on all.
        workdir: where the run lives, the same for all workers: the same script in the same workdir resumes. None:
            nothing is written, and nothing resumed.
        seed: decides the order of the examples.

    The other arguments are those of `model.fit`.

    Returns:
        A `keras.callbacks.History`.

    Raises:
        ValueError: says which argument cannot be used, and what to do.
        SystemExit: with code 75, when the run was asked to stop and is saved in the workdir: start it again to go on.
    """
    collective_guard.check("tfdist.fit")
    setup.check_model(cluster, model, "fit")
    if epochs < 1 or initial_epoch < 0 or not isinstance(validation_freq, int) or validation_freq < 1:
        raise ValueError(
            "epochs and validation_freq must be whole numbers from 1 on, and initial_epoch from 0 on. "
            f"Received: epochs={epochs}, validation_freq={validation_freq}, initial_epoch={initial_epoch}"
        )
    if validation_split and validation_data is None:
        (x, y, sample_weight), validation_data = make_adapter.split(x, y, sample_weight, validation_split)
    wish = base.DataOptions(
        batch_size=batch_size,
        steps=steps_per_epoch,
        shuffle=bool(shuffle),
        class_weight=class_weight,
        seed=seed,
        input_ranks=_input_ranks(model),
    )
    feed = make_adapter.make_data_adapter(x, y, sample_weight, wish)
    validation = None
    if validation_data is not None:
        batch_size = validation_batch_size or batch_size
        validation = _feed(model, *keras.utils.unpack_x_y_sample_weight(validation_data), batch_size, validation_steps)
    config = _config(model, type(x).__name__, feed.batch_size, epochs, validation_freq, bool(shuffle), seed)
    workdir = None if workdir is None else Path(workdir).expanduser()
    with _stoppable(workdir) as stop, _optimizer_as_found(model):
        run = setup.make_run(cluster, model, config, feed, validation, workdir, stop)
        runner = callbacks_lib.make_callbacks(
            cluster, model, callbacks, verbose=verbose, epochs=epochs, steps=run.steps_per_epoch, workdir=workdir
        )
        run = dataclasses.replace(run, callbacks=runner, first_step=initial_epoch * run.steps_per_epoch)
        code = loop.train(run)
    cluster.pause()
    if code == interruption.EXIT_STOPPED:
        raise SystemExit(code)
    return run.callbacks.history


def evaluate(
    cluster: Cluster,
    model: keras.Model,
    x: Any,
    y: Any = None,
    *,
    batch_size: int | None = None,
    verbose: str | int = "auto",
    sample_weight: Any = None,
    steps: int | None = None,
    callbacks: Any = None,
    return_dict: bool = False,
) -> Any:
    """Evaluates a compiled model as `model.evaluate` does on one device; every worker calls it and has the result.

    Args:
        cluster: what `connect` returned; `model` was made and compiled in its scope.
        x: data as for `fit`.
        verbose: 1 and "auto" for a bar, or a line where the output is no terminal; 2 for a line; 0 for neither.
        steps: batches to take; None: all.
        callbacks: Keras callbacks, whose hooks of evaluations are called.
        return_dict: a dict by name instead of a list in Keras' order, or a single number where there is one.

    Returns:
        The loss and the metrics over all examples, each counted once.

    Raises:
        ValueError: says which argument cannot be used, and what to do.
    """
    collective_guard.check("tfdist.evaluate")
    setup.check_model(cluster, model, "evaluate")
    feed = _feed(model, x, y, sample_weight, batch_size, steps)
    config = config_lib.Config(model={"class": type(model).__name__}, train=config_lib.Train(epochs=1))
    with _optimizer_as_found(model):
        run = setup.make_run(cluster, model, config, feed, feed, None, interruption.StopRequest())
        runner = callbacks_lib.make_callbacks(cluster, model, callbacks, verbose=verbose, steps=feed.steps)
        logs = evaluate_lib.evaluate(checkpointing.silent_loop(dataclasses.replace(run, callbacks=runner)), 0)
    cluster.pause()
    return logs if return_dict else model._flatten_metrics_in_order(logs)


def predict(
    cluster: Cluster,
    model: keras.Model,
    x: Any,
    *,
    batch_size: int | None = None,
    verbose: str | int = "auto",
    steps: int | None = None,
    callbacks: Any = None,
) -> Any:
    """Returns the outputs of `model` as `model.predict` does on one device; every worker calls it and has them all.

    Args:
        cluster: what `connect` returned; `model` was made in its scope.
        x: data as for `fit`; targets and weights in it are passed over.
        verbose: as for `evaluate`.
        steps: batches to take; None: all.
        callbacks: Keras callbacks, whose hooks of predictions are called.

    Returns:
        An array [examples, ...] in the order of the data, or arrays in the structure of the model's outputs.

    Raises:
        ValueError: says which argument cannot be used, and what to do.
    """
    collective_guard.check("tfdist.predict")
    feed = _feed(model, x, None, None, batch_size, steps)
    setup.check_same(cluster, feed)
    dataset = feed.dataset(run_lib.replica_shard(cluster), 0, feed.steps)
    runner = callbacks_lib.make_callbacks(cluster, model, callbacks, verbose=verbose, steps=feed.steps)
    outputs = predict_lib.gather(cluster, model, cluster.distribute(dataset), feed.steps, runner)
    cluster.pause()
    return outputs


def _feed(
    model: keras.Model, x: Any, y: Any, sample_weight: Any, batch_size: int | None, steps: int | None
) -> DataAdapter:
    wish = base.DataOptions(batch_size=batch_size, steps=steps, input_ranks=_input_ranks(model))
    return make_adapter.make_data_adapter(x, y, sample_weight, wish)


def _input_ranks(model: keras.Model) -> tuple[int, ...] | None:
    inputs = getattr(model, "inputs", None)
    return tuple(len(one.shape) for one in inputs) if inputs else None


def _config(
    model: keras.Model, data: str, batch_size: int, epochs: int, validation_freq: int, shuffle: bool, seed: int
) -> config_lib.Config:
    scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    return config_lib.Config(
        model={"class": type(model).__name__, "parameters": model.count_params() if model.built else None},
        data=config_lib.Data(source={"kind": data}, batch_size=batch_size, shuffle=shuffle),
        train=config_lib.Train(epochs=epochs, precision="float16" if scaled else "float32"),
        evaluation=config_lib.Evaluation(every=config_lib.Every(epochs=validation_freq)),
        report=config_lib.Report(every=config_lib.Every(epochs=1)),
        seed=seed,
    )
