"""Logs that callbacks on the chief have changed, for the callbacks after them that run on all workers.

In Keras the callbacks share one dict: what one of them adds is in the history, and others may monitor it.
"""

import json
import zlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import keras
import numpy as np

from tfdist.cluster.cluster import Cluster
from tfdist.training.callbacks import active_hooks

_FAILED = b"failed"


def find_places(
    cluster: Cluster, callbacks: list[keras.callbacks.Callback], everywhere: Callable[[keras.callbacks.Callback], bool]
) -> Mapping[str, Collection[int]]:
    """Returns by hook before which of `callbacks` the logs are shared. Collective.

    None are if the workers have other callbacks, as in scripts for Horovod.
    """
    found: dict[str, set[int]] = {}
    names = json.dumps([[type(one).__name__, everywhere(one)] for one in callbacks])
    if cluster.num_workers == 1 or np.ptp(cluster.all_gather([float(zlib.crc32(names.encode()))])):
        return found
    for hook in active_hooks.HOOKS:
        changed = False
        for index, callback in enumerate(callbacks):
            if not everywhere(callback):
                changed = changed or active_hooks.is_active(callback, hook)
            elif changed and active_hooks.is_defined(callback, hook):
                found.setdefault(hook, set()).add(index)
                changed = False
    return found


class SharedLogs:
    """The logs of one call of a hook.

    Args:
        logs: the dict that the callbacks of this worker get.
        places: before which callbacks, by their index, the workers share it.
    """

    def __init__(self, cluster: Cluster, logs: dict[str, Any], places: Collection[int]):
        self._cluster, self._logs, self._places = cluster, logs, places
        self._known, self._next = dict(logs), 0

    def reach(self, index: int) -> bool:
        """Shares the chief's changes if they are due before the callback `index`; returns False if the chief failed."""
        self._next = index + 1
        if index not in self._places:
            return True
        content = b""
        if self._cluster.is_chief:
            changed = {name: one for name, one in self._logs.items() if self._known.get(name, self) is not one}
            removed = [name for name in self._known if name not in self._logs]
            content = json.dumps([{name: _encode(one) for name, one in changed.items()}, removed]).encode()
        content = self._cluster.broadcast_bytes(content)
        if content == _FAILED:
            return False
        if not self._cluster.is_chief:
            changed, removed = json.loads(content)
            arrays = {name: np.array(one[1], one[0])[()] for name, one in changed.items() if isinstance(one, list)}
            self._logs.update(changed | arrays)
            for name in removed:
                self._logs.pop(name, None)
        self._known = dict(self._logs)
        return True

    def fail(self) -> None:
        """Sends a failure of the chief's callback to the workers that wait for its logs; called on the chief."""
        if any(index >= self._next for index in self._places):
            self._cluster.broadcast_bytes(_FAILED)


def _encode(value: Any) -> Any:
    """Returns JSON: a number or text as it is, an array with its dtype, and another value as a text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    try:
        array = keras.ops.convert_to_numpy(value)
    except (TypeError, ValueError):
        return str(value)
    return [str(array.dtype), array.tolist()] if array.dtype.kind in "biuf" else str(value)
