"""`config.train.virtual_replicas`: bit for bit the same training on any number of replicas that divides it.

The global batch is always cut into this many shards of fixed shape; a replica computes its shards one after another.
This is the idea of EasyScale (arXiv 2208.14228). docs/same-bits.md says what is equal, and what it costs.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.cluster.cluster import Cluster
from tfdist.cluster.devices import onednn
from tfdist.data import batches
from tfdist.data.feed import Distributor, Feed, Sizes
from tfdist.data.pipelines import Inputs
from tfdist.data.stream import ReplicaShard
from tfdist.report import files, run_info
from tfdist.training.run import Run
from tfdist.training.step import objective as objective_lib
from tfdist.training.step import timing
from tfdist.training.step.layers import model_layers, normalization
from tfdist.training.step.variants import sharded_objective, shards
from tfdist.training.step.variants.integers import Integers

# In kernels of TensorFlow, the order of sums may depend on the number of threads.
_THREADS = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VirtualReplicas:
    """Composes a run whose global batch has a fixed number of shards."""

    config: config_lib.Config
    # Number of shards of the global batch.
    total: int
    # Number of shards of a replica.
    count: int

    def cut(self, make_feed: Callable[..., Feed]) -> Callable[..., Feed]:
        """Returns `make_feed` with batches [shards of a replica, examples of a shard, ...]."""

        def make_cut_feed(
            config: config_lib.Config, inputs: Inputs, sizes: Sizes, shard: ReplicaShard, cluster: Distributor
        ) -> Feed:
            # Shards take the place of replicas.
            local = ReplicaShard(
                first_replica=shard.first_replica * self.count,
                local_replicas=shard.local_replicas * self.count,
                num_replicas=self.total,
            )
            distributor = _ByShards(cluster=cluster, stack_shards=self.stack_shards)
            feed = make_feed(config, inputs, sizes, local, distributor)
            evaluation = feed.evaluation

            def evaluate() -> tuple[tf.data.Dataset, int]:
                dataset, steps = evaluation()
                return distributor.stack_shards(dataset), steps

            return dataclasses.replace(feed, evaluation=None if evaluation is None else evaluate)

        return make_cut_feed

    def stack_shards(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Batches elements of shards into elements of a replica, [shards of a replica, ...]; ragged if shapes vary."""
        same = all(spec.shape.is_fully_defined() for spec in tf.nest.flatten(dataset.element_spec))
        batch = dataset.batch if same else dataset.ragged_batch
        return batch(self.count, drop_remainder=True).prefetch(1)

    def compose(self, run: Run) -> Run:
        """Returns `run` with virtual replicas; ValueError if the model computes something over more than one shard."""
        context, cluster = run.context, run.cluster
        _check_model(self.config, self.total, context.model)
        inner = dataclasses.replace(run.objective, shards=self.count)
        objective = sharded_objective.ShardedObjective(inner=inner, count=self.count)
        summed = [*context.model.trainable_variables, *context.statistics]
        integers = Integers(shards=self.total, integer=_integer_type(cluster))
        none = tf.VariableAggregation.NONE
        with cluster.scope():
            totals = timing.make_counter([len(objective.names) + len(objective_lib.COUNTS)], "totals")
            ranges = tf.Variable(
                tf.zeros([len(summed)], tf.float64), trainable=False, aggregation=none, name="virtual_replicas_ranges"
            )
        step = shards.ShardedStep(count=self.count, integers=integers, ranges=ranges)
        return dataclasses.replace(
            run,
            # The step has summed the integers of all shards before the update.
            context=dataclasses.replace(
                context, objective=objective, totals=totals, reduce_stage=lambda next_stage, update: next_stage(update)
            ),
            train_step=step,
            more_variables={**run.more_variables, "virtual_replicas/ranges": ranges},
            log=dataclasses.replace(run.log, notes=(*run.log.notes, *self._notes(run))),
        )

    def _notes(self, run: Run) -> list[str]:
        notes = [*_changes(run)]
        if tf.config.threading.get_intra_op_parallelism_threads() != _THREADS:
            notes.append(
                f"TensorFlow was already running, and does not use {_THREADS} thread per op: results have the same "
                "bits only with the same number of threads and the same processor."
            )
        return [f"config.train.virtual_replicas={self.total}: {note}" for note in notes]


def _changes(run: Run) -> Iterator[str]:
    """Yields changes since the last start in the workdir that may change the bits of results."""
    if run.workdir is None or not run.cluster.is_chief:
        return
    before = files.read_json(run.workdir / run_info.ENVIRONMENT) or {}
    now = {
        "the processor": (before.get("processor"), onednn.read_processor().name),
        "oneDNN": ((before.get(onednn.ENTRY) or {}).get("enabled"), onednn.enabled()),
    }
    for name, (old, new) in now.items():
        if old is not None and old != new:
            yield f"{name} was {old} in the last start and is {new} now: results may have other bits"


def open_virtual_replicas(config: config_lib.Config, num_replicas: int) -> VirtualReplicas:
    """Checks the config, and sets the number of threads of this process, before TensorFlow uses a device.

    Raises:
        ValueError: `virtual_replicas` is not a multiple of the number of replicas, or does not divide the batch.
    """
    total = config.train.virtual_replicas
    if total % num_replicas:
        divisors = [n for n in range(1, total + 1) if total % n == 0]
        raise ValueError(
            f"config.train.virtual_replicas={total} cannot be used: there are {num_replicas} replicas, and their "
            f"number must be one of {', '.join(map(str, divisors))}."
        )
    batches.check_divisible(config, total)
    # In a process that is already connected, it is too late to set the number: then `compose` adds a warning.
    if tf.config.threading.get_intra_op_parallelism_threads() != _THREADS:
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(_THREADS)
    # These optimizations reassociate some products with constants. Which ones depends on the collectives in the graph,
    # and so on the number of replicas.
    tf.config.optimizer.set_experimental_options({"constant_folding": False, "arithmetic_optimization": False})
    return VirtualReplicas(config=config, total=total, count=total // num_replicas)


def _check_model(config: config_lib.Config, total: int, model: keras.Model) -> None:
    shard = config.data.batch_size // (total * config.train.micro_batches)
    found = []
    for layer in normalization.normalizations(model):
        size = getattr(layer, "group_size", None)
        if layer.synchronized:
            found.append(f"the layer {layer.name!r} normalises over the global batch (synchronized)")
        elif size and shard % size:
            groups = f"groups of {size} examples, which do not divide the {shard} of a shard"
            found.append(f"the layer {layer.name!r} normalises over {groups}")
    for layer in model_layers.all_layers(model):
        own = [one for one in layer.non_trainable_weights if not keras.backend.is_float_dtype(one.dtype)]
        if own and layer is not model and not type(layer).__module__.startswith("keras."):
            found.append(f"the layer {layer.name!r} has the state {own[0].name!r} of type {own[0].dtype}, not float")
    wide = [one.path for one in model.variables if one.dtype == "float64"]
    if wide:
        found.append(f"{wide[0]} is of float64, and only float32 is summed exactly")
    if model.losses and total & (total - 1):
        found.append("the model has penalties, which are divided exactly by powers of two only")
    if found:
        raise ValueError(f"config.train.virtual_replicas={total} cannot be used: {'; '.join(found)}.")


def _integer_type(cluster: Cluster) -> tf.DType:
    """Returns the dtype in which integers are summed; both give the same numbers.

    On GPUs TensorFlow keeps int32 in host memory, and a MirroredStrategy sums no lists of int32.
    """
    mirrored = cluster.num_workers == 1 and cluster.num_replicas > 1
    return tf.int64 if mirrored or cluster.device_type != "CPU" else tf.int32


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _ByShards:
    """A `Distributor` whose elements contain all shards of a replica."""

    cluster: Distributor
    stack_shards: Callable[[tf.data.Dataset], tf.data.Dataset]

    @property
    def num_workers(self) -> int:
        return self.cluster.num_workers

    def distribute(self, dataset: tf.data.Dataset) -> Iterator[Any]:
        return self.cluster.distribute(self.stack_shards(dataset))
