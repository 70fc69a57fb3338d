"""`JoinedState`: joins several per-replica states into one."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfdist.checkpoint.format import Saved
from tfdist.training.consistency.replica_state import ReplicaState


class JoinedState(ReplicaState):
    """The states, one after another."""

    def __init__(self, *states: ReplicaState):
        self._states = states

    def variables(self) -> list[Any]:
        return [variable for state in self._states for variable in state.variables()]

    def gather(self) -> dict[str, np.ndarray]:
        return {name: array for state in self._states for name, array in state.gather().items()}

    def assign(self, arrays: Mapping[str, np.ndarray]) -> None:
        for state in self._states:
            state.assign(arrays)

    def restore(self, saved: Saved | None) -> None:
        for state in self._states:
            state.restore(saved)
