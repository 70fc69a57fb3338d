"""Makes the input of a run of a script from the adapters of its data."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from tfdist import config as config_lib
from tfdist.cluster.cluster import Cluster
from tfdist.data.feed import Examples, Feed, Sizes
from tfdist.data.stream import ReplicaShard
from tfdist.keras_fit import messages
from tfdist.keras_fit.adapters import same_data
from tfdist.keras_fit.adapters.base import DataAdapter, RandomAccess
from tfdist.keras_fit.adapters.stream import Stream
from tfdist.keras_fit.script import script_state
from tfdist.training import api as trainer


def make_feed(
    cluster: Cluster,
    config: config_lib.Config,
    adapter: DataAdapter,
    validation: DataAdapter | None,
    initial_epoch: int,
    *,
    compares: bool,
) -> Feed:
    """Makes the input of a run.

    Args:
        compares: whether a run that resumes compares the data with those of before.
    """
    shard = trainer.replica_shard(cluster)
    validate_again = functools.partial(_validate_again, config.evaluation.every, adapter.steps, validation)

    def open_training(start: int, stop: int) -> Iterator[Any] | None:
        if isinstance(adapter, Stream):
            return None
        for epoch in range(initial_epoch, start // adapter.steps):
            validate_again(epoch)
        return cluster.distribute(adapter.dataset(shard, start, stop))

    def iterator_at(present: Iterator[Any] | None, step: int) -> Iterator[Any]:
        epoch, step_in_epoch = divmod(step, adapter.steps)
        if not isinstance(adapter, Stream) or (present is not None and step_in_epoch):
            return present
        adapter.begin_epoch(epoch)
        return cluster.distribute(adapter.elements(shard, step_in_epoch))

    def end_epoch() -> None:
        adapter.end_epoch()
        if isinstance(adapter, Stream) and cluster.num_workers > 1 and script_state.in_script():
            _compare_first_batches(cluster, adapter)

    if isinstance(adapter, Stream) and validation is not adapter:
        adapter.validate = validate_again
        adapter.reset(initial_epoch)
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
        end_evaluation=lambda: None if validation is None else validation.end_epoch(),
        examples=functools.partial(same_data.examples, adapter) if compares else lambda count: Examples(),
        first_nonfinite=functools.partial(adapter.first_nonfinite, shard),
        find_label=functools.partial(_find_label, {"": adapter, "validation_data: ": validation}, shard),
    )


def _validate_again(every: config_lib.Every, steps_per_epoch: int, validation: DataAdapter | None, epoch: int) -> None:
    """Does to the validation data what was done after an epoch of an earlier start."""
    if validation is not None and trainer.DueSteps(every, steps_per_epoch).is_due((epoch + 1) * steps_per_epoch):
        validation.repeat_pass()


def _compare_first_batches(cluster: Cluster, adapter: Stream) -> None:
    """Compares what Python code of a script has made in an epoch that ends. Collective."""
    batches = cluster.all_gather([*adapter.first_batch()])
    if not same_data.are_alike(batches[cluster.rank], batches[0]):
        messages.log_once(
            f"WARNING: the first batch of the epoch of worker {cluster.rank} is not that of worker 0: data of a script "
            "must not depend on the process, the host or a thread.",
            everywhere=True,
        )


def _find_label(adapters: Mapping[str, DataAdapter | None], shard: ReplicaShard, label: int) -> str:
    """Returns the first target with this label, such as "y[17]"; "": none was found. Only arrays are searched.

    Args:
        adapters: the name of the data, for its targets ("validation_data: "; "" for those of training) -> its adapter.
    """
    arrays = {name: one for name, one in adapters.items() if isinstance(one, RandomAccess)}
    return next((name + place for name, one in arrays.items() if (place := one.find_label(shard, label))), "")
