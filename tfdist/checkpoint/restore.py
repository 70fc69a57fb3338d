"""Restores a checkpoint on all workers: the chief reads the files and broadcasts their content.

If every worker read the checkpoint, N workers would read it 2 N times from a shared file system: once for the hash and
once for the values.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tfdist.checkpoint import format as checkpoint_format
from tfdist.checkpoint.format import Saved

# Maximum bytes of the arrays in one broadcast; a larger array has a broadcast of its own.
_BROADCAST_BYTES = 2**25


class Workers(Protocol):
    """The members of `cluster.cluster.Cluster` that this module uses."""

    num_workers: int
    # True on worker 0, which reads the files.
    is_chief: bool

    def broadcast_bytes(self, value: bytes) -> bytes:
        """Returns the chief's `value` on every worker. Collective."""


def broadcast_saved(workers: Workers, saved: Saved | None) -> Saved | None:
    """Returns the chief's `saved` on every worker. Collective."""
    if workers.num_workers == 1:
        return saved
    content = b""
    if workers.is_chief and saved is not None:
        fields = {"step": saved.step, "path": str(saved.path), "state": saved.state, "arrays": saved.arrays}
        content = json.dumps(fields).encode()
    content = workers.broadcast_bytes(content)
    if workers.is_chief or not content:
        return saved if content else None
    fields = json.loads(content)
    arrays = {name: (shape, dtype) for name, (shape, dtype) in fields["arrays"].items()}
    return Saved(step=fields["step"], path=Path(fields["path"]), state=fields["state"], arrays=arrays)


def find(workers: Workers, look: Callable[[], Saved | None]) -> Saved | None:
    """Returns on every worker the checkpoint that `look` finds on the chief; see `broadcast_saved`. Collective."""
    return broadcast_saved(workers, look() if workers.is_chief else None)


def restore(workers: Workers, saved: Saved, variables: Mapping[str, Any]) -> None:
    """Assigns the saved values to all of `variables`. Collective, in cross-replica context.

    Raises:
        ValueError: the checkpoint belongs to another model or optimizer; lists the variables that differ.
        DamagedCheckpointError: on the chief, the files changed since they were verified.
    """
    names = checkpoint_format.check_variables(saved, variables)
    by_saved_name = {names.get(name, name): variable for name, variable in variables.items()}
    for name, array in read(workers, saved, by_saved_name):
        checkpoint_format.tf_variable(by_saved_name[name]).assign(array)


def read(workers: Workers, saved: Saved, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (name, saved array) for each of `names` on every worker. Collective."""
    if workers.num_workers == 1:
        yield from checkpoint_format.read(saved, names)
        return
    names = list(names)
    arrays = checkpoint_format.read(saved, names) if workers.is_chief else iter(())
    for group in _groups(saved, names):
        content = b"".join(next(arrays)[1].tobytes() for _ in group) if workers.is_chief else b""
        content = workers.broadcast_bytes(content)
        first = 0
        for name in group:
            last = first + _num_bytes(saved, name)
            shape, dtype = saved.arrays[name]
            yield name, np.frombuffer(content[first:last], dtype).reshape(shape).copy()
            first = last


def _groups(saved: Saved, names: list[str]) -> Iterator[list[str]]:
    """Divides `names` into groups whose arrays are broadcast together."""
    group: list[str] = []
    size = 0
    for name in names:
        num_bytes = _num_bytes(saved, name)
        if group and size + num_bytes > _BROADCAST_BYTES:
            yield group
            group, size = [], 0
        group.append(name)
        size += num_bytes
    if group:
        yield group


def _num_bytes(saved: Saved, name: str) -> int:
    shape, dtype = saved.arrays[name]
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
