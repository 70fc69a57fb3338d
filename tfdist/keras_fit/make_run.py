"""Checks that a compiled model can be distributed, and makes its run: config, step and input."""

import contextlib
import dis
import functools
import numbers
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras

from tfdist import config as config_lib
from tfdist.cluster import cluster as cluster_lib
from tfdist.cluster import interruption
from tfdist.cluster.cluster import Cluster
from tfdist.config import paths, user_code
from tfdist.data import guard
from tfdist.data.feed import Examples, Feed, Sizes
from tfdist.data.stream import ReplicaShard
from tfdist.keras_fit import callbacks as callbacks_lib
from tfdist.keras_fit import compiled_model, messages
from tfdist.keras_fit.adapters import same_data
from tfdist.keras_fit.adapters.base import DataAdapter, RandomAccess
from tfdist.keras_fit.adapters.stream import Stream
from tfdist.keras_fit.own_step import own_objective, own_setup, plain_values
from tfdist.keras_fit.script import script_state
from tfdist.keras_fit.whole_batch import global_view, shard_layers
from tfdist.training import api as trainer

# The step of each method.
_KINDS = {"fit": "train", "evaluate": "test", "predict": "predict"}


def make_run(
    cluster: Cluster,
    model: keras.Model,
    config: config_lib.Config,
    data: dict[str, DataAdapter],
    callbacks: Any,
    verbose: str | int,
    stop: interruption.StopRequest,
    stack: contextlib.ExitStack,
    workdir: Path | None = None,
    initial_epoch: int = 0,
) -> trainer.Run:
    """Makes a run of a compiled model.

    Args:
        data: "train" -> the training data, and "test" -> the data that is evaluated after epochs, if there is any; or
            only "test" -> the data of an evaluation.
        callbacks: what Keras accepts as `callbacks`. They get the model when it is built.
        stack: restores what the run replaces in the model.

    Raises:
        ValueError: a variable of the step was made outside of the scope, targets are missing, the step cannot be
            distributed, or the workers have different data.
    """
    several = cluster.num_workers > 1
    guarded = guard.Guarded(several_workers=several, saved=workdir is not None, is_script=True)
    stack.callback(guard.begin, guard.begin(guarded))
    for one in data.values():
        same_data.check_same_data(cluster, one)
    _check_targets(model, data)
    prepare = functools.partial(own_setup.prepare, cluster, model, config, data, stack=stack)
    traced, traced_now = traced_values(cluster, model), set()
    # Kind of a step -> the function that runs its steps. That of an evaluation is kept for later evaluations.
    functions: dict[str, Any] = {}
    with traced.as_traced(*data):
        if "train" in data:
            context, more = prepare()
        else:
            test = data["test"]
            made_for = (str(test.element_spec), test.batch_size, test.rows)
            (context, more), functions = keep_on_model(cluster, model, "evaluation", lambda: (prepare(), {}), *made_for)

    def call_steps(kind: str, run_steps: Callable[..., Any], *args: Any) -> Any:
        return traced.run_steps(traced_now, kind, functions.setdefault(kind, run_steps), *args)

    more = {**more, **shard_layers.check(cluster, trainer.layers_of_all_depths(model), context.statistics)}
    trainer.make_stateless(model, context.step_count, global_view.replica_of_draws, config.seed)
    # Python code that makes data may draw random numbers while it reads ahead: such draws are not reproducible.
    made_by_code = any(one.made_by_code for one in data.values())
    feed = _make_feed(cluster, config, data, initial_epoch, compares=workdir is not None)
    fit = {"epochs": round(config.train.epochs), "steps": feed.sizes.steps_per_epoch, "saves_draws": not made_by_code}
    return trainer.Run(
        config=config,
        workdir=workdir,
        cluster=cluster,
        stop=stop,
        context=context,
        feed=feed,
        hooks=callbacks_lib.make_callbacks(cluster, model, callbacks, verbose=verbose, **fit),
        is_script=True,
        checks_draws=not made_by_code,
        log=trainer.Log(
            console="events" if verbose and (workdir is not None or several) else "nothing",
            notes=_notes(data.values(), is_saved=workdir is not None, several=several),
        ),
        train_step=own_objective.train_step,
        replica_of_draws=global_view.replica_of_draws,
        more_variables=more,
        call_steps=call_steps,
        advice_if_diverged=_advice_if_diverged,
    )


def traced_values(cluster: Cluster, model: keras.Model) -> plain_values.TracedValues:
    """Returns the values of attributes with which the steps of a model are traced until the next `compile`."""
    return keep_on_model(cluster, model, "plain_values", lambda: plain_values.TracedValues(model))


def _notes(data: Collection[DataAdapter], *, is_saved: bool, several: bool) -> tuple[str, ...]:
    """Returns lines for the log: an inexact resume, an order that may differ between runs, undivided work."""
    first, *_ = data
    caveats = dict.fromkeys(one.resume_caveat for one in data if is_saved and one.resume_caveat is not None)
    notes = [f"An exact resume needs care: {one}." for one in caveats]
    return (*notes, *(text for text in (first.order_unknown, first.work_of_all if several else None) if text))


def _advice_if_diverged(in_data: bool) -> str:
    """Returns what to do if a loss or weight is not finite; `in_data`: such values were found in the data."""
    if in_data:
        return "Remove or replace such values in the data."
    return (
        "Lower the learning rate, or clip the gradients with the optimizer's global_clipnorm, and start again in "
        "another workdir. Only arrays and sources were searched for such values: search other data yourself."
    )


def keep_on_model(cluster: Cluster, model: keras.Model, purpose: str, make: Callable[[], Any], *depends: Any) -> Any:
    """Returns the result of `make`, such as a traced function. It is kept on the model, and returned by later calls.

    After the next `compile`, or for other values in `depends`, `make` is called again.

    Args:
        purpose: such as "evaluation".
        depends: further values for which the result was made.
    """
    made_for = (cluster, compiled_model.compilation(model), *depends)
    name = f"_tfdist_{purpose}"
    before, kept = vars(model).get(name, ((), None))
    if kept is None or any(old is not new and old != new for old, new in zip(before, made_for, strict=True)):
        kept = make()
        vars(model)[name] = (made_for, kept)  # Keras does not track what is set in this way.
    return kept


def _check_targets(model: keras.Model, data: Mapping[str, DataAdapter]) -> None:
    """Raises ValueError if a loss of `compile` needs targets, and the data has none."""
    if own_setup.overrides(model) or compiled_model.overrides(model, "compute_loss") or model.loss is None:
        return
    for kind, one in data.items():
        if keras.utils.unpack_x_y_sample_weight(one.element_spec[0])[1] is None:
            name = "validation_data" if kind == "test" and "train" in data else "the data"
            raise ValueError(
                f"The loss of compile(loss=...) needs targets, and {name} has none: pass y, or data of (x, y)."
            )


def check_epochs(epochs: int, initial_epoch: int, validation_freq: int | Collection[int]) -> None:
    """Raises ValueError if one of these arguments of `tfdist.fit` is not a whole number, or is too small."""
    listed = validation_freq if isinstance(validation_freq, Collection) else [validation_freq]
    whole = all(isinstance(one, numbers.Integral) for one in (epochs, initial_epoch, *listed))
    if not whole or min([epochs, *listed]) < 1 or initial_epoch < 0:
        raise ValueError(
            "epochs and validation_freq (or its elements) must be whole numbers, at least 1; initial_epoch at least 0. "
            f"Received: epochs={epochs!r}, validation_freq={validation_freq!r}, initial_epoch={initial_epoch!r}"
        )


def to_path(workdir: os.PathLike | str | None) -> Path | None:
    """Returns the argument `workdir` of `tfdist.fit` as a path; raises ValueError if it is not a path."""
    if workdir is None:
        return None
    if not isinstance(workdir, str | os.PathLike):
        raise ValueError(f'workdir must be a path, such as workdir="runs/mine". Received: {workdir!r}')
    return paths.local(workdir, "workdir")


def check_arguments(cluster: Cluster, model: keras.Model, purpose: str) -> None:
    """Checks the types of the first two arguments of `tfdist.PURPOSE(cluster, model, x, ...)`, and where it is called.

    Raises:
        ValueError: names the argument, what it must be, and what was received.
        RuntimeError: it is called where only one worker runs, such as in a callback of the chief.
    """
    form = f"tfdist.{purpose}(cluster, model, x, ...)"
    if not isinstance(cluster, Cluster):
        raise ValueError(
            f"{form}: `cluster` must be what tfdist.connect() returned. Received: {type(cluster).__name__}"
        )
    if not isinstance(model, keras.Model):
        raise ValueError(f"{form}: `model` must be a keras.Model. Received: {type(model).__name__}")
    cluster_lib.require_all_workers(f"tfdist.{purpose}")
    check_functions(model, _KINDS[purpose])


def check_compiled(cluster: Cluster, model: keras.Model, purpose: str) -> None:
    """Calls `check_arguments`; also checks that `model` was compiled in the scope, with supported options only."""
    check_arguments(cluster, model, purpose)
    name = type(model).__name__
    if not model.compiled or model.optimizer is None:
        raise ValueError(f"Call model.compile(optimizer=..., loss=...) in cluster.scope() before tfdist.{purpose}.")
    if "apply" in vars(model.optimizer):
        raise ValueError(
            f"{type(model.optimizer).__name__}.apply was replaced on the object, where this has no effect: write "
            "a subclass of the optimizer that overrides apply."
        )
    # Metrics in the place of loss_weights, the third argument of compile.
    given = compiled_model.compile_loss_weights(model)
    if any(isinstance(one, str | keras.metrics.Metric) or callable(one) for one in keras.tree.flatten(given)):
        raise ValueError(f"The third argument of compile is loss_weights: write metrics={given!r}. Received: {given!r}")
    if any(not cluster.created_here(variable.value) for variable in (*model.variables, *model.optimizer.variables)):
        raise ValueError(
            f"The {name} or its optimizer was made outside of cluster.scope(): build and compile the model "
            "within `with cluster.scope():`."
        )
    synchronized = trainer.synchronized_layers(model) if model.jit_compile and cluster.num_replicas > 1 else ()
    if synchronized:
        raise ValueError(
            "compile(jit_compile=True) cannot compile communication between replicas, which the layer "
            f"{synchronized[0].name!r} needs to normalise over all of them: remove jit_compile=True, or set "
            "synchronized=False."
        )
    # A step of the model's own reduces the loss itself.
    own = compiled_model.overrides(model, f"{_KINDS[purpose]}_step")
    losses = [] if own else compiled_model.compile_losses(model)
    if any(isinstance(loss, keras.Loss) and loss.reduction in (None, "none") for loss in losses):
        raise ValueError(
            'A loss with reduction=None is not a scalar: use reduction="sum_over_batch_size", the default.'
        )


def check_functions(model: keras.Model, kind: str) -> None:
    """Raises ValueError if the model has its own `make_KIND_function`, or a preprocessor that tfdist does not call.

    Args:
        kind: "train", "test" or "predict".
    """
    own = hasattr(model, "preprocess_samples") and getattr(model, "preprocessor", None) is not None
    if own and not script_state.in_script():
        raise ValueError(
            f"{type(model).__name__}.preprocessor is not called by tfdist.fit: start the script with tfdist.run, or "
            "set model.preprocessor = None and pass data.map(preprocessor)."
        )
    if compiled_model.overrides(model, f"make_{kind}_function"):
        raise ValueError(
            f"{type(model).__name__} has its own make_{kind}_function, which is not called: tfdist makes the function "
            f"that runs {kind}_step on all replicas. Move its code to {kind}_step."
        )


def _make_feed(
    cluster: Cluster,
    config: config_lib.Config,
    data: Mapping[str, DataAdapter],
    initial_epoch: int,
    *,
    compares: bool,
) -> Feed:
    """Makes the input of a run.

    Args:
        data: as for `make_run`.
        compares: whether a resumed run compares its data with that of the earlier start.
    """
    shard, validation = trainer.replica_shard(cluster), data.get("test")
    adapter = data.get("train", validation)

    def open_training(start: int, stop: int) -> Iterator[Any] | None:
        """Repeats what an earlier start has done to the data before step `start`."""
        due = trainer.DueSteps(config.evaluation.every, adapter.steps)
        for epoch in range(initial_epoch, start // adapter.steps):
            adapter.repeat_epoch()
            if validation is not None and due.is_due((epoch + 1) * adapter.steps):
                validation.repeat_pass()
        if not isinstance(adapter, Stream):
            return cluster.distribute(adapter.dataset(shard, start, stop))
        if start % adapter.steps:
            adapter.begin_epoch(start % adapter.steps)
        return None

    def iterator_at(present: Iterator[Any] | None, step: int) -> Iterator[Any]:
        first = step % adapter.steps
        if not isinstance(adapter, Stream) or (present is not None and first):
            return present
        if not first:
            adapter.begin_epoch()
        return cluster.distribute(adapter.elements(shard, first))

    def end_epoch() -> None:
        adapter.end_epoch()
        if isinstance(adapter, Stream) and cluster.num_workers > 1 and script_state.in_script():
            _compare_first_batches(cluster, adapter)

    if isinstance(adapter, Stream) and adapter is not validation:
        adapter.reset()
    return Feed(
        sizes=Sizes(
            global_batch=adapter.batch_size,
            replicas=cluster.num_replicas,
            steps_per_epoch=adapter.steps,
            total_steps=round(config.train.epochs * adapter.steps),
            first_step=initial_epoch * adapter.steps,
        ),
        spec=adapter.element_spec,
        training=functools.partial(adapter.dataset, shard),
        open_training=open_training,
        iterator_at=iterator_at,
        end_epoch=end_epoch,
        evaluation=None if validation is None else lambda: (validation.one_pass(shard, reset=True), validation.steps),
        end_evaluation=lambda: validation.end_epoch(),
        examples=functools.partial(same_data.examples, adapter) if compares else lambda count: Examples(),
        first_nonfinite=functools.partial(adapter.first_nonfinite, shard),
        find_label=functools.partial(_find_label, data, shard),
    )


def _compare_first_batches(cluster: Cluster, adapter: Stream) -> None:
    """Compares the workers' first batches of the ending epoch, if Python code of a script made them. Collective."""
    batches = cluster.all_gather([*adapter.first_batch])
    if not same_data.are_alike(batches[cluster.rank], batches[0]):
        messages.log_once(
            f"WARNING: worker {cluster.rank} had another first batch of the epoch than worker 0: data of a script "
            "must not depend on the process, the host or a thread.",
            everywhere=True,
        )


def _find_label(data: Mapping[str, DataAdapter], shard: ReplicaShard, label: int) -> str:
    """Returns the first target with this label, such as "y[17]"; "": none was found. Searches arrays and sources."""
    for kind, one in data.items():
        if isinstance(one, RandomAccess) and (place := one.find_label(shard, label)):
            return f"validation_data: {place}" if kind == "test" and "train" in data else place
    return ""


def config_of_fit(
    model: keras.Model,
    x: Any,
    batch_size: int,
    epochs: int,
    validation_freq: int | Collection[int],
    shuffle: bool,
    seed: int,
) -> config_lib.Config:
    """Returns the config of a call of `fit`; arguments as for `fit`."""
    when = (
        {"after": sorted(validation_freq)} if isinstance(validation_freq, Collection) else {"epochs": validation_freq}
    )
    call = {"call": _calling_place()} if script_state.in_script() else {}
    return config_lib.Config(
        model={"class": type(model).__name__, "parameters": model.count_params() if model.built else None, **call},
        data=config_lib.Data(source={"kind": type(x).__name__}, batch_size=batch_size, shuffle=shuffle),
        train=config_lib.Train(
            xla=False,  # `compile(jit_compile=...)` decides.
            epochs=epochs,
        ),
        evaluation=config_lib.Evaluation(every=config_lib.Every(**when)),
        report=config_lib.Report(every=config_lib.Every(epochs=1)),
        seed=seed,
    )


def config_of_evaluation(model: keras.Model, batch_size: int) -> config_lib.Config:
    """Returns the config of an evaluation, or of steps that are made one by one."""
    return config_lib.Config(
        model={"class": type(model).__name__},
        data=config_lib.Data(batch_size=batch_size),
        train=config_lib.Train(epochs=1),
    )


def _calling_place() -> str:
    """Returns which call of `fit`, in which function of the script, runs now: edits of other lines change nothing."""
    frame = user_code.current_frame()
    if frame is None:
        return "a library"
    names = [one.argval for one in dis.get_instructions(frame.f_code) if one.offset <= frame.f_lasti]
    return f"call {names.count('fit')} of fit in {frame.f_code.co_name}"
