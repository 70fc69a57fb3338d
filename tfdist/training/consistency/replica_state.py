"""`ReplicaState`: the state of which each replica has its own, apart from the variables that all replicas share."""

from typing import Any


class ReplicaState:
    """No such state. Replicas are not compared in theirs."""

    def variables(self) -> list[Any]:
        """Returns the variables."""
        return []
