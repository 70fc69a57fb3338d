"""Parts of weights and of their slots: which numbers each replica holds, and how the whole is put together again."""

import contextlib
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.checkpoint.divided import Divided
from tfdist.cluster.cluster import Cluster
from tfdist.training.consistency.replica_state import ReplicaState
from tfdist.training.run import replica_shard
from tfdist.training.step.updates.tables import Gradient

# Numbers of the smallest weight that is divided.
SMALLEST = 1024
# A part has a multiple of this many numbers, or of whole rows: TensorFlow then takes it without a copy.
_ALIGNED = 16
# Rows of a replica, at least, in a weight that is divided by rows: rounding up then wastes little.
_ROWS = 16
# The types of weights that are divided: those of TensorFlow's collectives.
_DTYPES = ("float16", "float32", "float64")
# Words, int64, that are gathered together.
_TOGETHER = 2**22


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Which numbers of a tensor each replica holds: replica r those from r x numbers on, in the order of memory."""

    # Of the whole, and of the part of a replica. The last replicas' parts may end with zeros.
    shape: tuple[int, ...]
    part: tuple[int, ...]
    replicas: int

    @property
    def size(self) -> int:
        """The numbers of the whole."""
        return math.prod(self.shape)

    @property
    def numbers(self) -> int:
        """The numbers of a part."""
        return math.prod(self.part)

    @property
    def by_rows(self) -> bool:
        """Whether a part has whole rows."""
        return self.part[1:] == self.shape[1:]

    def take(self, value: tf.Tensor, replica: int) -> tf.Tensor:
        """Returns the part of a replica, of shape `part`, of a tensor of shape `shape`."""
        first = min(replica * self.numbers, self.size)
        numbers = tf.reshape(value, [-1])[first : first + self.numbers]
        if missing := self.numbers - min(self.numbers, self.size - first):
            numbers = tf.concat([numbers, tf.zeros([missing], numbers.dtype)], axis=0)
        return tf.reshape(numbers, self.part)

    def take_rows(self, gradient: tf.IndexedSlices, replica: int) -> tf.IndexedSlices:
        """Returns the rows of a sparse gradient that are in the part of a replica, in their order."""
        first = replica * self.part[0]
        inside = (gradient.indices >= first) & (gradient.indices < first + self.part[0])
        values, indices = (tf.boolean_mask(one, inside) for one in (gradient.values, gradient.indices))
        return tf.IndexedSlices(values, indices - first, tf.constant(list(self.part)))

    def join(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns the whole of the parts of all replicas, [replicas, numbers]."""
        return tf.reshape(tf.reshape(rows, [-1])[: self.size], self.shape)


def choose_layout(weight: keras.Variable, replicas: int) -> Layout | None:
    """Returns the layout of a weight and its slots; None: each replica holds all of it."""
    shape = tuple(weight.shape)
    size = math.prod(shape)
    if size < SMALLEST or weight.dtype not in _DTYPES or getattr(weight, "overwrite_with_gradient", False):
        return None
    if len(shape) > 1 and shape[0] >= _ROWS * replicas:
        # The gradient of a table, such as an embedding's, consists of rows.
        return Layout(shape=shape, part=(-(-shape[0] // replicas), *shape[1:]), replicas=replicas)
    return Layout(shape=shape, part=(-(-size // (_ALIGNED * replicas)) * _ALIGNED,), replicas=replicas)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The part of a weight that each replica updates."""

    weight: keras.Variable
    layout: Layout
    # For the optimizer, in the place of the weight. It has values during an update only, and else no memory.
    variable: keras.Variable

    @classmethod
    def create(cls, cluster: Cluster, weight: keras.Variable, layout: Layout) -> "Part":
        """Makes the variable, with the path of the weight, by which slots are named; called in scope."""
        *scopes, name = weight.path.split("/")
        with contextlib.ExitStack() as stack:
            for scope in scopes:
                stack.enter_context(keras.name_scope(scope))
            start = tf.zeros(layout.part, weight.dtype)
            make = {"trainable": False, "dtype": weight.dtype, "aggregation": "none"}
            variable = keras.Variable(start, name=name, **make)
        part = cls(weight=weight, layout=layout, variable=variable)
        for local in cluster.local_values(variable.value):
            part.empty(local.handle, 0)
        return part

    def take(self, gradient: Gradient, replica: int) -> Gradient:
        """Returns what the gradient of the weight has for the part of a replica.

        Raises:
            ValueError: the gradient has rows, and the weight is not divided by rows.
        """
        if not isinstance(gradient, tf.IndexedSlices):
            return self.layout.take(gradient, replica)
        if not self.layout.by_rows:
            raise ValueError(
                f"config.train.shard_optimizer=True: the gradient of {self.weight.path!r}, of shape "
                f"{self.layout.shape}, has a row for each lookup, and the weight has too few rows to be divided by "
                "them. Set config.communication.sparse_as_dense to True, which sums the rows first."
            )
        return self.layout.take_rows(gradient, replica)

    def fill(self, replica: int) -> None:
        """Copies the part of the weight of a replica to the variable; called in `strategy.run`, as the next two."""
        assign(self.variable, self.layout.take(tf.convert_to_tensor(self.weight.value), replica))

    def read(self) -> tf.Tensor:
        """Returns the variable's values: [numbers]."""
        return tf.reshape(tf.convert_to_tensor(self.variable.value), [self.layout.numbers])

    def empty(self, handle: tf.Tensor, size: tf.Tensor | int) -> None:
        """Frees the memory of a copy of the variable.

        Args:
            size: 0. In a graph, a tensor: the graph's optimizers must not see that the variable has another size.
        """
        zeros = tf.zeros([size, *self.layout.part[1:]], self.variable.dtype)
        tf.raw_ops.AssignVariableOp(resource=handle, value=zeros)


def assign(variable: keras.Variable, value: tf.Tensor) -> None:
    """Assigns to this replica's copy of a variable, whatever its aggregation; called in `strategy.run`."""
    tf.raw_ops.AssignVariableOp(resource=variable.value.handle, value=value)


class DividedSlot(Divided):
    """A slot of the optimizer that is split between the replicas."""

    def __init__(self, cluster: Cluster, layout: Layout, variable: keras.Variable):
        self.shape, self.dtype = tf.TensorShape(layout.shape), tf.as_dtype(variable.dtype)
        self.variable = variable
        self._cluster, self._layout = cluster, layout

    def local(self) -> tuple[tf.Variable, ...]:
        return self._cluster.local_values(self.variable.value)

    def whole(self) -> np.ndarray:
        local = np.concatenate([part.numpy().reshape(-1) for part in self.local()])
        count, kind = local.size, local.dtype
        # As integers, whose sum with zeros keeps every bit.
        words = np.pad(local, (0, -count * kind.itemsize % 8 // kind.itemsize)).view(np.int64)
        step = max(_TOGETHER // self._cluster.num_replicas, 1)
        rows = [self._cluster.all_gather(words[first : first + step]) for first in range(0, len(words), step)]
        numbers = np.concatenate(rows, axis=1).view(kind)[:, :count]
        return numbers.reshape(-1)[: self._layout.size].reshape(self._layout.shape)

    def assign(self, values: Any) -> None:
        """Assigns to this worker's parts what they hold of `values`."""
        first = replica_shard(self._cluster).first_replica
        with tf.device("CPU:0"):
            whole = tf.constant(np.asarray(values))
        for replica, part in enumerate(self.local(), first):
            part.assign(self._layout.take(whole, replica))


class DividedState(ReplicaState):
    """What checkpoints have of the divided slots: the whole, by the usual names. Any number of replicas resumes.

    They are among the variables of the run, through which they are restored.
    """

    def __init__(self, cluster: Cluster, slots: Mapping[str, DividedSlot], parts: list[Part]):
        self._cluster, self._slots, self._parts = cluster, slots, parts

    def variables(self) -> list[Any]:
        return [*(slot.variable for slot in self._slots.values()), *(part.variable for part in self._parts)]

    def gather(self) -> dict[str, np.ndarray]:
        found = {}
        for name, slot in self._slots.items():
            values = slot.whole()
            if self._cluster.is_chief:
                found[name] = values
        return found
