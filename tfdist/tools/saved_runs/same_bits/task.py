"""Which steps of a run another process trains again. Imports no TensorFlow."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# The file in the scratch directory with what the process printed.
LOG = "log"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Which steps one process trains again."""

    # The number of steps that are done when it begins.
    first: int
    # The config, as JSON values.
    config: Mapping[str, Any]
    # The directory of the checkpoint from which it goes on; None: from the newest one in `scratch`, or from the start.
    checkpoint: Path | None
    # A directory for its files.
    scratch: Path
    # Where the modules are that the config names.
    modules: tuple[str, ...] = ()
    # The working directory; None: as here.
    directory: str | None = None
    # Threads in an op; 0: TensorFlow's default.
    threads: int = 0
    # Whether with oneDNN; None: as this machine chooses.
    onednn: bool | None = None
    # Replicas, which are devices of the process.
    replicas: int = 1


class ReplayError(Exception):
    """The steps cannot be trained again here; says why."""
