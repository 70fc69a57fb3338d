"""`config.consistency.audit`: in some steps each replica computes again the share of the next one, and they compare.

With virtual replicas a share gives the same integers on any device. Replica r computes that of replica r + 1 from the
same weights and examples, before the integers are summed; hashes of both are gathered. If they differ, both compute
both shares again, a third replica computes them as well, and the hashes of all tensors are kept for
`consistency/audit.py`, which names what computes wrongly.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfdist.cluster.devices import gather, gpu_software
from tfdist.cluster.devices import replicas as replicas_lib
from tfdist.data.feed import Batch
from tfdist.training.consistency import audit, hashing, replica_check
from tfdist.training.consistency.replica_state import ReplicaState
from tfdist.training.run import Run
from tfdist.training.step import collectives
from tfdist.training.step.context import StepContext
from tfdist.training.step.random_numbers import seed_generators
from tfdist.training.step.updates import all_reduce
from tfdist.training.step.variants.shards import ShardedStep, ShardResults

_FIELD = "config.consistency.audit.every"
# What `ShardResults.pack` has before the integers.
_VALUES = ("losses and metrics", "the largest elements", "non-finite elements")
_BITS = {2: tf.int16, 4: tf.int32, 8: tf.int64}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AuditedStep(ShardedStep):
    """As `ShardedStep`, and compares shares in each step whose number is a multiple of `every`."""

    every: int
    # All that replicas share, by name.
    variables: Mapping[str, Any]
    # The step of the first difference, 0: there is none, and its rows; see `audit.Layout`: int64 [1 + replicas * row].
    found: tf.Variable

    def _forward_backward(
        self, context: StepContext, shards: Batch, ranges: tf.Tensor
    ) -> tuple[ShardResults, list[bool]]:
        present: list[bool] = []
        share = self.make_share(context, ranges, present)
        results = share(shards, replicas_lib.replica_id())
        number = seed_generators.steps_made(context.step_count) + 1
        compare = functools.partial(self._compare, context, share, shards, results, number)
        collectives.cond_on_all_replicas(tf.equal(number % self.every, 0), compare, lambda: None)
        return results, present

    def _compare(
        self,
        context: StepContext,
        share: Callable[[Batch, tf.Tensor], ShardResults],
        shards: Batch,
        results: ShardResults,
        number: tf.Tensor,
    ) -> None:
        """Compares the states of all replicas and, of each share, the results of two of them."""
        cluster = context.cluster
        count, replica = cluster.num_replicas, replicas_lib.replica_id()
        batches = self._gather_batches(context, shards)

        def hash_share(which: tf.Tensor) -> tf.Tensor:
            batch = tf.nest.map_structure(lambda value: value[which], batches)
            return hashing.hash_each(share(batch, which).pack(), cluster.device_type)

        states = replica_check.hash_variables(cluster, self.variables)
        first, checked = hashing.hash_each(results.pack(), cluster.device_type), hash_share((replica + 1) % count)
        whole = [hashing.combine(one, cluster.device_type) for one in (states, first, checked)]
        of_states, of_first, of_checked = tf.unstack(_gather(cluster, tf.stack(whole)), axis=1)
        differ = tf.reduce_any(of_states != of_states[0]) | tf.reduce_any(of_checked != tf.roll(of_first, -1, axis=0))

        def keep() -> None:
            again = [hash_share((replica + offset) % count) for offset in (0, 1, 2)]
            rows = _gather(cluster, tf.concat([states, first, checked, *again], axis=0))
            new = tf.concat([tf.cast(number, tf.int64)[tf.newaxis], tf.reshape(rows, [-1])], axis=0)
            old = tf.identity(self.found)
            self.found.assign(tf.where(old[0] > 0, old, new))

        collectives.cond_on_all_replicas(differ, keep, lambda: None)

    def _gather_batches(self, context: StepContext, shards: Batch) -> Batch:
        """Returns the examples of all replicas, [replicas, count, n, ...], with all their bits."""
        values = tf.nest.flatten(shards)
        bits = [_to_integers(value, self.integers.integer) for value in values]
        rows = [_in_own_row(context.cluster, one) for one in bits]
        rows = all_reduce.sum_over_replicas(rows, context.reduction.options)
        found = [_from_integers(row, value.dtype) for row, value in zip(rows, values, strict=True)]
        return tf.nest.pack_sequence_as(shards, found)


def _in_own_row(cluster: Any, value: tf.Tensor) -> tf.Tensor:
    """Returns integers [...] as [replicas, ...] with zeros in the rows of the other replicas."""
    place = tf.one_hot(replicas_lib.replica_id(), cluster.num_replicas, dtype=value.dtype)
    return tf.reshape(place, [-1, *([1] * value.shape.rank)]) * value[tf.newaxis]


def _gather(cluster: Any, value: tf.Tensor) -> tf.Tensor:
    """Gathers int64 [k] of all replicas: [replicas, k]."""
    return collectives.sum_differentiable(_in_own_row(cluster, value))


def _to_integers(value: tf.Tensor, small: tf.DType) -> tf.Tensor:
    """Returns the bits of `value` as integers, of the type `small` if they fit: a sum of integers keeps them."""
    if value.dtype == tf.string:
        raise ValueError(f"{_FIELD} cannot be used: a batch has texts, which replicas cannot send to each other.")
    value = gather.to_bits(value)
    value = tf.bitcast(value, _BITS[value.dtype.size]) if value.dtype.is_floating else value
    return value if value.dtype == tf.int64 else tf.cast(value, small)


def _from_integers(bits: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Inverts `_to_integers` of a value of `dtype`."""
    if dtype in (tf.float16, tf.float32, tf.float64):
        return tf.bitcast(tf.cast(bits, _BITS[dtype.size]), dtype)
    return gather.from_bits(tf.cast(bits, tf.int32) if dtype.size < 8 else bits, dtype)


@dataclasses.dataclass(frozen=True, slots=True)
class _Kept(ReplicaState):
    """Names `AuditedStep.found`, which is no state of the run, as known."""

    found: tf.Variable

    def variables(self) -> list[Any]:
        return [self.found]


def compose(run: Run) -> Run:
    """Returns `run`, one of virtual replicas, with audited steps; with one replica, with a note that says why not.

    Raises:
        ValueError: the devices are GPUs whose kernels may add in any order.
    """
    every, cluster = run.config.consistency.audit.every, run.cluster
    if cluster.num_replicas == 1:
        note = f"{_FIELD}={every} has no effect: one replica has no other that computes its share again."
        return dataclasses.replace(run, log=dataclasses.replace(run.log, notes=(*run.log.notes, note)))
    if cluster.device_type != "CPU" and not gpu_software.is_deterministic(os.environ):
        raise ValueError(
            f"{_FIELD}={every} compares bits, and kernels of GPUs add in no fixed order unless the environment has "
            "TF_DETERMINISTIC_OPS=1: set it, or set the field to None."
        )
    step, variables = run.train_step, replica_check.select_comparable(run.variables)
    trained = [one.path for one in (*run.context.model.trainable_variables, *run.context.statistics)]
    layout = audit.Layout(states=tuple(variables), values=(*_VALUES, *trained), replicas=cluster.num_replicas)
    with cluster.scope():
        found = tf.Variable(
            tf.zeros([1 + layout.size], tf.int64),
            trainable=False,
            aggregation=tf.VariableAggregation.NONE,
            name="audit_found",
        )
    fields = {field.name: getattr(step, field.name) for field in dataclasses.fields(step)}
    return dataclasses.replace(
        run,
        train_step=AuditedStep(**fields, every=every, variables=variables, found=found),
        execution_context=functools.partial(audit.check_after, run, layout, found),
        replica_state=_Kept(found),
    )
