"""Resolves and checks the functions and sources that a config names."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist import config as config_lib
from tfdist.config import specs
from tfdist.data import autograph, batches, guard, order, pipelines
from tfdist.data.feed import Batch, Prepare, Sizes
from tfdist.data.pipelines import Inputs


def open_inputs(config: config_lib.Config) -> Inputs:
    """Resolves the functions and sources that a checked config names; no TensorFlow operation runs.

    Raises:
        ValueError: names the field, the value received and what to do.
        OSError: the data cannot be read.
    """
    # `training=True`: the function must take this argument.
    prepare = specs.partial(config.data.prepare, field="config.data.prepare", positional=2, training=True)
    objective = specs.partial(config.objective, field="config.objective", positional=2, training=True)
    finish = config.data.finish and specs.partial(
        config.data.finish, field="config.data.finish", positional=1, training=True
    )
    halves = None if finish else getattr(prepare.func, "halves", None)
    if halves:  # One half prepares examples, the other batches on the device.
        prepare, finish = halves(**prepare.keywords)
    prepare = autograph.convert_prepare(prepare)
    finish = finish and guard.around(autograph.convert(finish, "config.data.finish"), "config.data.finish")
    objective = guard.around(autograph.convert(objective, "config.objective"), "config.objective")
    adapt = config.adapt and specs.partial(config.adapt, field="config.adapt", positional=2)
    train, evaluation = config.data.train_split, config.data.evaluation_split
    return Inputs(
        make_feed=pipelines.make_feed,
        prepare=prepare,
        prepare_all=finish_on_host(prepare, finish),
        objective=_finish_on_device(finish, objective),
        adapt=adapt,
        prepared_spec=_spec_of_finished(finish) if halves and finish else lambda spec: spec,
        train_source=open_source(config, train),
        evaluation_source=None if evaluation is None else open_source(config, evaluation),
    )


def _finish_on_device(finish: Callable[..., Batch] | None, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an objective that first calls `config.data.finish` on the device, on the output of `prepare`."""
    if finish is None:
        return function

    @functools.wraps(function)
    def finish_first(model: Any, batch: Batch, *, training: bool) -> Any:
        return function(model, finish(batch, training=training), training=training)

    return finish_first


def _spec_of_finished(finish: Callable[..., Batch]) -> Callable[[dict[str, tf.TensorSpec]], dict[str, tf.TensorSpec]]:
    """Returns a function: spec of a batch -> its spec after `finish`."""
    function = tf.function(functools.partial(finish, training=False), autograph=False)
    return lambda spec: function.get_concrete_function(spec).structured_outputs


def finish_on_host(prepare: Prepare, finish: Callable[..., Batch] | None) -> Prepare:
    """Returns `prepare` followed by `finish`."""
    if finish is None:
        return prepare

    def prepare_and_finish(batch: Batch, seeds: tf.Tensor, *, training: bool) -> Batch:
        return finish(prepare(batch, seeds, training=training), training=training)

    return prepare_and_finish


def open_source(config: config_lib.Config, split: str) -> Any:
    """Makes the source of one split, and checks that it is a source and not empty; no TensorFlow operation runs."""
    source, name = specs.build(config.data.source, split, field="config.data.source"), config.data.source["target"]
    if not (hasattr(source, "__len__") and hasattr(source, "read")):
        raise ValueError(
            f"config.data.source: {name} must return an object with len() and read(ids). A tf.data.Dataset has no "
            f"random access: pass it to tfdist.fit in a script (docs/from-fit.md). Received: {source!r}"
        )
    if len(source) == 0:
        raise ValueError(f"config.data: the split {split!r} of {name} has no examples.")
    return source


def make_sizes(config: config_lib.Config, inputs: Inputs, num_replicas: int, *, trains: bool = True) -> Sizes:
    """Counts examples and steps. Raises ValueError if the batch size is unsuitable, or the classes differ."""
    if trains:
        batches.check_divisible(config, num_replicas)
    train, evaluation, batch = inputs.train_source, inputs.evaluation_source, config.data.batch_size
    steps_per_epoch = order.steps_per_epoch(len(train), batch)
    if steps_per_epoch == 0:
        raise ValueError(
            f"config.data.batch_size={batch} is more than the {len(train)} examples of the split "
            f"{config.data.train_split!r}: an epoch would have no steps."
        )
    _check_classes(config, train, evaluation)
    for split, source in ((config.data.train_split, train), (config.data.evaluation_split, evaluation)):
        classes, configured = getattr(source, "num_classes", None), config.model.get("num_classes")
        if classes is not None and configured is not None and classes != configured:
            raise ValueError(
                f"config.model.num_classes={configured}, but the split {split!r} of {config.data.source['target']} has "
                f"labels up to {classes - 1}: set config.model.num_classes to {classes}, or correct the labels."
            )
    return Sizes(
        global_batch=batch,
        replicas=num_replicas,
        steps_per_epoch=steps_per_epoch,
        total_steps=config.train.steps or max(1, round(config.train.epochs * steps_per_epoch)),
        evaluation_batch=batches.evaluation_batch_size(config, num_replicas),
        training_examples=len(train),
        evaluation_examples=None if evaluation is None else len(evaluation),
    )


def _check_classes(config: config_lib.Config, train: Any, evaluation: Any) -> None:
    """Checks that labels mean the same classes in both splits, if the sources name their classes."""
    names = [getattr(source, "classes", None) for source in (train, evaluation)]
    if any(one is None for one in names) or list(names[0]) == list(names[1]):
        return
    here, there = config.data.train_split, config.data.evaluation_split
    only = sorted({*names[0]} ^ {*names[1]})
    difference = f"one of them lacks the class {only[0]!r}" if only else "the order differs"
    raise ValueError(
        f"{config.data.source['target']}: labels are indices of classes, so the splits {here!r} and {there!r} must "
        f"have the same classes in the same order, but {difference}: correct the data."
    )
