"""Makes the input of a run of a script from the adapters of its data."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.cluster.cluster import Cluster
from tfdist.data import inspection, read_ahead
from tfdist.data.feed import Examples, Feed, Sizes
from tfdist.data.inspection import Rows
from tfdist.data.stream import ReplicaShard
from tfdist.keras_fit import callbacks as callbacks_lib
from tfdist.keras_fit.adapters import base, same_data
from tfdist.keras_fit.adapters.base import BatchAdapter, DataAdapter, EpochHooks, RandomAccessAdapter
from tfdist.keras_fit.adapters.epoch_gate import EpochGate
from tfdist.keras_fit.script import compare_workers
from tfdist.keras_fit.script import context as script_context
from tfdist.training import api as trainer


def make_feed(
    cluster: Cluster,
    config: config_lib.Config,
    adapter: DataAdapter,
    validation: DataAdapter | None,
    initial_epoch: int,
    callbacks: Any,
    *,
    compares: bool,
) -> Feed:
    """Makes the input of a run.

    Args:
        compares: whether a run that resumes compares the data with those of before.
    """
    if adapter.gate is not None and validation is not adapter and callbacks_lib.has_epoch_hooks(callbacks):
        adapter.gate.hold()

    shard = trainer.replica_shard(cluster)
    training = functools.partial(adapter.dataset, shard)
    validate_again = functools.partial(_validate_again, config.evaluation.every, adapter.steps, validation)
    sizes = Sizes(
        global_batch=adapter.batch_size,
        replicas=cluster.num_replicas,
        steps_per_epoch=adapter.steps,
        total_steps=round(config.train.epochs * adapter.steps),
        first_step=initial_epoch * adapter.steps,
    )

    def open_training(start: int, stop: int) -> Any:
        for epoch in range(initial_epoch, start // adapter.steps):
            validate_again(epoch)
        return cluster.distribute(training(start, stop))

    by_epoch: dict[str, Callable] = {}
    if adapter.epoch_hooks is not None and validation is not adapter:
        adapter.epoch_hooks.validate = validate_again
        by_epoch = _read_by_epoch(cluster, training, adapter.epoch_hooks, sizes)
    if adapter.gate is not None:
        by_epoch = _with_gate(adapter.gate, sizes.steps_per_epoch, {"open_training": open_training, **by_epoch})
    return Feed(
        sizes=sizes,
        spec=adapter.element_spec,
        training=training,
        **{"open_training": open_training, **by_epoch},
        evaluation=None if validation is None else functools.partial(_one_pass, validation, shard),
        examples=functools.partial(same_data.examples, adapter) if compares else lambda count: Examples(),
        first_nonfinite=functools.partial(_without_gate, adapter.gate, _first_nonfinite, adapter, shard),
        find_label=functools.partial(
            _without_gate, adapter.gate, _with_label, {"": adapter, "validation_data: ": validation}, shard
        ),
    )


def _validate_again(every: config_lib.Every, steps_per_epoch: int, validation: DataAdapter | None, epoch: int) -> None:
    """Calls the hooks of the validation data that were called after an epoch of an earlier start."""
    hooks = None if validation is None else validation.epoch_hooks
    if hooks is not None and trainer.is_due(every, (epoch + 1) * steps_per_epoch, steps_per_epoch):
        hooks.begin_pass(reset=True)


def _read_by_epoch(
    cluster: Cluster, training: Callable[[int, int], tf.data.Dataset], hooks: EpochHooks, sizes: Sizes
) -> dict[str, Callable]:
    """Returns functions of a Feed that read nothing of an epoch before it begins, and call the hooks of the data."""

    def iterator_at(present: Any, step: int) -> Any:
        epoch, step_in_epoch = divmod(step, sizes.steps_per_epoch)
        if present is not None and step_in_epoch:
            return present
        hooks.begin_epoch(epoch)
        return cluster.distribute(training(step, (epoch + 1) * sizes.steps_per_epoch))

    hooks.reset(sizes.first_step // sizes.steps_per_epoch)
    return {"open_training": lambda start, stop: None, "iterator_at": iterator_at, "end_epoch": hooks.end}


def _with_gate(gate: EpochGate, steps: int, given: dict[str, Callable]) -> dict[str, Callable]:
    """Returns the functions of a Feed; they also report the start of each epoch to `gate`."""
    open_training, iterator_at = given["open_training"], given.get("iterator_at", lambda present, step: present)

    def begin(present: Any, step: int) -> Any:
        gate.begin(step // steps)
        return iterator_at(present, step)

    opened = {"open_training": lambda start, stop: gate.keep(open_training(start, stop)), "iterator_at": begin}
    return given | opened


def _without_gate(gate: EpochGate | None, function: Callable, *args: Any) -> Any:
    """Calls a function that searches the data, because the run fails."""
    if gate is not None:
        gate.release()
    return function(*args)


def with_comparison(
    cluster: Cluster, feed: Feed, runner: trainer.CallbackRunner, adapter: DataAdapter, validation: DataAdapter | None
) -> Feed:
    """Returns `feed` with a comparison of the workers at the end of each epoch, if they run a script."""
    if validation is adapter or cluster.num_workers == 1 or not script_context.in_script():
        return feed
    waits = adapter.gate is None or adapter.gate.holds or adapter.epoch_hooks is not None
    generators = waits and (validation is None or validation.gate is None)
    attributes = functools.partial(trainer.plain_attributes, runner.on_all_workers(), skip=compare_workers.is_of_worker)
    compared = compare_workers.WorkerComparison(cluster, attributes, adapter.gate, generators=generators)

    def end_epoch() -> None:
        feed.end_epoch()
        compared.compare()

    return dataclasses.replace(feed, end_epoch=end_epoch)


def _one_pass(adapter: DataAdapter, shard: ReplicaShard) -> tuple[tf.data.Dataset, int]:
    """Returns this worker's shard of a pass over the data, and its steps."""
    if adapter.epoch_hooks is not None:
        adapter.epoch_hooks.begin_pass(reset=True)
    return adapter.dataset(shard, 0, adapter.steps), adapter.steps


def _first_nonfinite(
    adapter: DataAdapter, shard: ReplicaShard, first_number: int, last_number: int
) -> tuple[int, str] | None:
    """Returns the first of these steps with a value that is not finite, and a sentence about it; None: all are finite.

    The place of a value is an index of the user's arrays, or the row of a batch.

    Args:
        first_number: counted from 1.
        last_number: the last step, counted in the same way.
    """
    if isinstance(adapter, BatchAdapter) and adapter.first_nonfinite is not None:
        return adapter.first_nonfinite(range(first_number, last_number + 1))
    return inspection.first_nonfinite(_rows_of_steps(adapter, shard, first_number, last_number))


def _with_label(adapters: Mapping[str, DataAdapter | None], shard: ReplicaShard, label: int) -> str:
    """Returns the first target with this label, such as "y[17]"; "": none was found. Only arrays are searched.

    Args:
        adapters: the name of the data, for its targets ("validation_data: "; "" for those of training) -> its adapter.
    """
    for name, adapter in adapters.items():
        if isinstance(adapter, RandomAccessAdapter):
            for rows in _rows_of_steps(adapter, shard, 1, adapter.pass_steps):
                found = np.argwhere(rows.columns["y"] == label) if "y" in rows.columns else ()
                if len(found):
                    return name + rows.place("y", tuple(int(index) for index in found[0]))
    return ""


def _rows_of_steps(adapter: DataAdapter, shard: ReplicaShard, first_number: int, last_number: int) -> Iterator[Rows]:
    elements = adapter.dataset(shard, first_number - 1, last_number)
    elements = elements.take((last_number - first_number + 1) * shard.local_replicas)
    for number, element in enumerate(read_ahead.without_autotuning(elements)):
        if int(element["count"]) == 0:
            continue
        step = first_number + number // shard.local_replicas
        replica = shard.first_replica + number % shard.local_replicas
        data = element["data"]
        given = data[0] if len(data) == 1 and isinstance(data[0], tuple) else data  # For a step of the model's own.
        if isinstance(adapter, RandomAccessAdapter):
            place = _of_arrays(adapter, shard, step - 1, replica)
        else:
            low, _ = base.shard_bounds(np.int64(replica), np.int64(element["total"]), shard.num_replicas)
            place = base.place_in_batch(int(low))
        yield Rows(step=step, columns=base.name_columns(given), place=place)


def _of_arrays(adapter: RandomAccessAdapter, shard: ReplicaShard, step: int, replica: int):
    ids, _, _ = adapter.ids(tf.constant(step, tf.int64), tf.constant(replica, tf.int64), shard.num_replicas)
    ids = ids.numpy()
    return lambda column, at: f"{column}{base.indices(int(ids[at[0]]), *at[1:])}"
