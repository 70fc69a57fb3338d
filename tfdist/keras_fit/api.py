"""`fit`, `evaluate` and `predict` for scripts that build and compile a Keras model themselves.

Data (`x`) is the same on every worker, and each worker takes its shard. Supported are
    arrays, or lists, tuples and dicts of arrays, with `y` and `sample_weight`;
    a `tf.data.Dataset` or a `keras.utils.PyDataset`;
    a source with `len()` and `read(ids)` -> (x, y), (x, y, sample_weight) or a dict with a "label";
    a generator of batches.

Callbacks are the same on every worker, and run on all. Those that write files or come from a library such as W&B, and
those with `on_all_workers = False`, run on the chief only.

Importing this module changes nothing in Keras. While they run, `fit`, `evaluate` and `predict` replace functions of
Keras and TensorFlow (`patches.py`).
"""

import contextlib
import functools
import operator
import os
import shutil
from collections.abc import Callable, Collection
from typing import Any

import keras

from tfdist import config as config_lib
from tfdist.cluster import interruption
from tfdist.cluster.cluster import Cluster
from tfdist.config import user_code
from tfdist.keras_fit import callbacks as callbacks_lib
from tfdist.keras_fit import compiled_model, make_run, messages, patches
from tfdist.keras_fit import predict as predict_lib
from tfdist.keras_fit.adapters import base, data_errors, make_adapter, same_data
from tfdist.keras_fit.adapters.base import DataAdapter
from tfdist.keras_fit.own_step import own_setup
from tfdist.keras_fit.script import script_state
from tfdist.training import api as trainer


def _as_tfdist_code(function: Callable) -> Callable:
    """Marks calls as tfdist's code for `tfdist.run`, and stops the stall timer at their end, also after an error.

    Converts NumPy's and TensorFlow's integers in keywords to int.
    """

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        cluster = args[0] if args else options.get("cluster")
        with script_state.without_counting_draws():
            try:
                return function(*args, **{name: _as_integer(value) for name, value in options.items()})
            finally:
                if isinstance(cluster, Cluster):
                    cluster.monitor.stop_timer()

    return call


def _as_integer(value: Any) -> Any:
    if getattr(value, "shape", None) == ():
        with contextlib.suppress(TypeError):  # Not an integer.
            return operator.index(value)
    return value


@_as_tfdist_code
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
    validation_freq: int | Collection[int] = 1,
    workdir: os.PathLike | str | None = None,
    seed: int = 0,
) -> Any:
    """Trains a compiled model on all replicas of `cluster`, as `model.fit` does on one device.

    Args:
        cluster: what `connect` returned; the model was created and compiled in its scope.
        x: training data; see the module's docstring, also for `callbacks`. Other arguments: as for `model.fit`.
        batch_size: examples per step over all replicas, unless `x` consists of batches. Default: the number of examples
            divided by `steps_per_epoch`, rounded up, if that is given; otherwise 32.
        verbose: 1 or "auto": a progress bar, or in a log file the same as 2. 2: a line per epoch. 0: no output.
        workdir: directory of the run, which all workers share; the same script, started again, resumes from it. None:
            nothing is saved.
        seed: for the order of the examples, and for random ops of the steps that have no seed of their own.

    Returns:
        A `keras.callbacks.History`.

    Raises:
        ValueError: an argument is not supported; the message says what to do.
        SystemExit: with code 75, after a stop signal, if the run is saved. Run the script again to resume.
    """
    make_run.check_compiled(cluster, model, "fit")
    make_run.check_epochs(epochs, initial_epoch, validation_freq)
    epochs = _apply_limit("max_epochs", epochs)
    if validation_split and validation_data is None:
        (x, y, sample_weight), validation_data = make_adapter.split(x, y, sample_weight, validation_split)
    shuffle = bool(shuffle) and shuffle != "batch"  # "batch" reorders within a batch, which changes no gradient.
    options = {"batch_size": batch_size, "steps": steps_per_epoch, "class_weight": class_weight, "seed": seed}
    data = _data_adapter(x, y, sample_weight, shuffle=shuffle, **options)
    if data.size_unknown:
        messages.log_once(
            "the number of batches is unknown before they are read. In this case Keras counts one more step in each "
            "epoch, without an update, so Adam and learning-rate schedules give slightly different values in Keras."
        )
    adapters = {"train": data}
    if validation_data is not None:
        parts = keras.utils.unpack_x_y_sample_weight(validation_data)
        try:
            size = validation_batch_size or batch_size
            adapters["test"] = _data_adapter(*parts, batch_size=size, steps=validation_steps)
        except ValueError as error:
            raise ValueError(f"validation_data: {error}") from None
        make_run.check_functions(model, "test")
        if any("evaluate" in vars(kind) and user_code.defines(kind) for kind in type(model).__mro__):
            messages.log_once(
                f"{type(model).__name__} has its own evaluate, which fit does not call for validation_data: the "
                "values that it computes are missing. Call it in a callback's on_epoch_end, or put it into test_step."
            )
    config = make_run.config_of_fit(model, x, data.batch_size, epochs, validation_freq, shuffle, seed)
    place, traced = make_run.to_path(workdir), make_run.traced_values(cluster, model)
    if (backup := callbacks_lib.find_backup(callbacks, place)) is not None:
        place = make_run.to_path(backup.backup_dir)
        interval = {"epochs": 1} if backup.save_freq == "epoch" else {"steps": backup.save_freq}
        config.checkpoint.every = config_lib.Every(**interval)
        config.checkpoint.export = False
    traced.log_changes("train")
    with interruption.handle_signals(place is not None) as stop, patches.patch_for_run(model) as stack:
        run = make_run.make_run(cluster, model, config, adapters, callbacks, verbose, stop, stack, place, initial_epoch)
        name = f"{type(model).__name__}.train_step"
        with own_setup.explain_mismatch(name), data_errors.explain(run.feed.sizes.steps_per_epoch):
            code = trainer.train(run)
    if code == interruption.EXIT_STOPPED:
        raise SystemExit(code)
    traced.note_end(*adapters)
    if backup is not None and backup.delete_checkpoint and cluster.is_chief:
        shutil.rmtree(place)
    return run.hooks.history


@_as_tfdist_code
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
    """Evaluates a compiled model on all replicas, as `model.evaluate` does on one device.

    Collective: every worker calls it and gets the result.

    Args:
        cluster: what `connect` returned; `model` was created and compiled in its scope.
        x: data as for `fit`.
        batch_size: as for `fit`, with `steps` in place of `steps_per_epoch`.
        verbose: 1 or "auto" for a bar (in a log file a line), 2 for a line, 0 for no output.
        callbacks: Keras callbacks; their evaluation hooks are called.
        return_dict: True: return a dict by name. False: a list in Keras' order, or the loss if there are no metrics.

    Returns:
        The loss and the metrics over all examples, each example counted once.

    Raises:
        ValueError: an argument is not supported; the message says what to do.
    """
    make_run.check_compiled(cluster, model, "evaluate")
    data = _data_adapter(x, y, sample_weight, batch_size=batch_size, steps=steps)
    config = make_run.config_of_evaluation(model, data.batch_size)
    make_run.traced_values(cluster, model).log_changes("test")
    with patches.patch_for_run(model) as stack:
        stop = interruption.StopRequest()
        run = make_run.make_run(cluster, model, config, {"test": data}, callbacks, verbose, stop, stack)
        with data_errors.explain(data.steps):
            logs = trainer.evaluate(trainer.make_silent_services(run), 0)
    return compiled_model.evaluation_result(model, logs, return_dict)


@_as_tfdist_code
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
    """Returns the outputs of `model`, computed on all replicas, as `model.predict` does on one device.

    Collective: every worker calls it.

    Args:
        cluster: what `connect` returned; `model` was created in its scope.
        x: data as for `fit`; targets and weights in it are ignored.
        batch_size: as for `evaluate`.
        verbose: as for `evaluate`.
        callbacks: Keras callbacks; their prediction hooks are called.

    Returns:
        An array [examples, ...] in the order of the data, or arrays in the structure of the model's outputs.

    Raises:
        ValueError: an argument is not supported; the message says what to do.
    """
    make_run.check_arguments(cluster, model, "predict")
    own_setup.check_graph(model)
    data = _data_adapter(x, batch_size=batch_size, steps=steps)
    (batch_spec,) = data.element_spec
    predict_lib.check_rows(cluster, model, batch_spec)
    same_data.check_same_data(cluster, data)
    dataset = data.one_pass(trainer.replica_shard(cluster), reset=False)
    runner = callbacks_lib.make_callbacks(cluster, model, callbacks, verbose=verbose, steps=data.steps)
    traced = make_run.traced_values(cluster, model)
    traced.log_changes("predict")
    make = functools.partial(predict_lib.Predictor, cluster, model, traced, batch_spec)
    predictor = make_run.keep_on_model(cluster, model, "prediction", make)
    with data_errors.explain(data.steps):
        found = predict_lib.gather(cluster, predictor, cluster.distribute(dataset), data.steps, runner)
    data.end_epoch()
    return found


def _apply_limit(name: str, given: int | None) -> int | None:
    """Returns `given`, or the limit `name` of `keras.config` if that is lower or `given` is None.

    Keras reads the environment variable of the limit at its import, before a script under tfdist.run can set it.
    """
    limit = getattr(keras.config, name)() or int(os.environ.get(f"KERAS_{name.upper()}", 0))
    return min(limit, given or limit) if limit else given


def _data_adapter(
    x: Any, y: Any = None, sample_weight: Any = None, *, steps: int | None, **options: Any
) -> DataAdapter:
    """Returns the adapter of data; `options` are the other fields of `base.DataOptions`."""
    given = base.DataOptions(**options, steps=_apply_limit("max_steps_per_epoch", steps))
    return make_adapter.make_data_adapter(x, y, sample_weight, given)
