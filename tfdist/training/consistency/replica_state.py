"""`ReplicaState`: the state of which each replica has its own, apart from the variables that all replicas share."""

from collections.abc import Mapping
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

    def assign(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Assigns what `gather` returned; what is missing in `arrays` is as at the start of a run."""

    def restore(self, saved: Saved | None) -> None:
        """Restores what `gather` returned; None: as at the start of a run. Collective."""
