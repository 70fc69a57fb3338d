"""`ReplicaState`: the state of which each replica has its own, apart from the variables that all replicas share."""

from typing import Any

import numpy as np


class ReplicaState:
    """No such state. Replicas are not compared in theirs."""

    def variables(self) -> list[Any]:
        """Returns the variables."""
        return []

    def gather(self) -> dict[str, np.ndarray]:
        """Returns on the chief what a checkpoint holds: arrays by name. Collective."""
        return {}


class JoinedState(ReplicaState):
    """Several such states, one after another."""

    def __init__(self, *states: ReplicaState):
        self._states = states

    def variables(self) -> list[Any]:
        return [variable for state in self._states for variable in state.variables()]

    def gather(self) -> dict[str, np.ndarray]:
        return {name: array for state in self._states for name, array in state.gather().items()}
