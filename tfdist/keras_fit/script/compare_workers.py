"""Compares the workers of a script after each epoch: what Python code makes on each must be the same everywhere.

That is the first batch of the epoch, if Python code makes it, the random generators of Python and NumPy, and the plain
attributes of callbacks: numbers, texts, arrays and lists of them. A difference is a warning that names them.
"""

import json
import random
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tfdist.cluster.cluster import Cluster
from tfdist.keras_fit import messages
from tfdist.keras_fit.adapters.stream import Stream
from tfdist.keras_fit.script import script_state

_TOLERANCE = 1e-4
# A number that a clock has shown since so many seconds before this import is a time.
_EARLIER_SECONDS = 60.0
_CLOCKS: tuple[Callable[[], float], ...] = (time.time, time.perf_counter, time.monotonic)
_STARTED = tuple(clock() - _EARLIER_SECONDS for clock in _CLOCKS)


class WorkerComparison:
    """Compares the workers; each worker makes one.

    Args:
        attributes: returns texts that are equal for equal attributes of the callbacks that run on all workers, by name.
        stream: the training data; None: it is read by numbers.
        generators: whether the states of random generators are compared: not if other threads draw, for the next epoch.
    """

    def __init__(
        self, cluster: Cluster, attributes: Callable[[], dict[str, str]], stream: Stream | None, *, generators: bool
    ):
        self._cluster, self._attributes, self._stream = cluster, attributes, stream
        self._generators = generators
        self._told: set[str] = set()

    def compare(self) -> None:
        """Warns of what differs from worker 0. Collective."""
        found = dict(self._compared_values())
        batch = (0.0,) * 4 if self._stream is None else self._stream.first_batch()
        total = zlib.crc32(json.dumps(found, sort_keys=True).encode())
        workers = self._cluster.all_gather([float(total), *batch])
        mine, chief = workers[self._cluster.rank, 1:], workers[0, 1:]
        same = mine[0] == chief[0] and np.allclose(mine[1:], chief[1:], rtol=_TOLERANCE, atol=_TOLERANCE)
        differing = [] if same else ["the first batch of the epoch"]
        if np.ptp(workers[:, 0]):
            there = json.loads(self._cluster.all_gather_text(json.dumps(found))[0])
            differing += sorted(name for name in {**found, **there} if found.get(name) != there.get(name))
        new = [name for name in differing if name not in self._told]
        self._told.update(new)
        if new:
            messages.say(
                f"WARNING: worker {self._cluster.rank} differs from worker 0 after an epoch: {', '.join(new)}. All "
                "workers must run the same: what callbacks and data set must not depend on the process, the host or a "
                "thread."
            )

    def _compared_values(self) -> Iterator[tuple[str, int]]:
        """Yields what is compared, by name."""
        if self._generators:
            yield "the random generator of `random`", zlib.crc32(repr(random.getstate()).encode())
            state = np.random.get_state(legacy=False)
            yield "the random generator of `numpy.random`", zlib.crc32(repr((state["bit_generator"], state)).encode())
            yield from _generators_of_the_script()
        for name, text in self._attributes().items():
            yield name, zlib.crc32(text.encode())


def _generators_of_the_script() -> Iterator[tuple[str, int]]:
    for name, value in list(vars(sys.modules["__main__"]).items()):
        if isinstance(value, np.random.Generator):
            yield f"the random generator {name}", zlib.crc32(repr(value.bit_generator.state).encode())
        elif type(value) is random.Random:
            yield f"the random generator {name}", zlib.crc32(repr(value.getstate()).encode())


def is_of_worker(value: Any) -> bool:
    """Returns whether an attribute is a time that this process has read from a clock, or names a temporary file."""
    if isinstance(value, str):
        return script_state.is_own(value)
    return isinstance(value, float) and any(
        start <= value <= clock() for start, clock in zip(_STARTED, _CLOCKS, strict=True)
    )
