"""`config.communication.compression`: PowerSGD with error feedback (Vogels et al., arXiv 1905.13727, algorithms 1, 2).

Each replica adds its gradient to its error of the steps before: M. The replicas sum M Q, orthogonalise the sum, P, and
sum M^T P, the next Q. P Q^T takes the place of the summed gradient; what it lacks is the new error. All depends on sums
over replicas only, so N replicas make the update of one, to rounding, and the errors can be moved between replicas.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.checkpoint import format as checkpoint_format
from tfdist.checkpoint import restore
from tfdist.checkpoint.format import Saved
from tfdist.cluster.cluster import Cluster
from tfdist.cluster.devices import replicas as replicas_lib
from tfdist.report import lines
from tfdist.training.consistency import hashing
from tfdist.training.consistency.replica_state import JoinedState, ReplicaState
from tfdist.training.run import Run, replica_shard
from tfdist.training.step.layers import model_layers
from tfdist.training.step.random_numbers import seed_generators
from tfdist.training.step.updates import branches
from tfdist.training.step.updates.all_reduce import AllReduce
from tfdist.training.step.updates.loss_scale import LossScale
from tfdist.training.step.updates.stages import Stage, Update
from tfdist.training.step.variants import factors
from tfdist.training.step.variants.factors import Layout

# Of factors. Over 1 Gbit/s three packs of those of ResNet50V2 make a step 2.5 % shorter than one.
_BYTES_PER_PACK = 300_000
# Bytes of the errors of a replica that are gathered together.
_TOGETHER = 2**25


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Compressed:
    """A variable whose gradient is compressed."""

    # Its index among the trainable variables.
    index: int
    layout: Layout
    # The error of each replica, of the variable's shape; in units of the gradient without loss scale.
    error: keras.Variable
    # Q of the next step, [longer side, rank]: equal on all replicas.
    q: keras.Variable


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PowerSGD:
    """The stage of an update that sums gradients over replicas, in the place of `stages.sum_over_replicas`."""

    # Sums what is not compressed.
    reduction: AllReduce
    compressed: tuple[Compressed, ...]
    exact_steps: int
    # By which the gradients are multiplied; None: they are not.
    loss_scale: LossScale | None
    # Optimizer steps so far: int64 [].
    step_count: keras.Variable
    # Whether all replicas take P of the first one: the processors of several workers may round differently.
    takes_first: bool
    # Whether the workers' processors round the products differently.
    by_element: bool

    def __call__(self, following: Stage, update: Update) -> tf.Tensor | None:
        """Sums gradients and flags over all replicas, and averages the moving statistics."""
        chosen = [one for one in self.compressed if isinstance(update.gradients[one.index], tf.Tensor)]
        places = {one.index for one in chosen}
        gradients = [update.gradients[one.index] for one in chosen]
        rest = [None if index in places else gradient for index, gradient in enumerate(update.gradients)]
        totals, flags = self.reduction(rest, list(update.flags), update.statistics, update.weight)
        variables = [variable for one in chosen for variable in (one.error, one.q)]
        before = [(variable, tf.identity(variable.value)) for variable in variables]
        after = [total for total in totals if isinstance(total, tf.Tensor)]
        for one, total in zip(chosen, self._sum(chosen, gradients, [*after, *flags]), strict=True):
            totals[one.index] = total
        statistics = [*update.statistics, *before]
        return following(dataclasses.replace(update, gradients=totals, flags=flags, statistics=statistics))

    def _sum(
        self, chosen: Sequence[Compressed], gradients: list[tf.Tensor], after: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Returns the sums of `gradients` over all replicas; `after`: the sums of what is not compressed."""
        if not chosen:
            return []

        def exact() -> list[tf.Tensor]:
            return self.reduction.time_sum(gradients, self.reduction.options, after)

        def approximate() -> list[tf.Tensor]:
            return self._approximate(chosen, gradients, after)

        if not self.exact_steps:
            return approximate()
        begun = seed_generators.steps_made(self.step_count) >= self.exact_steps
        return branches.choose_on_all_replicas(begun, approximate, exact)

    def _approximate(
        self, chosen: Sequence[Compressed], gradients: list[tf.Tensor], after: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        scale = 1.0 if self.loss_scale is None else tf.identity(self.loss_scale.value)
        for one, gradient in zip(chosen, gradients, strict=True):
            _subtract(one.error, -1 / scale, gradient)
        matrices = [tf.reshape(one.error.value, [one.layout.rows, one.layout.columns]) for one in chosen]
        old = [tf.identity(one.q.value) for one in chosen]
        pack = dataclasses.replace(self.reduction.options, bytes_per_pack=_BYTES_PER_PACK)
        triples = [(one.layout, *pair) for one, *pair in zip(chosen, matrices, old, strict=True)]
        ps = self.reduction.time_sum([scale * layout.first(m, q) for layout, m, q in triples], pack, after)
        ps = factors.orthogonalise(ps)
        qs = [scale * one.layout.second(m, p) for one, m, p in zip(chosen, matrices, ps, strict=True)]
        if self.takes_first:
            is_first = replicas_lib.is_first()
            sums = self.reduction.time_sum([*qs, *(p if is_first else tf.zeros_like(p) for p in ps)], pack)
            qs, ps = sums[: len(qs)], sums[len(qs) :]
        else:
            qs = self.reduction.time_sum(qs, pack)
        product = Layout.product_by_element if self.by_element else Layout.product
        totals = [product(one.layout, p, q) for one, p, q in zip(chosen, ps, qs, strict=True)]
        totals = [tf.reshape(total, gradient.shape) for total, gradient in zip(totals, gradients, strict=True)]
        for one, total, q in zip(chosen, totals, factors.normalise(qs, old), strict=True):
            _subtract(one.error, 1 / (scale * self.reduction.num_replicas), total)
            one.q.assign(q)
        return totals


def _subtract(variable: keras.Variable, factor: tf.Tensor | float, value: tf.Tensor) -> None:
    """Subtracts `factor` x `value` from a variable of float32, in one pass over memory."""
    tf.raw_ops.ResourceApplyGradientDescent(
        var=variable.value.handle, alpha=tf.convert_to_tensor(factor, tf.float32), delta=value
    )


def compose(run: Run) -> Run:
    """Returns `run` with PowerSGD in the place of the sum over replicas, and with its state."""
    context, config = run.context, run.config
    options = config.communication.compression
    with run.cluster.scope():
        compressed = tuple(_compress(context.model, options, config.seed))
    reduction = context.reduction
    power_sgd = PowerSGD(
        reduction=reduction,
        compressed=compressed,
        exact_steps=options.exact_steps,
        loss_scale=context.loss_scale,
        step_count=context.step_count,
        takes_first=run.cluster.num_workers > 1,
        by_element=_round_differently(run.cluster, compressed, options.rank),
    )
    variables = [context.model.trainable_variables[one.index] for one in compressed]
    names = list(checkpoint_format.unique_names("compression", variables))
    errors = {name: one.error for name, one in zip(names, compressed, strict=True)}
    qs = {f"{name}/q": one.q for name, one in zip(names, compressed, strict=True)}
    return dataclasses.replace(
        run,
        context=dataclasses.replace(context, add_up=power_sgd),
        more_variables={**run.more_variables, **qs},
        replica_state=JoinedState(run.replica_state, ErrorState(cluster=run.cluster, errors=errors)),
        log=dataclasses.replace(run.log, notes=(*run.log.notes, _note(context.model, compressed, options))),
    )


def _compress(model: keras.Model, options: config_lib.Compression, seed: int) -> Iterator[Compressed]:
    """Makes the variables of each gradient that is compressed; called in scope."""
    tables = {
        id(layer.embeddings)
        for layer in model_layers.of_all_depths(model)
        if isinstance(layer, keras.layers.Embedding) and layer.built
    }
    for index, variable in enumerate(model.trainable_variables):
        layout = factors.choose_layout(variable.shape, options.rank, options.smallest)
        if layout is None or variable.dtype != "float32" or id(variable) in tables:
            continue
        make = {"trainable": False, "aggregation": "none"}
        yield Compressed(
            index=index,
            layout=layout,
            error=keras.Variable(tf.zeros(variable.shape), name="compression_error", **make),
            q=keras.Variable(layout.start(options.rank, [seed, index]), name="compression_q", **make),
        )


def _round_differently(cluster: Cluster, compressed: Sequence[Compressed], rank: int) -> bool:
    """Returns whether the workers get different bits for a product. Collective."""
    if cluster.num_workers == 1 or not compressed:
        return False
    found = cluster.all_gather([layout.hash_of_product(rank) for layout in {one.layout: None for one in compressed}])
    return bool((found != found[0]).any())


def _note(model: keras.Model, compressed: Sequence[Compressed], options: config_lib.Compression) -> str:
    """Returns what the log says: how many gradients are compressed, and the numbers that a step sends."""
    sizes = [math.prod(variable.shape) for variable in model.trainable_variables]
    sides = sum(one.layout.rows + one.layout.columns for one in compressed)
    sent = sum(sizes) - sum(sizes[one.index] for one in compressed) + options.rank * sides
    text = f"{len(compressed)} of {lines.count(len(sizes), 'gradient')} as factors, {sent:,} numbers for {sum(sizes):,}"
    return f"config.communication.compression.rank={options.rank}: a step sends {text}"


class ErrorState(ReplicaState):
    """The errors, float32, by the names that they have in checkpoints after `checkpoint_format.REPLICAS`."""

    def __init__(self, *, cluster: Cluster, errors: Mapping[str, keras.Variable]):
        self._cluster = cluster
        self._errors = {f"{checkpoint_format.REPLICAS}{name}": error for name, error in errors.items()}
        # Compiled once, at the first save.
        self._gathers = [
            (pieces, cluster.make_all_gather(_words_of([(self._errors[name], part) for name, part in pieces])))
            for pieces in _divide({name: error.shape.num_elements() for name, error in self._errors.items()})
        ]

    def variables(self) -> list[Any]:
        return list(self._errors.values())

    def gather(self) -> dict[str, np.ndarray]:
        """Returns on the chief the errors of all replicas, float32 [replicas, ...] each. Collective."""
        found: dict[str, np.ndarray] = {}
        for pieces, gather in self._gathers:
            words = gather()
            if not self._cluster.is_chief:
                continue
            numbers, first = words.numpy().view(np.float32), 0
            for name, part in pieces:
                if name not in found:
                    found[name] = np.empty([len(numbers), self._errors[name].shape.num_elements()], np.float32)
                found[name][:, part] = numbers[:, first : first + part.stop - part.start]
                first += part.stop - part.start
        return {name: numbers.reshape(-1, *self._errors[name].shape) for name, numbers in found.items()}

    def _assign(self, name: str, found: np.ndarray | None) -> None:
        """Assigns errors, float32 [replicas, ...]; None: zeros.

        If they are those of another number of replicas, the first replica gets their sum and the others get zeros: all
        steps depend on the sum only.
        """
        first = replica_shard(self._cluster).first_replica
        for replica, variable in enumerate(self._cluster.local_values(self._errors[name].value), first):
            value = np.zeros(variable.shape, np.float32)
            if found is not None and len(found) == self._cluster.num_replicas:
                value = found[replica]
            elif found is not None and replica == 0:
                value = found.sum(axis=0, dtype=np.float64).astype(np.float32)
            variable.assign(value)

    def restore(self, saved: Saved | None) -> None:
        names = [] if saved is None else [name for name in self._errors if name in saved.arrays]
        for name in self._errors.keys() - set(names):
            self._assign(name, None)
        for name, found in restore.read(self._cluster, saved, names) if names else ():
            self._assign(name, found)


def _divide(sizes: Mapping[str, int]) -> Iterator[list[tuple[str, slice]]]:
    """Divides arrays of float32, by their numbers of values, into lists of parts of at most `_TOGETHER` bytes."""
    most = _TOGETHER // 4
    group: list[tuple[str, slice]] = []
    room = most
    for name, size in sizes.items():
        first = 0
        while first < size:
            last = min(size, first + room)
            group.append((name, slice(first, last)))
            room -= last - first
            first = last
            if not room:
                yield group
                group, room = [], most
    if group:
        yield group


def _words_of(parts: Sequence[tuple[keras.Variable, slice]]) -> Callable[[], tf.Tensor]:
    """Returns a function that returns the bits of parts of a replica's errors: int64 [n], padded with zeros."""
    return lambda: hashing.as_int64_words(
        tf.concat([tf.reshape(error.value, [-1])[part] for error, part in parts], axis=0)
    )
