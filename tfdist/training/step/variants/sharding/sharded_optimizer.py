"""`config.train.shard_optimizer`: each replica holds and updates its part of the optimizer's slots.

The first stage of ZeRO (Rajbhandari et al., arXiv 1910.02054). The sum of the gradients stays an all-reduce, so that
its bits stay the same; each replica then updates its part of each weight with the optimizer's own kernels, and gathers
the parts of the others. The optimizer updates each number by itself, so all bits are those of a run without.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

import keras
import tensorflow as tf

from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster.devices import replicas as replicas_lib
from tfdist.config import patching
from tfdist.report import lines
from tfdist.training.consistency.replica_state import JoinedState
from tfdist.training.run import Run
from tfdist.training.step import collectives
from tfdist.training.step.updates import stages, tables
from tfdist.training.step.updates.all_reduce import AllReduce
from tfdist.training.step.updates.tables import Gradients
from tfdist.training.step.variants.sharding.parts import DividedSlot, DividedState, Part, assign, choose_layout

_FIELD = "config.train.shard_optimizer"
# Keys of the replicas in a gather, and of the gathers: all workers take as many, in the same order. Those of TensorFlow
# itself start at 1 and at 100.
_GROUP_KEY, _keys = 2**20, itertools.count(2**20)
# Not Ftrl: TensorFlow rounds its powers differently at the end of a tensor.
_ELEMENT_WISE = (
    *(keras.optimizers.SGD, keras.optimizers.RMSprop, keras.optimizers.Adam, keras.optimizers.AdamW),
    *(keras.optimizers.Nadam, keras.optimizers.Adamax, keras.optimizers.Adagrad, keras.optimizers.Adadelta),
    keras.optimizers.Lion,
)


def check(optimizer: keras.optimizers.Optimizer) -> None:
    """Checks that an optimizer can update a part of a weight by itself.

    Raises:
        ValueError: it may compute with other numbers of the weight, or in another way at the end of a tensor.
    """
    if type(optimizer) not in _ELEMENT_WISE:
        names = ", ".join(kind.__name__ for kind in _ELEMENT_WISE)
        raise ValueError(
            f"{_FIELD}=True gives each replica a part of each weight, which needs an optimizer that updates each "
            f"number by itself, with the same bits anywhere in a tensor: {names}. Received: "
            f"{type(optimizer).__name__}. Set the field to False, or choose one of these."
        )
    if optimizer.use_ema:
        raise ValueError(
            f"{_FIELD}=True cannot be used with config.optimizer.use_ema=True: each replica evaluates the averages as "
            "a whole. Set one of them to False."
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardedApply:
    """The end of an update, in the place of that of `stages.make_apply`; called in `strategy.run`."""

    optimizer: keras.optimizers.Optimizer
    # The weights, and the part of each; None: each replica updates all of it.
    weights: Sequence[keras.Variable]
    parts: Sequence[Part | None]
    clip: Callable[[Gradients], Gradients]
    # Its options and its clock.
    reduction: AllReduce
    # Of the gathers of a step; as many as parts.
    keys: Sequence[int]
    one_cpu: bool

    def __call__(self, gradients: Gradients) -> None:
        """Clips summed gradients, updates this replica's parts, and gathers the parts of all."""
        replica = tf.get_static_value(replicas_lib.replica_id())
        assert replica is not None, "the replica is known when its step is traced"
        with tables.convert_in_fixed_order():
            gradients = self.clip(gradients)
            updated = [
                part
                for part, gradient in zip(self.parts, gradients, strict=True)
                if part is not None and gradient is not None
            ]
            for part in updated:
                part.fill(replica)
            parts = [
                gradient if part is None or gradient is None else part.take(gradient, replica)
                for part, gradient in zip(self.parts, gradients, strict=True)
            ]
            self.optimizer.apply(parts, updated_variables(self.weights, self.parts))
        self._gather(updated)
        for part in updated:
            if part.weight.constraint is not None:
                assign(part.weight, part.weight.constraint(tf.convert_to_tensor(part.weight.value)))

    def _gather(self, updated: Sequence[Part]) -> None:
        """Sets weights to the parts of all replicas."""
        values = {id(part): part.read() for part in updated}
        ready = self.reduction.clock([*values.values()])
        gathered: list[tf.Tensor] = []
        # The gradients of the last layers are summed first.
        for number, pack in enumerate(_packs(updated[::-1], self.reduction.options.bytes_per_pack)):
            parts = [values[id(part)] for part in pack]
            # After the pack before the last one: their old weights are freed by then.
            with tf.control_dependencies(gathered[-2:-1]):
                joined = tf.concat(parts, axis=0) if len(parts) > 1 else tf.identity(parts[0])
            rows = _all_gather(joined, self.keys[number], like=pack[0].weight.value, one_cpu=self.one_cpu)
            gathered.append(rows)
            first = 0
            for part in pack:
                last = first + part.layout.numbers
                assign(part.weight, part.layout.join(rows[:, first:last]))
                first = last
        none = tf.minimum(tf.convert_to_tensor(self.optimizer.iterations), 0)
        for part in updated:
            part.empty(part.variable.value.handle, none)
        self.reduction.seconds.assign_add(self.reduction.clock(gathered) - ready)


def updated_variables(weights: Sequence[keras.Variable], parts: Sequence[Part | None]) -> list[keras.Variable]:
    """Returns what the optimizer updates: the variables of the parts, and the weights that are not divided."""
    return [weight if part is None else part.variable for weight, part in zip(weights, parts, strict=True)]


def _packs(parts: Sequence[Part], num_bytes: int | None) -> Iterator[list[Part]]:
    """Divides parts into groups that are gathered together: of one type, and at most `num_bytes` of weights; 0: all."""
    for dtype in dict.fromkeys(part.weight.dtype for part in parts):
        pack: list[Part] = []
        for part in (one for one in parts if one.weight.dtype == dtype):
            size = sum(one.layout.size for one in (*pack, part)) * tf.as_dtype(dtype).size
            if pack and num_bytes and size > num_bytes:
                yield pack
                pack = []
            pack.append(part)
        yield pack


def compose(run: Run) -> Run:
    """Returns `run`, whose optimizer has no slots yet, with slots that are divided between the replicas."""
    context, cluster = run.context, run.cluster
    optimizer, weights = context.optimizer, context.model.trainable_variables
    check(optimizer)
    has_slots = type(optimizer) is not keras.optimizers.SGD or optimizer.momentum
    with cluster.scope():
        if cluster.num_replicas == 1 or not has_slots:
            optimizer.build(weights)
            reason = "one replica holds all slots" if has_slots else "SGD without momentum has no slots"
            return _with_note(run, f"{_FIELD}=True has no effect: {reason}.")
        layouts = [choose_layout(weight, cluster.num_replicas) for weight in weights]
        parts = [
            None if layout is None else Part.create(cluster, weight, layout)
            for weight, layout in zip(weights, layouts, strict=True)
        ]
        slots = _build(optimizer, updated_variables(weights, parts))
    layout_of = {id(part.variable): part.layout for part in parts if part is not None}
    divided = {
        name: DividedSlot(cluster, layout_of[slots[id(slot)]], slot)
        for name, slot in checkpoint_format.unique_names("optimizer", optimizer.variables).items()
        if slots.get(id(slot)) in layout_of
    }
    apply = ShardedApply(
        optimizer=optimizer,
        weights=weights,
        parts=parts,
        clip=stages.make_clip(run.config.train.clip_norm, cluster, equal=True),
        reduction=context.reduction,
        keys=[next(_keys) for _ in parts],
        one_cpu=cluster.device_type == "CPU" and cluster.num_replicas == cluster.num_workers,
    )
    run = dataclasses.replace(
        run,
        context=dataclasses.replace(context, apply=apply),
        more_variables={**run.more_variables, **divided},
        replica_state=JoinedState(
            run.replica_state, DividedState(cluster, divided, [part for part in parts if part is not None])
        ),
    )
    return _with_note(run, _describe(optimizer, divided))


def _build(optimizer: keras.optimizers.Optimizer, variables: list[keras.Variable]) -> dict[int, int]:
    """Makes the slots of an optimizer for `variables`; returns, by the id of a slot, the id of its variable."""
    found: dict[int, int] = {}

    def note(original: Callable[..., keras.Variable], reference: keras.Variable, *args, **keywords) -> keras.Variable:
        slot = original(reference, *args, **keywords)
        found[id(slot)] = id(reference)
        return slot

    with patching.patch(optimizer, "add_variable_from_reference", note):
        optimizer.build(variables)
    return found


def _with_note(run: Run, text: str) -> Run:
    return dataclasses.replace(run, log=dataclasses.replace(run.log, notes=(*run.log.notes, text)))


def _describe(optimizer: keras.optimizers.Optimizer, divided: dict[str, DividedSlot]) -> str:
    """Returns what the log says: the bytes of the slots, and those that a replica holds."""
    held = sum(checkpoint_format.num_bytes({"": slot}) for slot in optimizer.variables)
    parts = sum(checkpoint_format.num_bytes({"": slot.variable}) for slot in divided.values())
    whole = held - parts + sum(checkpoint_format.num_bytes({"": slot}) for slot in divided.values())
    count = lines.count(len(divided), "slot")
    return f"{_FIELD}=True: {count} divided, a replica holds {held / 1e6:.2f} MB of {whole / 1e6:.2f}"


def _all_gather(value: tf.Tensor, key: int, *, like: tf.Variable, one_cpu: bool) -> tf.Tensor:
    """Returns `value` [n] of all replicas, with the same bits: [replicas, n]; called in `strategy.run`.

    Args:
        key: of the gather in a step, one of `_keys`: the same on all replicas.
        like: a variable on the replica's device.
        one_cpu: whether each worker has one replica, on its CPU. Then TensorFlow's op is called directly: the method of
            its replica context also gathers the lengths, and copies the values six times.
    """
    if one_cpu:
        rows = tf.raw_ops.CollectiveGatherV2(
            input=value,
            group_size=collectives.num_replicas(),
            group_key=_GROUP_KEY,
            instance_key=key,
            ordering_token=[],
            communication_hint="ring",
        )
    else:
        with tf.device(like.handle.device):
            value = tf.identity(value)
        rows = tf.distribute.get_replica_context().all_gather(value, axis=0)
    return tf.reshape(rows, [collectives.num_replicas(), *value.shape])
