"""One entropy and one clock for all workers of a script: each draws what the others draw, and reads the same time.

All workers share what a process draws by itself: `random` and `np.random` without a seed, `np.random.default_rng()`,
`random.Random()`, `uuid.uuid4`, and TensorFlow's unseeded operations. They come from one value, which is drawn anew in
each start, or saved in the workdir, so that a resumed script draws the same. Seeded draws are those of Keras alone.
`secrets` and `os.urandom` stay as they are. The clocks that a line of the script reads are the chief's: paths are often
named by the time, and files written or loops ended by it.
"""

import contextlib
import datetime as datetime_lib
import hashlib
import inspect
import os
import random
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.random import bit_generator

from tfdist.cluster.cluster import Cluster
from tfdist.config.patching import patch, put, restore_after
from tfdist.keras_fit.script import context
from tfdist.report import files

_BYTES = 16
# The module whose function TensorFlow's operations call.
_SEEDS = sys.modules[tf.compat.v1.random.get_seed.__module__]
_Datetime = datetime_lib.datetime
_CLOCKS = ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time")


@contextlib.contextmanager
def share_entropy(cluster: Cluster, workdir: Path | None) -> Iterator[None]:
    """Shares entropy and time among the workers in the block. Collective. `workdir` keeps it; None: it is new."""
    value = cluster.broadcast_bytes(_read_or_draw(workdir) if cluster.is_chief else b"")
    draws = _Draws(value)
    random.seed(draws.bits(64))
    np.random.seed(draws.bits(32))
    tf.random.set_global_generator(tf.random.Generator.from_seed(draws.bits(63)))
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch(bit_generator, "randbits", draws.random_bits))
        stack.enter_context(patch(random.Random, "seed", draws.seed))
        stack.enter_context(patch(random, "seed", draws.seed))
        stack.enter_context(patch(uuid, "uuid1", draws.uuid))
        stack.enter_context(patch(uuid, "uuid4", draws.uuid))
        stack.enter_context(patch(_SEEDS, "get_seed", draws.operation_seeds))
        stack.enter_context(_common_time(cluster))
        yield


def _read_or_draw(workdir: Path | None) -> bytes:
    if workdir is None:
        return os.urandom(_BYTES)
    path = workdir / "entropy"
    files.make_workdir(workdir)
    advice = "restore it, or remove it: the script then draws other random numbers than before."
    content = files.read_file(path, advice)
    if content is None:
        value = os.urandom(_BYTES)
        files.replace_file(path, value.hex().encode())
        return value
    with contextlib.suppress(ValueError):
        if len(value := bytes.fromhex(content.decode())) == _BYTES:
            return value
    raise ValueError(f"{path} is damaged: {advice}")


class _Draws:
    """Numbers that depend on a value and on the place of the draw; code of one worker alone has its own."""

    def __init__(self, value: bytes):
        self._value = value
        context.begin_draws()

    def bits(self, count: int) -> int:
        """Returns `count` random bits."""
        place = f" {context.next_draw()}".encode()
        found = hashlib.shake_256(self._value + place).digest(-(-count // 8))
        return int.from_bytes(found, "little") >> (-count % 8)

    def random_bits(self, original: Callable[[int], int], count: int) -> int:
        return self.bits(count) if context.draws_for_all() else original(count)

    def seed(self, original: Callable[..., None], *args: Any, **keywords: Any) -> None:
        # `random.seed()`, or `seed(generator)` as a method.
        given = [*(args[1:] if args and isinstance(args[0], random.Random) else args), *keywords.values()]
        if not context.draws_for_all() or (given and given[0] is not None) or _is_for_names():
            original(*args, **keywords)
        else:
            original(*(one for one in args if one is not None), self.bits(64))

    def uuid(self, original: Callable[..., uuid.UUID], *args: Any, **keywords: Any) -> uuid.UUID:
        if not context.draws_for_all():
            return original(*args, **keywords)
        return uuid.UUID(int=self.bits(128), version=int(original.__name__[-1]))

    def operation_seeds(self, original: Callable[[Any], tuple[Any, Any]], op_seed: Any) -> tuple[Any, Any]:
        """The seeds of an operation of TensorFlow; without any, it would draw its own in each process."""
        try:
            seeds = original(op_seed)
        except RuntimeError:  # Of enable_op_determinism, which wants a seed: here is one.
            seeds = (None, None)
        return seeds if seeds != (None, None) else (self.bits(30) + 1, self.bits(30) + 1)


def _is_for_names() -> bool:
    """Returns whether the generator of names of temporary files is made, which each process does when it needs one."""
    frame = inspect.currentframe()
    for _ in range(4):  # This one, `seed`, what `patch` has put in its place, and `random.Random`.
        frame = frame and frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == "tempfile"


@contextlib.contextmanager
def _common_time(cluster: Cluster) -> Iterator[None]:
    """Gives what the chief's clocks show to lines of the script."""
    if cluster.num_workers == 1:
        yield
        return
    seconds = time.time

    def read(original: Callable[[], float | int]) -> float | int:
        if not context.calling_line(directly=True):
            return original()
        with tf.init_scope():
            return cluster.all_gather([original()])[0, 0].item()

    def of_seconds(original: Callable[..., Any], given: float | None = None) -> Any:
        return original(read(seconds) if given is None else given)

    def format_time(original: Callable[..., str], form: str, *given: Any) -> str:
        return original(form, *(given or [time.localtime(read(seconds))]))

    class Meta(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, _Datetime)

        def __subclasscheck__(cls, kind: type) -> bool:
            return issubclass(kind, _Datetime)

    class datetime(_Datetime, metaclass=Meta):
        def __new__(cls, *args: Any, **keywords: Any) -> Any:
            if cls is datetime:
                return _Datetime(*args, **keywords)
            return super().__new__(cls, *args, **keywords)

        @classmethod
        def now(cls, tz: Any = None) -> _Datetime:
            return _Datetime.fromtimestamp(read(seconds), tz)

        today = now

        @classmethod
        def utcnow(cls) -> _Datetime:
            return _Datetime.fromtimestamp(read(seconds), datetime_lib.timezone.utc).replace(tzinfo=None)

    with contextlib.ExitStack() as stack:
        for name in _CLOCKS:
            stack.enter_context(patch(time, name, read))
        for name in ("localtime", "gmtime", "ctime"):
            stack.enter_context(patch(time, name, of_seconds))
        stack.enter_context(patch(time, "strftime", format_time))
        stack.enter_context(restore_after([datetime_lib], ["datetime"]))
        put(datetime_lib, "datetime", datetime)
        yield
