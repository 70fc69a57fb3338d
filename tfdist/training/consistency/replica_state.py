"""`ReplicaState`: the state of which each replica has its own, apart from the variables that all replicas share."""

from typing import Any

import numpy as np

from tfdist.checkpoint.format import Saved


class ReplicaState:
    """No such state. Replicas are not compared in theirs."""

    def variables(self) -> list[Any]:
        """Returns the variables."""
        return []

    def gather(self) -> dict[str, np.ndarray]:
        """Returns on the chief what a checkpoint holds: arrays [replicas, ...] by name. Collective."""
        return {}

    def restore(self, saved: Saved | None) -> None:
        """Restores what `gather` returned; None: as at the start of a run. Collective."""


class JoinedState(ReplicaState):
    """Several such states, one after another."""

    def __init__(self, *states: ReplicaState):
        self._states = states

    def variables(self) -> list[Any]:
        return [variable for state in self._states for variable in state.variables()]

    def gather(self) -> dict[str, np.ndarray]:
        return {name: array for state in self._states for name, array in state.gather().items()}

    def restore(self, saved: Saved | None) -> None:
        for state in self._states:
            state.restore(saved)
